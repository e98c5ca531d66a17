# SPDX-License-Identifier: Apache-2.0
"""What the TurboQuant tests share: inputs, fakes and one-call round trips."""

# Standard
from dataclasses import replace
from typing import cast

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS
from lmcache.v1.distributed.serde.turboquant.slot import (
    SlotLayout,
)
from lmcache.v1.memory_management import MemoryObj

PRESET_NAMES = list(PRESETS)
LOW_BIT_PRESET_NAMES = [
    name for name, preset in PRESETS.items() if not preset.key_is_fp8
]
KV_DTYPES = [torch.float16, torch.bfloat16, torch.float32]
HEAD_DIMS = [64, 80, 96, 112, 128, 192, 256]

POISONS = (0xA5, 0x5A)
"""Buffers start as these bytes, so that a byte left unwritten shows."""


class FakeMemoryObj:
    """A memory object of which only the tensor is looked at."""

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self.tensor = tensor


def memory_obj(tensor: torch.Tensor | None) -> MemoryObj:
    """Wrap a tensor as the serde's argument."""
    return cast(MemoryObj, FakeMemoryObj(tensor))


def object_key(chunk: int = 0, model: str = "turboquant-tests") -> ObjectKey:
    """Key of the ``chunk``-th object of a model."""
    return ObjectKey(
        chunk_hash=ObjectKey.IntHash2Bytes(chunk), model_name=model, kv_rank=0
    )


KEY = object_key()


def unskipped(preset: str, head_dim: int = 128, **settings: object):
    """Configuration in which every layer is compressed, unless told otherwise."""
    settings = {"skip_first_layers": 0, "skip_last_layers": 0} | settings
    return TurboQuantSerdeConfig(
        preset=preset,
        head_dim=head_dim,
        **settings,  # type: ignore[arg-type]
    )


def slot_of(preset: str, head_dim: int = 128) -> SlotLayout:
    """Slot layout of a preset."""
    return SlotLayout.for_preset(PRESETS[preset], head_dim, head_dim, keys_only=False)


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    """Standard normal float32 numbers from NumPy's frozen legacy stream."""
    numbers = np.random.RandomState(seed).standard_normal(shape)
    return torch.from_numpy(numbers.astype(np.float32))


def encode(
    tensor: torch.Tensor,
    config: TurboQuantSerdeConfig,
    poison: int = POISONS[0],
    key: ObjectKey = KEY,
    in_place: bool = True,
) -> torch.Tensor:
    """Serialize ``tensor`` into a poisoned buffer of exactly the right size.

    ``in_place`` works where the tensor is, else where the configuration says.
    """
    description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
    config = _where(tensor, config) if in_place else config
    size = container_of(description, config).total_bytes
    payload = torch.full((size,), poison, dtype=torch.uint8, device=tensor.device)
    written = TurboQuantSerializer(config).serialize(
        memory_obj(tensor), memory_obj(payload), key
    )
    assert written == size
    return payload


def decode(
    payload: torch.Tensor,
    like: torch.Tensor,
    config: TurboQuantSerdeConfig,
    key: ObjectKey = KEY,
    in_place: bool = True,
) -> torch.Tensor:
    """Deserialize into a tensor of ``like``'s shape and dtype, full of NaN.

    ``in_place`` works where the payload is, else where the configuration says.
    """
    config = _where(payload, config) if in_place else config
    unwritten = float("nan") if like.is_floating_point() else 0
    restored = torch.full_like(like, unwritten, device=payload.device)
    TurboQuantDeserializer(config).deserialize(
        memory_obj(payload), memory_obj(restored), key
    )
    return restored


def restored_alone(
    tensor: torch.Tensor, config: TurboQuantSerdeConfig, key: ObjectKey = KEY
) -> torch.Tensor:
    """What the codec alone makes of a tensor, working where the configuration says."""
    payload = encode(tensor, config, key=key, in_place=False)
    return decode(payload, tensor, config, key, in_place=False)


def _where(tensor: torch.Tensor, config: TurboQuantSerdeConfig):
    """The configuration that works where a tensor is, also on a host with a GPU."""
    if tensor.is_cpu and config.device == "auto" and not config.cuda_device:
        return replace(config, device="cpu")
    return config


def relative_error(original: torch.Tensor, restored: torch.Tensor) -> float:
    """Return ``|x - y|^2 / |x|^2`` over all elements, in float64."""
    exact = original.double()
    return float((restored.double() - exact).square().sum() / exact.square().sum())
