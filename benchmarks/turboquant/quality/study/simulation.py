# SPDX-License-Identifier: Apache-2.0
"""The calibrated codec with any code in place of its own, and its rivals, by numbers.

Everything but the code is the specification's: statistics, kept keys, the rule for the
flag, the rotation, and norms as they are stored.
"""

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.study.codes import Code
from comparison import CHUNK_TOKENS
from lmcache.v1.distributed.serde.turboquant import calibration
from lmcache.v1.distributed.serde.turboquant.reference import (
    FP8_DTYPE,
    decode_field,
    encode_field,
)
from lmcache.v1.distributed.serde.turboquant.rotation import (
    rotate,
    row_norms,
    unrotate,
)
from lmcache.v1.distributed.serde.turboquant.slot import KeyField, ValueField

TOKENS_PER_KEPT_KEY = 128


def restored(kv: torch.Tensor, field: KeyField, code: Code) -> torch.Tensor:
    """Store a cache, keys chunk by chunk, and restore it.

    Args:
        kv: float32 ``[2, layers, tokens, heads * field.dim]``.
        field: A calibrated field.
        code: What quantises directions.

    Returns:
        What comes back, of the same shape.
    """
    sides = []
    for layer, (keys, values) in enumerate(
        kv.unflatten(-1, (-1, field.dim)).transpose(0, 1)
    ):
        chunks = keys.split(CHUNK_TOKENS)
        keys = torch.cat([_restored_keys(x, field, layer, code) for x in chunks])
        norms = row_norms(values)
        values = _restored(values, norms, layer, code, is_averaged=True)
        sides.append(torch.stack([keys, values]))
    return torch.stack(sides, dim=1).flatten(-2)


def plain_preset(bits: int, kv: torch.Tensor, dim: int) -> torch.Tensor:
    """Store a cache as the plain preset of these bits does, and restore it.

    Args:
        bits: Of keys and of values.
        kv: float32 ``[2, layers, tokens, heads * dim]``.
        dim: Width of a head.

    Returns:
        What comes back, of the same shape.
    """
    sides = []
    for side, kind in zip(kv, (KeyField, ValueField), strict=True):
        field = kind(bits=bits, dim=dim)
        layers = side.unflatten(-1, (-1, dim))
        coded = [encode_field(rows, field, at) for at, rows in enumerate(layers)]
        rows = [decode_field(stored, field, at) for at, stored in enumerate(coded)]
        sides.append(torch.stack(rows).flatten(-2))
    return torch.stack(sides)


def float8(kv: torch.Tensor, dim: int) -> torch.Tensor:
    """Round a cache to float8, whatever the width of a head."""
    return kv.to(FP8_DTYPE).float()


def _restored_keys(
    keys: torch.Tensor, field: KeyField, layer: int, code: Code
) -> torch.Tensor:
    """Store and restore the keys ``[tokens, heads, dim]`` of one chunk."""
    statistics, distances = calibration.measure(keys, field)
    positions = calibration.farthest(distances, len(keys) // TOKENS_PER_KEPT_KEY)
    kept = calibration.kept_rows(keys, positions).bfloat16()
    relative = calibration.to_relative(keys, statistics, field)
    norms, relative_norms = row_norms(keys), row_norms(relative)
    gain = calibration.error_gain(statistics, field)
    is_relative = relative_norms * gain < norms
    rows = torch.where(is_relative, relative, keys)
    lengths = torch.where(is_relative, relative_norms, norms)
    rows = _restored(rows, lengths, layer, code, is_averaged=False)
    absolute = calibration.from_relative(rows, statistics, field)
    rows = torch.where(is_relative, absolute, rows)
    return calibration.put_back(rows, kept, positions)


def _restored(
    rows: torch.Tensor,
    norms: torch.Tensor,
    layer: int,
    code: Code,
    *,
    is_averaged: bool,
) -> torch.Tensor:
    """Restore vectors ``[tokens, heads, dim]`` from code and norm.

    Where they are averaged, the norm leaves their length along themselves as it is.
    """
    dim = rows.shape[-1]
    directions = rotate(rows / torch.where(norms > 0, norms, 1), layer)
    codes = code(directions.flatten(0, 1) * dim**0.5).view_as(rows)
    codes = codes / row_norms(codes)
    if is_averaged:
        overlaps = (directions * codes).sum(dim=-1, keepdim=True)
        norms = norms / torch.where(overlaps > 0, overlaps, 1)
    return unrotate(codes * norms.half().float(), layer)
