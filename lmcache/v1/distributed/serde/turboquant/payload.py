# SPDX-License-Identifier: Apache-2.0
"""One tensor's payload: raw layers by copy, the others by the fastest backend."""

# Standard
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, search
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS, Effort
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews, kv_views
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout


def write_payload(
    tensor: torch.Tensor,
    payload: torch.Tensor,
    layout: PayloadLayout,
    threads: int = 1,
    effort: Effort = EFFORTS["fast"],
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
    for layers, span in zip(layout.raw_layers, layout.raw_spans, strict=True):
        start = span.start
        for view in _select(views, layers):
            raw = view.reshape(-1).view(torch.uint8)
            payload[start : start + raw.numel()] = raw
            start += raw.numel()
    slots = payload[layout.compressed_span].view(layout.compressed_shape)
    num_tokens = layout.geometry.num_tokens
    slots[:, num_tokens:] = 0
    if not layout.quantises:
        return
    views, slots = _quantised(views, layout), slots[:, :num_tokens]
    where = (views, slots, layout.slot, layout.quant_start)
    if cpu.supports(views, slots, layout.slot):
        cpu.encode_layers(*where, threads, effort)
    elif effort.is_plain:
        _gpu_or_reference(views, slots, layout.slot).encode_layers(*where)
    else:
        search.encode_layers(*where, effort)


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
    for layers, span in zip(layout.raw_layers, layout.raw_spans, strict=True):
        start = span.start
        for view in _select(views, layers):
            stop = start + view.numel() * view.dtype.itemsize
            # A clone starts at an address that every dtype is aligned to.
            view.copy_(payload[start:stop].clone().view(view.dtype).view(view.shape))
            start = stop
    if not layout.quantises:
        return
    slots = payload[layout.compressed_span].view(layout.compressed_shape)
    views, slots = _quantised(views, layout), slots[:, : layout.geometry.num_tokens]
    if cpu.supports(views, slots, layout.slot):
        cpu.decode_layers(slots, views, layout.slot, layout.quant_start, threads)
    else:
        backend = _gpu_or_reference(views, slots, layout.slot)
        backend.decode_layers(slots, views, layout.slot, layout.quant_start)


def _gpu_or_reference(
    views: KVViews, slots: torch.Tensor, slot: SlotLayout
) -> ModuleType:
    """Return the GPU backend where it can work on these tensors."""
    if slots.is_cpu or not _has_triton():
        return reference
    # Triton is optional, and takes long to import.
    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu

    return gpu if gpu.supports(views, slots, slot) else reference


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def _select(views: KVViews, layers: slice) -> list[torch.Tensor]:
    """Return those layers of keys, and of values where there are any."""
    return [view[layers] for view in views if view is not None]


def _quantised(views: KVViews, layout: PayloadLayout) -> KVViews:
    """Return the compressed layers of both views."""
    keys, values = views
    layers = slice(layout.quant_start, layout.quant_end)
    return keys[layers], None if values is None else values[layers]
