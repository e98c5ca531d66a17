# SPDX-License-Identifier: Apache-2.0
"""Parts of a tensor that are small enough to be staged on an accelerator.

A chunk is a few consecutive layers, all raw or all compressed. Taken by itself it is
a smaller tensor with a smaller payload; its bytes are ranges of the whole ones.
"""

# Standard
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive layers of a tensor.

    Attributes:
        layout: Layout of the layers as a tensor of their own.
        tensor_spans: Byte ranges of the layers in the whole tensor, in the order of
            their bytes in the chunk.
        payload_spans: Byte ranges of the chunk's payload in the tensor's, likewise.
    """

    layout: PayloadLayout
    tensor_spans: tuple[slice, ...]
    payload_spans: tuple[slice, ...]

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of the layers."""
        return sum(span.stop - span.start for span in self.tensor_spans)

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of their payload."""
        return sum(span.stop - span.start for span in self.payload_spans)


def chunks_of(layout: PayloadLayout, target_bytes: int) -> tuple[Chunk, ...]:
    """Divide a tensor into chunks.

    Args:
        layout: Layout of its payload.
        target_bytes: Bytes of a chunk, tensor and payload together, that a chunk of
            more than one layer does not exceed.

    Returns:
        The chunks, in the order of the payload's bytes; an empty tensor has none.
    """
    if not math.prod(layout.shape):
        return ()
    if layout.geometry.is_opaque:
        spans = _even_parts(slice(0, layout.payload_bytes), target_bytes // 2)
        return tuple(_opaque_chunk(layout, span) for span in spans)
    leading, trailing = layout.raw_layers
    compressed = slice(leading.stop, trailing.start)
    chunks: list[Chunk] = []
    for group in (leading, compressed, trailing):
        layer_bytes = layout.raw_layer_bytes
        layer_bytes += _layer_payload_bytes(layout, group == compressed)
        layers = max(1, target_bytes // layer_bytes)
        chunks += [_layer_chunk(layout, p, group) for p in _even_parts(group, layers)]
    return tuple(chunks)


def _even_parts(whole: slice, largest: int) -> Iterator[slice]:
    """Divide a range into as few parts as ``largest`` allows, equally large."""
    size = whole.stop - whole.start
    count = math.ceil(size / max(1, largest))
    for index in range(count):
        start = whole.start + size * index // count
        yield slice(start, whole.start + size * (index + 1) // count)


def _opaque_chunk(layout: PayloadLayout, span: slice) -> Chunk:
    """Return some bytes of a tensor that is stored as it is."""
    num_bytes = span.stop - span.start
    part = replace(
        layout,
        shape=torch.Size([num_bytes]),
        dtype=torch.uint8,
        geometry=replace(layout.geometry, num_tokens=num_bytes),
    )
    return Chunk(layout=part, tensor_spans=(span,), payload_spans=(span,))


def _layer_chunk(layout: PayloadLayout, layers: slice, group: slice) -> Chunk:
    """Return some layers of a raw or of the compressed group."""
    num_layers = layers.stop - layers.start
    is_raw = group in layout.raw_layers
    entries, *rest = layout.shape[-3:]
    entries_per_layer = entries // layout.geometry.num_layers
    part = replace(
        layout,
        shape=torch.Size([*layout.shape[:-3], num_layers * entries_per_layer, *rest]),
        geometry=replace(layout.geometry, num_layers=num_layers),
        quant_start=num_layers if is_raw else 0,
        quant_end=num_layers,
        first_layer=layout.first_layer + layers.start,
    )
    return Chunk(
        layout=part,
        tensor_spans=_tensor_spans(layout, layers),
        payload_spans=_raw_spans(layout, layers, group)
        if is_raw
        else _compressed_spans(layout, layers),
    )


def _tensor_spans(layout: PayloadLayout, layers: slice) -> tuple[slice, ...]:
    """Return where layers are: in one range, or in one of each plane."""
    planes = 2 if layout.geometry.kv_layout == "split" else 1
    layer_bytes = layout.raw_layer_bytes // planes
    plane_bytes = layer_bytes * layout.geometry.num_layers
    starts = (plane * plane_bytes for plane in range(planes))
    return tuple(
        slice(start + layers.start * layer_bytes, start + layers.stop * layer_bytes)
        for start in starts
    )


def _raw_spans(layout: PayloadLayout, layers: slice, group: slice) -> tuple[slice, ...]:
    """Return where a raw group's keys, and values, of some layers are."""
    start = layout.raw_spans[layout.raw_layers.index(group)].start
    geometry, spans = layout.geometry, []
    for dim in (geometry.key_dim, geometry.value_dim):
        row_bytes = geometry.num_heads * dim * layout.dtype.itemsize
        layer_bytes = geometry.num_tokens * row_bytes
        first, last = (layer - group.start for layer in (layers.start, layers.stop))
        spans.append(slice(start + first * layer_bytes, start + last * layer_bytes))
        start += (group.stop - group.start) * layer_bytes
    return tuple(span for span in spans if span.stop > span.start)


def _compressed_spans(layout: PayloadLayout, layers: slice) -> tuple[slice, ...]:
    """Return where the side table and the slots of some layers are."""
    spans, start = [], layout.compressed_span.start
    first, last = (x - layout.quant_start for x in (layers.start, layers.stop))
    slot_bytes = math.prod(layout.compressed_shape[1:])
    for layer_bytes in (*layout.side_table.layer_bytes, slot_bytes):
        spans.append(slice(start + first * layer_bytes, start + last * layer_bytes))
        start += layout.compressed_shape[0] * layer_bytes
    return tuple(spans)


def _layer_payload_bytes(layout: PayloadLayout, is_compressed: bool) -> int:
    """Return the payload bytes of one layer."""
    if not is_compressed:
        return layout.raw_layer_bytes
    table_bytes = sum(layout.side_table.layer_bytes)
    return table_bytes + math.prod(layout.compressed_shape[1:])
