# SPDX-License-Identifier: Apache-2.0
"""How far a backend that rounds in another order may be from the reference.

Float8 keys, scales and zero points are the same bits. A code may be its neighbour
where a number lies next to the boundary of both, and a norm may round to the
neighbouring float16.
"""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantSerdeConfig,
    reference,
    tables,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout, layouts_of
from lmcache.v1.distributed.serde.turboquant.packing import FP16_MAX
from lmcache.v1.distributed.serde.turboquant.slot import (
    Field,
    KeyField,
    SlotLayout,
    ValueField,
)
from tests.v1.distributed.serde.turboquant.cpu_helpers import compressed_views

Pair = tuple[torch.Tensor, torch.Tensor]

NEAR_INDEX = 4e-6
"""Distance from a codebook boundary, in standard deviations, that is next to it."""

NEAR_LEVEL = 1e-5
"""The same of the middle between two levels, in steps."""

RARELY = 1 / 500
"""Share of norms, or of the bytes of Gaussian numbers, that may differ."""

TOLERANCE = {torch.float16: 2e-4, torch.bfloat16: 2e-4, torch.float32: 4e-6}
"""Error of a restored number besides one rounding to the dtype, over the row's RMS.

The GPU's float16 centroids are off by up to 6e-5 of a standard deviation.
"""


def assert_restored_alike(
    restored: torch.Tensor, specified: torch.Tensor, head_dim: int
) -> None:
    """Two restored tensors, of rows along the last dimension, on the CPU."""
    ours = restored.unflatten(-1, (-1, head_dim)).double()
    exact = specified.unflatten(-1, (-1, head_dim)).double()
    assert torch.equal(ours.isfinite(), exact.isfinite())
    ours, exact = ours.nan_to_num(0, 0, 0), exact.nan_to_num(0, 0, 0)
    limits = torch.finfo(specified.dtype)
    rounding = (limits.eps * exact.abs()).clamp(min=limits.eps * limits.smallest_normal)
    rms = exact.square().mean(dim=-1, keepdim=True).sqrt()
    excess = (ours - exact).abs() - rounding
    assert (excess <= TOLERANCE[specified.dtype] * rms).all()


def assert_payloads_alike(
    payload: torch.Tensor,
    specified: torch.Tensor,
    tensor: torch.Tensor,
    config: TurboQuantSerdeConfig,
) -> None:
    """Two payloads without frame of Gaussian numbers, all on the CPU."""
    layout = layouts_of(MemoryLayoutDesc([tensor.shape], [tensor.dtype]), config)[0]
    ours, theirs = slots_of(payload, layout), slots_of(specified, layout)
    views = compressed_views(tensor, layout)
    assert_slots_alike(ours, theirs, views, layout.slot, layout.quant_start)
    assert (ours != theirs).sum() <= RARELY * ours.numel()
    besides = payload.clone()
    slots_of(besides, layout).copy_(theirs)
    assert torch.equal(besides, specified)


def slots_of(payload: torch.Tensor, layout: PayloadLayout) -> torch.Tensor:
    """View the slots of the tokens that exist, ``[layers, tokens, heads, slot]``."""
    slots = payload[layout.compressed_span].view(layout.compressed_shape)
    return slots[:, : layout.geometry.num_tokens]


def assert_slots_alike(
    ours: torch.Tensor,
    specified: torch.Tensor,
    views: KVViews,
    slot: SlotLayout,
    first_layer: int = 0,
) -> None:
    """Two encodings of finite vectors, all on the CPU."""
    fields: list[tuple[Field, int]] = [(slot.key, 0)]
    if slot.value is not None:
        fields.append((slot.value, slot.value_offset))
    for view, (field, start) in zip(views, fields, strict=False):
        span = slice(start, start + field.num_bytes)
        stored = ours[..., span], specified[..., span]
        assert view is not None
        if isinstance(field, ValueField):
            _assert_values_alike(stored, view, field)
        elif field.is_fp8:
            assert torch.equal(*stored)
        else:
            _assert_keys_alike(stored, view, field, first_layer)
    assert not ours[..., slot.used_bytes :].any()


def _assert_keys_alike(
    both: Pair, keys: torch.Tensor, field: KeyField, first_layer: int
) -> None:
    """Indices differ next to boundaries only, norms by one rounding."""
    rows = keys.double().clamp(-FP16_MAX, FP16_MAX)
    norms = rows.norm(dim=-1, keepdim=True)
    units = (rows / torch.where(norms > 0, norms, 1.0)).float()
    rotated = [reference.rotate(x, first_layer + i) for i, x in enumerate(units)]
    coordinates = torch.stack(rotated)[..., None]
    distances = (coordinates - tables.boundaries(field.dim, field.bits)).abs()
    is_near = distances.amin(dim=-1) * field.dim**0.5 < NEAR_INDEX
    _assert_codes_alike(both, is_near, field.norm_offset, field.bits)
    norm_bits = [
        x[..., field.norm_offset :].contiguous().view(torch.int16).int() for x in both
    ]
    change = (norm_bits[0] - norm_bits[1]).abs()
    assert change.max() <= 1 and change.sum() <= max(RARELY * change.numel(), 1)


def _assert_values_alike(both: Pair, values: torch.Tensor, field: ValueField) -> None:
    """Levels differ next to the middle of two only; scales and zeros are equal."""
    (ours, specified), offset = both, field.scale_offset
    assert torch.equal(ours[..., offset:], specified[..., offset:])
    halves = specified[..., offset:].contiguous().view(torch.float16).double()
    scales, zeros = halves[..., :1], halves[..., 1:]
    rows = values.double().clamp(-FP16_MAX, FP16_MAX)
    levels = (rows - zeros) / torch.where(scales > 0, scales, torch.inf)
    is_near = (levels.frac().abs() - 0.5).abs() < NEAR_LEVEL
    _assert_codes_alike(both, is_near, offset, field.bits)


def _assert_codes_alike(
    both: Pair, is_near: torch.Tensor, num_bytes: int, bits: int
) -> None:
    """Packed codes differ by one at most, and only where ``is_near``."""
    codes = [reference.unpack(x[..., :num_bytes], bits) for x in both]
    change = (codes[0] - codes[1]).abs()
    assert change.max() <= 1 and not change[~is_near].any()
