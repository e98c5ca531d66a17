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
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.slot import (
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

NUM_CENTROIDS = 8
NUM_BOUNDARIES = NUM_CENTROIDS - 1
"""Those above zero of a 4-bit codebook, which is symmetric."""


class Plan(NamedTuple):
    """Where head vectors and slots are; offsets and strides count bytes.

    Attributes:
        number_format: ``FLOAT32``, ``FLOAT16`` or ``BFLOAT16``.
        num_tokens: Tokens of a layer.
        num_heads: Head vectors of a token.
        rows_offset: First key of the first compressed layer in the tensor.
        layer_stride: From a layer to the next.
        token_stride: From a token to the next.
        head_stride: From a head vector to the next.
        value_stride: From a key to its value.
        slots_offset: First slot in the payload.
        layer_slots_stride: From the first slot of a layer to the next layer's.
        slot_stride: From a slot to the next.
        key_bits: Bits a key dimension, as in ``slot.Preset``.
        value_bits: Bits a value dimension.
        key_norm_offset: Offset of the key's norm in a slot.
        value_offset: Offset of the packed value levels.
        value_scale_offset: Offset of the value's scale.
        value_zero_offset: Offset of the value's zero point.
        used_bytes: Bytes of key and value; a byte after them is padding.
    """

    number_format: int
    num_tokens: int
    num_heads: int
    rows_offset: int
    layer_stride: int
    token_stride: int
    head_stride: int
    value_stride: int
    slots_offset: int
    layer_slots_stride: int
    slot_stride: int
    key_bits: int
    value_bits: int
    key_norm_offset: int
    value_offset: int
    value_scale_offset: int
    value_zero_offset: int
    used_bytes: int


class Constants(NamedTuple):
    """Tables that depend on head_dim, key bits and layers alone.

    Attributes:
        signs: Rotation signs, ``[compressed layers, head_dim]`` float32.
        hartley: Hartley matrix of head_dim's odd factor, float32.
        scale: ``block ** -0.5`` for its power of two ``block``.
        thresholds: ``[NUM_BOUNDARIES, LANES]`` int32. For each boundary above
            zero, the float32 bits of the largest number below it; then the
            largest int32.
        magnitudes: ``[NUM_CENTROIDS, LANES]`` float32. Each centroid above zero,
            as often as makes ``NUM_CENTROIDS``.
    """

    signs: np.ndarray
    hartley: np.ndarray
    scale: np.float32
    thresholds: np.ndarray
    magnitudes: np.ndarray


def make_plan(views: KVViews, slots: torch.Tensor, slot: SlotLayout) -> Plan:
    """Write down where the kernels find head vectors and slots.

    Args:
        views: Keys and values ``[layers, tokens, heads, dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        slot: Byte layout of a slot.

    Returns:
        The plan; offsets count from the start of the tensors' storages.

    Raises:
        TypeError: If the slot holds no uniformly quantised values.
    """
    keys, values = views
    if values is None or not isinstance(slot.value, ValueField):
        raise TypeError(f"Expected keys and values, got slots of {slot}")
    itemsize = keys.element_size()
    first_key, first_value = int(keys.storage_offset()), int(values.storage_offset())
    layer_stride, token_stride, head_stride, _ = keys.stride()
    return Plan(
        number_format=_NUMBER_FORMATS[keys.dtype],
        num_tokens=keys.shape[1],
        num_heads=keys.shape[2],
        rows_offset=first_key * itemsize,
        layer_stride=layer_stride * itemsize,
        token_stride=token_stride * itemsize,
        head_stride=head_stride * itemsize,
        value_stride=(first_value - first_key) * itemsize,
        slots_offset=int(slots.storage_offset()),
        layer_slots_stride=slots.stride(0),
        slot_stride=slots.stride(2),
        key_bits=slot.key.bits,
        value_bits=slot.value.bits,
        key_norm_offset=slot.key.norm_offset,
        value_offset=slot.value_offset,
        value_scale_offset=slot.value_offset + slot.value.scale_offset,
        value_zero_offset=slot.value_offset + slot.value.zero_offset,
        used_bytes=slot.used_bytes,
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
def make_constants(key: KeyField, first_layer: int, last_layer: int) -> Constants:
    """Gather the tables of some layers.

    Args:
        key: Byte layout of a key.
        first_layer: First compressed layer.
        last_layer: Layer after the last compressed one.

    Returns:
        The tables; thresholds and magnitudes are unused where keys are float8.
    """
    signs = [
        tables.rotation_signs(key.dim, layer).numpy()
        for layer in range(first_layer, last_layer)
    ]
    block = key.dim & -key.dim
    thresholds = np.full((NUM_BOUNDARIES, LANES), np.iinfo(np.int32).max, np.int32)
    magnitudes = np.zeros((NUM_CENTROIDS, LANES), np.float32)
    if not key.is_fp8:
        bits = key.bits
        boundaries = tables.boundaries(key.dim, bits).numpy()[2 ** (bits - 1) :]
        thresholds[: len(boundaries)] = boundaries.view(np.int32)[:, None] - 1
        centroids = tables.centroids(key.dim, bits).numpy()[2 ** (bits - 1) :]
        repeats = NUM_CENTROIDS // len(centroids)
        magnitudes[:] = centroids.repeat(repeats)[:, None]
    return Constants(
        signs=np.stack(signs),
        hartley=np.array(tables.hartley(key.dim // block), dtype=np.float32),
        scale=np.float32(block**-0.5),
        thresholds=thresholds,
        magnitudes=magnitudes,
    )
