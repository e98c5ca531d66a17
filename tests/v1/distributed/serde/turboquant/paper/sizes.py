# SPDX-License-Identifier: Apache-2.0
"""The compression ratio, with every byte counted."""

# Standard
from collections.abc import Callable
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS
from tests.v1.distributed.serde.turboquant.helpers import decode, encode, gaussian
from tests.v1.distributed.serde.turboquant.paper.result import Result, beside

LAYERS, TOKENS, HEADS, DIM = 32, 32, 2, 128

SizeOf = Callable[[torch.Tensor, TurboQuantSerdeConfig], int]


def stored_bytes(tensor: torch.Tensor, config: TurboQuantSerdeConfig) -> int:
    """Count the bytes that alone restore a tensor.

    Raises:
        ArithmeticError: If the tensor does not come back from them.
    """
    payload = encode(tensor, config)
    restored = decode(payload, tensor, config)
    cosine = torch.cosine_similarity(restored.float(), tensor.float(), dim=-1)
    if not cosine.min() > 0.9:
        raise ArithmeticError(f"Restored at a cosine of {cosine.min()}")
    return payload.numel()


def compression_ratio(subject: SizeOf) -> list[Result]:
    """16-bit KV over all that is stored: indices, norms, scales, zero points, frame.

    0xSero/turboquant's check wants a ratio between 2 and 8; its size leaves out
    whatever is not in the packed arrays.
    """
    tensor = gaussian(2, LAYERS, TOKENS, HEADS * DIM).bfloat16()
    raw_bytes = tensor.numel() * 2
    results = []
    for preset in PRESETS:
        for framed, skipped in ((False, 0), (True, 0), (True, 2)):
            config = TurboQuantSerdeConfig(
                preset=preset,
                head_dim=DIM,
                framed=framed,
                skip_first_layers=skipped,
                skip_last_layers=skipped,
            )
            expected = raw_bytes / _counted(preset, framed, 2 * skipped)
            results.append(
                Result(
                    claim="compression ratio, every byte counted",
                    source="Algorithm 1, norms kept apart",
                    case=preset,
                    setting=f"{'framed' if framed else 'bare'}, "
                    f"{2 * skipped} of {LAYERS} layers raw",
                    measured=raw_bytes / subject(tensor, config),
                    **beside(expected, 1e-9),
                )
            )
    return results


def _counted(preset: str, framed: bool, raw_layers: int) -> int:
    """Count bytes by hand: bits, then float16 numbers, then the frame."""
    key_bits, value_bits = {
        "turboquant_k8v4": (8, 4),
        "turboquant_4bit_nc": (4, 4),
        "turboquant_k3v4_nc": (3, 4),
        "turboquant_3bit_nc": (3, 3),
    }[preset]
    numbers = 2 if key_bits == 8 else 3
    slot = DIM * (key_bits + value_bits) // 8 + 2 * numbers
    heads = TOKENS * HEADS
    size = heads * ((LAYERS - raw_layers) * slot + raw_layers * 2 * DIM * 2)
    return math.ceil((128 + size) / 4096) * 4096 if framed else size
