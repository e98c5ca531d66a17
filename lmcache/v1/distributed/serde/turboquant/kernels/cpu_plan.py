# SPDX-License-Identifier: Apache-2.0
"""What the CPU kernels are told: a layout in plain numbers and arrays."""

# Standard
from functools import lru_cache
from typing import NamedTuple
import math

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_tables import (
    TrellisTables,
    make_trellis_tables,
)
from lmcache.v1.distributed.serde.turboquant.slot import (
    Field,
    KeyField,
    SlotLayout,
    ValueField,
)

FLOAT32, FLOAT16, BFLOAT16 = range(3)

_NUMBER_FORMATS = {
    torch.float32: FLOAT32,
    torch.float16: FLOAT16,
    torch.bfloat16: BFLOAT16,
}

FLOAT8_KEY, LOW_BIT_KEY, CALIBRATED_KEY, VALUE = range(4)

NUM_CENTROIDS = 8
NUM_BOUNDARIES = NUM_CENTROIDS - 1
"""Those above zero of a 4-bit codebook, which is symmetric."""


class Plan(NamedTuple):
    """Where head vectors and one field of their slots are.

    Offsets and strides count bytes; offsets of parts count from the field.

    Attributes:
        number_format: ``FLOAT32``, ``FLOAT16`` or ``BFLOAT16``.
        dim: Dimensions of a head vector.
        num_tokens: Tokens of a layer.
        num_heads: Head vectors of a token.
        rows_offset: First head vector of the first compressed layer in memory.
        layer_stride: From a layer to the next.
        token_stride: From a token to the next.
        head_stride: From a head vector to the next.
        fields_offset: First slot's field in memory.
        layer_slots_stride: From the first slot of a layer to the next layer's.
        slot_stride: From a slot to the next.
        kind: ``FLOAT8_KEY``, ``LOW_BIT_KEY``, ``CALIBRATED_KEY`` or ``VALUE``.
        bits: Bits a dimension.
        codes_bytes: Bytes of packed codes: offset of the norm or of the scale,
            which the zero point follows.
        has_rotary: Whether keys may be turned by rotary angles.
        is_averaged: Whether norms are stored that make vectors unbiased.
        padding_offset: Offset of the byte that fills a slot up, which the last
            field takes care of; 0 where there is none.
    """

    number_format: int
    dim: int
    num_tokens: int
    num_heads: int
    rows_offset: int
    layer_stride: int
    token_stride: int
    head_stride: int
    fields_offset: int
    layer_slots_stride: int
    slot_stride: int
    kind: int
    bits: int
    codes_bytes: int
    has_rotary: bool
    is_averaged: bool
    padding_offset: int


class Constants(NamedTuple):
    """Tables of a low-bit key field; empty for other fields.

    Attributes:
        signs: Rotation signs, ``[compressed layers, dim]`` float32.
        hartley: Hartley matrix of the odd factor of ``dim``, float32.
        scale: ``block ** -0.5`` for its power of two ``block``.
        thresholds: ``[NUM_BOUNDARIES, LANES]`` int32. For each boundary above
            zero, the float32 bits of the largest number below it; then the
            largest int32.
        magnitudes: ``[NUM_CENTROIDS, LANES]`` float32. Each centroid above zero,
            as often as makes ``NUM_CENTROIDS``.
        trellis: Tables of trellis codes; None for other fields. Kernels are compiled
            for either type, so that one kind of codes costs the other nothing.
    """

    signs: np.ndarray
    hartley: np.ndarray
    scale: np.float32
    thresholds: np.ndarray
    magnitudes: np.ndarray
    trellis: TrellisTables | None


def make_plan(
    view: torch.Tensor,
    slots: torch.Tensor,
    slot: SlotLayout,
    field: Field,
    offset: int,
) -> Plan:
    """Write down where the kernels find head vectors and a field of their slots.

    Args:
        view: Head vectors ``[layers, tokens, heads, field.dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        slot: Byte layout of a slot.
        field: Byte layout of the field.
        offset: Offset of the field in a slot.

    Returns:
        The plan; offsets count from the start of the tensors' storages.
    """
    itemsize = view.element_size()
    layer_stride, token_stride, head_stride, _ = view.stride()
    is_last = offset + field.num_bytes == slot.used_bytes
    is_padded = is_last and slot.used_bytes < slot.slot_bytes
    return Plan(
        number_format=_NUMBER_FORMATS[view.dtype],
        dim=field.dim,
        num_tokens=view.shape[1],
        num_heads=view.shape[2],
        rows_offset=int(view.storage_offset()) * itemsize,
        layer_stride=layer_stride * itemsize,
        token_stride=token_stride * itemsize,
        head_stride=head_stride * itemsize,
        fields_offset=int(slots.storage_offset()) + offset,
        layer_slots_stride=slots.stride(0),
        slot_stride=slots.stride(2),
        kind=_kind(field),
        bits=field.bits,
        codes_bytes=field.dim * field.bits // 8,
        has_rotary=isinstance(field, KeyField) and field.rope_theta > 0,
        is_averaged=isinstance(field, KeyField) and field.is_averaged,
        padding_offset=field.num_bytes if is_padded else 0,
    )


def num_tiles(plan: Plan) -> int:
    """Count the tiles of ``LANES`` head vectors; a layer's last may be part full.

    Args:
        plan: Where head vectors are.

    Returns:
        Tiles of one layer.
    """
    return math.ceil(plan.num_tokens * plan.num_heads / LANES)


@lru_cache(maxsize=64)
def make_constants(field: Field, layers: range) -> Constants:
    """Gather the tables of some layers.

    Args:
        field: Byte layout of a field.
        layers: The compressed layers.

    Returns:
        The tables; nothing but their types matters unless the field holds
        low-bit keys.
    """
    dim, bits = field.dim, field.bits
    block = dim & -dim
    is_trellis = isinstance(field, KeyField) and field.is_trellis
    trellis = make_trellis_tables(dim, bits) if is_trellis else None
    thresholds = np.full((NUM_BOUNDARIES, LANES), np.iinfo(np.int32).max, np.int32)
    magnitudes = np.zeros((NUM_CENTROIDS, LANES), np.float32)
    signs: np.ndarray = np.zeros((0, dim), np.float32)
    if _kind(field) in (LOW_BIT_KEY, CALIBRATED_KEY):
        boundaries = tables.boundaries(dim, bits).numpy()[2 ** (bits - 1) :]
        thresholds[: len(boundaries)] = boundaries.view(np.int32)[:, None] - 1
        centroids = tables.centroids(dim, bits).numpy()[2 ** (bits - 1) :]
        repeats = NUM_CENTROIDS // len(centroids)
        magnitudes[:] = centroids.repeat(repeats)[:, None]
        signs = np.stack([tables.rotation_signs(dim, layer) for layer in layers])
    return Constants(
        signs=signs,
        hartley=np.array(tables.hartley(dim // block), dtype=np.float32),
        scale=np.float32(block**-0.5),
        thresholds=thresholds,
        magnitudes=magnitudes,
        trellis=trellis,
    )


def _kind(field: Field) -> int:
    """Return the code of a field's kind."""
    if isinstance(field, ValueField):
        return VALUE
    if field.is_calibrated:
        return CALIBRATED_KEY
    return FLOAT8_KEY if field.is_fp8 else LOW_BIT_KEY
