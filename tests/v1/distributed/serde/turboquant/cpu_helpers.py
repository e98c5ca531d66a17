# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding by the CPU backend and by the reference."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import reference, search
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews, kv_views
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout, layouts_of
from tests.v1.distributed.serde.turboquant.helpers import POISONS, unskipped


def layout_of(tensor: torch.Tensor, preset: str, head_dim: int, **settings: object):
    """Payload layout of a tensor in which every layer is compressed."""
    config = unskipped(preset, head_dim, **settings)
    description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
    return layouts_of(description, config)[0]


def cpu_encode(
    tensor: torch.Tensor,
    layout: PayloadLayout,
    threads: int = 1,
    poison: int = POISONS[0],
    effort: str = "fast",
) -> torch.Tensor:
    """Encode into poisoned slots ``[layers, tokens, heads, slot_bytes]``."""
    slots = torch.full(slots_shape(layout), poison, dtype=torch.uint8)
    views = compressed_views(tensor, layout)
    assert cpu.supports(views, slots, layout.slot)
    where = (views, slots, layout.slot, layout.quant_start)
    cpu.encode_layers(*where, threads, EFFORTS[effort])
    return slots


def cpu_decode(
    slots: torch.Tensor, layout: PayloadLayout, threads: int = 1
) -> torch.Tensor:
    """Decode into a tensor that is full of NaN; raw layers stay so."""
    tensor = torch.full(layout.shape, float("nan"), dtype=layout.dtype)
    views = compressed_views(tensor, layout)
    cpu.decode_layers(slots, views, layout.slot, layout.quant_start, threads)
    return tensor


def reference_encode(
    tensor: torch.Tensor, layout: PayloadLayout, effort: str = "fast"
) -> torch.Tensor:
    """Encode as specified."""
    slots = torch.empty(slots_shape(layout), dtype=torch.uint8)
    views = compressed_views(tensor, layout)
    where = (views, slots, layout.slot, layout.quant_start)
    search.encode_layers(*where, EFFORTS[effort])
    return slots


def reference_decode(slots: torch.Tensor, layout: PayloadLayout) -> torch.Tensor:
    """Decode as specified."""
    tensor = torch.full(layout.shape, float("nan"), dtype=layout.dtype)
    views = compressed_views(tensor, layout)
    reference.decode_layers(slots, views, layout.slot, layout.quant_start)
    return tensor


def slots_shape(layout: PayloadLayout) -> tuple[int, int, int, int]:
    """Shape of the slots of real tokens."""
    num_layers, _, num_heads, slot_bytes = layout.compressed_shape
    return num_layers, layout.geometry.num_tokens, num_heads, slot_bytes


def compressed_views(tensor: torch.Tensor, layout: PayloadLayout) -> KVViews:
    """Keys and values of the compressed layers."""
    keys, values = kv_views(tensor, layout.geometry)
    layers = slice(layout.quant_start, layout.quant_end)
    assert values is not None
    return keys[layers], values[layers]
