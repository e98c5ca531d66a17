# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding by the CPU backend and by the reference."""

# Standard
from collections.abc import Callable

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

SHAPES: dict[str, Callable[[int, int, int, int, int], tuple[int, ...]]] = {
    "split": lambda layers, tokens, heads, dim, _: (2, layers, tokens, heads * dim),
    "fused": lambda layers, tokens, heads, dim, _: (layers, tokens, heads * 2 * dim),
    "fused_planes": lambda layers, tokens, heads, dim, _: (
        *(1, layers, tokens),
        2 * heads * dim,
    ),
    "diff": lambda layers, tokens, heads, dim, value_dim: (
        *(1, layers, tokens),
        heads * (dim + (value_dim or dim)),
    ),
    "latent": lambda layers, tokens, heads, dim, value_dim: (
        *(1, layers, tokens),
        dim + value_dim,
    ),
    "components": lambda layers, tokens, heads, dim, _: (
        *(1, 2 * layers, tokens),
        heads * dim,
    ),
}
"""Shape of a tensor by ``kv_layout``, from layers, tokens, heads and two widths."""


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
    assert cpu.supports(views, slots)
    where = (views, slots, layout.slot, layout.quant_start)
    cpu.encode_layers(*where, threads, effort=EFFORTS[effort])
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
    return keys[layers], None if values is None else values[layers]


def assert_same_numbers(ours: torch.Tensor, specified: torch.Tensor) -> None:
    """Bit for bit, but any NaN for any NaN."""
    assert torch.equal(ours.isnan(), specified.isnan())
    bits = torch.int32 if ours.dtype == torch.float32 else torch.int16
    same = ours.view(bits) == specified.view(bits)
    assert (same | ours.isnan()).all()
