# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: what ``reference`` specifies, at the speed of memory."""

# Standard
from collections.abc import Callable
from functools import partial

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_decode import decode_tiles
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_encode import encode_tiles
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    make_constants,
    make_plan,
    num_tiles,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_threads import (
    run,
    share_out,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout

_TILES_PER_SHARE = 64

_TILES_PER_PASS = 512
"""Tiles of which one field after the other is done: their slots stay in cache."""


def supports(views: KVViews, slots: torch.Tensor) -> bool:
    """Return whether the kernels can work on these tensors.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.

    Returns:
        False where ``reference`` has to do the work: on accelerators, and on
        vectors whose elements are apart.
    """
    return (
        all(view is None or view.is_cpu and view.stride(-1) == 1 for view in views)
        and slots.is_cpu
        and slots.stride(1) == slots.shape[2] * slots.stride(2)
        and slots.stride(3) == 1
    )


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
) -> None:
    """Quantise layers into slots: the bytes of ``reference.encode_layers``.

    Args:
        views: Keys and values that :func:`supports`.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        threads: Threads to work with, as in ``cpu_threads.run``. The bytes do not
            depend on it.
    """
    _run_on_tiles(encode_tiles, views, slots, slot, first_layer, threads)


def decode_layers(
    slots: torch.Tensor,
    views: KVViews,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
) -> None:
    """Restore layers from slots, as ``reference.decode_layers`` does.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys and values that :func:`supports`; every element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        threads: As in :func:`encode_layers`.
    """
    _run_on_tiles(decode_tiles, views, slots, slot, first_layer, threads)


def _run_on_tiles(
    kernel: Callable[..., None],
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
) -> None:
    """Run a kernel on every field of every tile."""
    if not slots.numel():
        return
    layers = range(first_layer, first_layer + slots.shape[0])
    payload = _memory_of(slots)
    works: list[Callable[..., None]] = []
    for view, (field, offset) in zip(views, slot.fields, strict=False):
        if view is None:
            raise ValueError(f"Expected two views for slots of {slot}, got one")
        plan = make_plan(view, slots, slot, field, offset)
        constants = make_constants(field, layers)
        works.append(partial(kernel, _memory_of(view), payload, plan, constants))
    tiles = num_tiles(plan) * len(layers)
    shares = share_out(tiles, threads, unit=1, least=_TILES_PER_SHARE)
    run([partial(_run_share, works, share) for share in shares], threads)


def _run_share(works: list[Callable[..., None]], share: range) -> None:
    """Do all works on a share of tiles, some tiles at a time."""
    for first in share[::_TILES_PER_PASS]:
        last = min(first + _TILES_PER_PASS, share.stop)
        for work in works:
            work(first, last)


def _memory_of(tensor: torch.Tensor) -> np.ndarray:
    """View the storage that a tensor lies in as one array of bytes."""
    memory = torch.empty(0, dtype=torch.uint8)
    return memory.set_(tensor.untyped_storage()).numpy()
