# SPDX-License-Identifier: Apache-2.0
"""One tensor's payload: raw layers by copy, the others by the fastest backend."""

# Standard
from collections.abc import Iterator
from types import ModuleType

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, search
from lmcache.v1.distributed.serde.turboquant.effort import PLAIN, Effort
from lmcache.v1.distributed.serde.turboquant.kernels import cpu, has_triton
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews, kv_views
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout


def write_payload(
    tensor: torch.Tensor,
    payload: torch.Tensor,
    layout: PayloadLayout,
    threads: int = 1,
    effort: Effort = PLAIN,
) -> None:
    """Encode a tensor.

    Args:
        tensor: Tensor of ``layout.shape`` and ``layout.dtype``.
        payload: uint8 tensor of ``layout.payload_bytes`` on the same device; every
            byte is written.
        layout: The payload's layout.
        threads: Threads that the CPU backend works with.
        effort: What the encoder tries.
    """
    views = kv_views(tensor, layout.geometry)
    for raw, stored in _raw_parts(views, payload, layout):
        stored.copy_(raw)
    slots = payload[layout.slots_span].view(layout.compressed_shape)
    num_tokens = layout.geometry.num_tokens
    slots[:, num_tokens:] = 0
    payload[layout.side_table_span] = 0
    if not layout.quantises:
        return
    views, slots = _quantised(views, layout), slots[:, :num_tokens]
    table = layout.side_table.parts(payload[layout.side_table_span])
    where = (views, slots, layout.slot, layout.first_layer + layout.quant_start)
    if cpu.supports(views, slots):
        cpu.encode_layers(*where, threads, table, effort)
    elif effort.searches_any(layout.slot):
        search.encode_layers(*where, effort, table)
    else:
        backend = _gpu_or_reference(views, slots, layout.slot)
        backend.encode_layers(*where, table)


def read_payload(
    payload: torch.Tensor, tensor: torch.Tensor, layout: PayloadLayout, threads: int = 1
) -> None:
    """Restore a tensor.

    Args:
        payload: uint8 tensor of ``layout.payload_bytes``.
        tensor: Tensor of ``layout.shape`` and ``layout.dtype`` on the same device;
            every element is written.
        layout: The payload's layout.
        threads: Threads that the CPU backend works with.
    """
    views = kv_views(tensor, layout.geometry)
    for raw, stored in _raw_parts(views, payload, layout):
        raw.copy_(stored)
    if not layout.quantises:
        return
    slots = payload[layout.slots_span].view(layout.compressed_shape)
    views, slots = _quantised(views, layout), slots[:, : layout.geometry.num_tokens]
    first_layer = layout.first_layer + layout.quant_start
    table = layout.side_table.parts(payload[layout.side_table_span])
    if cpu.supports(views, slots):
        cpu.decode_layers(slots, views, layout.slot, first_layer, threads, table)
    else:
        backend = _gpu_or_reference(views, slots, layout.slot)
        backend.decode_layers(slots, views, layout.slot, first_layer, table)


def runs_on_gpu(
    tensor: torch.Tensor,
    payload: torch.Tensor,
    layout: PayloadLayout,
    effort: Effort = PLAIN,
) -> bool:
    """Return whether the GPU's kernels do all the work on a tensor.

    Args:
        tensor: As for :func:`write_payload`.
        payload: As for :func:`write_payload`.
        layout: As for :func:`write_payload`.
        effort: As for :func:`write_payload`; for decoding, the plain rule.

    Returns:
        False where another backend works, or layers are copied.
    """
    if effort.searches_any(layout.slot):
        return False
    has_copies = any(layers.stop > layers.start for layers in layout.raw_layers)
    if has_copies or not layout.quantises:
        return False
    slots = payload[layout.slots_span].view(layout.compressed_shape)
    slots = slots[:, : layout.geometry.num_tokens]
    views = kv_views(tensor, layout.geometry)
    return _gpu_or_reference(views, slots, layout.slot) is not reference


def _gpu_or_reference(
    views: KVViews, slots: torch.Tensor, slot: SlotLayout
) -> ModuleType:
    """Return the GPU backend where it can work on these tensors."""
    if slots.is_cpu or not has_triton():
        return reference
    # Triton is optional, and takes long to import.
    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu

    return gpu if gpu.supports(views, slots, slot) else reference


def _raw_parts(
    views: KVViews, payload: torch.Tensor, layout: PayloadLayout
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pair raw layers of each view, as bytes, with their place in the payload.

    Bytes need no alignment.
    """
    for layers, span in zip(layout.raw_layers, layout.raw_spans, strict=True):
        start = span.start
        for view in views:
            if view is None or start == span.stop:
                continue
            raw = view[layers].view(torch.uint8)
            stop = start + raw.numel()
            yield raw, payload[start:stop].view(raw.shape)
            start = stop


def _quantised(views: KVViews, layout: PayloadLayout) -> KVViews:
    """Return the compressed layers of both views."""
    keys, values = views
    layers = slice(layout.quant_start, layout.quant_end)
    return keys[layers], None if values is None else values[layers]
