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
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
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
    write_raw(tensor, payload, layout)
    slots = payload[layout.slots_span].view(layout.compressed_shape)
    slots[:, layout.geometry.num_tokens :] = 0
    payload[layout.side_table_span] = 0
    if not layout.quantises:
        return
    views, slots, table = quantised_parts(tensor, payload, layout)
    where = (views, slots, layout.slot, layout.first_layer + layout.quant_start)
    if cpu.supports(views, slots):
        cpu.encode_layers(*where, threads, table, effort)
    elif effort.searches_any(layout.slot):
        search.encode_layers(*where, effort, table)
    else:
        backend = _gpu_or_reference(views, slots, layout.slot, encodes=True)
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
    read_raw(payload, tensor, layout)
    if not layout.quantises:
        return
    views, slots, table = quantised_parts(tensor, payload, layout)
    first_layer = layout.first_layer + layout.quant_start
    if cpu.supports(views, slots):
        cpu.decode_layers(slots, views, layout.slot, first_layer, threads, table)
    else:
        backend = _gpu_or_reference(views, slots, layout.slot, encodes=False)
        backend.decode_layers(slots, views, layout.slot, first_layer, table)


def write_raw(
    tensor: torch.Tensor, payload: torch.Tensor, layout: PayloadLayout
) -> None:
    """Copy the raw layers of a tensor; see :func:`write_payload`."""
    for raw, stored in _raw_parts(tensor, payload, layout):
        stored.copy_(raw)


def read_raw(
    payload: torch.Tensor, tensor: torch.Tensor, layout: PayloadLayout
) -> None:
    """Restore the raw layers of a tensor; see :func:`read_payload`."""
    for raw, stored in _raw_parts(tensor, payload, layout):
        raw.copy_(stored)


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
        False where another backend encodes, or layers are copied.
    """
    if layout.has_raw_layers:
        return False
    return quantises_on_gpu(tensor, payload, layout, effort)


def quantises_on_gpu(
    tensor: torch.Tensor,
    payload: torch.Tensor,
    layout: PayloadLayout,
    effort: Effort = PLAIN,
) -> bool:
    """Return whether the GPU's kernels do all but copies; see :func:`runs_on_gpu`."""
    if effort.searches_any(layout.slot) or not layout.quantises:
        return False
    views, slots, _ = quantised_parts(tensor, payload, layout)
    backend = _gpu_or_reference(views, slots, layout.slot, encodes=True)
    return backend is not reference


def quantised_parts(
    tensor: torch.Tensor, payload: torch.Tensor, layout: PayloadLayout
) -> tuple[KVViews, torch.Tensor, tuple[SideTablePart, ...]]:
    """Return compressed layers, their slots and their side table."""
    views = _quantised(kv_views(tensor, layout.geometry), layout)
    slots = payload[layout.slots_span].view(layout.compressed_shape)
    table = layout.side_table.parts(payload[layout.side_table_span])
    return views, slots[:, : layout.geometry.num_tokens], table


def _gpu_or_reference(
    views: KVViews, slots: torch.Tensor, slot: SlotLayout, *, encodes: bool
) -> ModuleType:
    """Return the GPU backend where it can encode or decode these tensors."""
    if slots.is_cpu or not has_triton():
        return reference
    # Triton is optional, and takes long to import.
    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu

    can_work = gpu.supports(views, slots, slot) and (gpu.encodes(slot) or not encodes)
    return gpu if can_work else reference


def _raw_parts(
    tensor: torch.Tensor, payload: torch.Tensor, layout: PayloadLayout
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pair raw layers of each view, as bytes, with their place in the payload.

    Bytes need no alignment.
    """
    if not layout.has_raw_layers:
        return
    views = kv_views(tensor, layout.geometry)
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
