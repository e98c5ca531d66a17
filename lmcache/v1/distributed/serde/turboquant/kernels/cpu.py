# SPDX-License-Identifier: Apache-2.0
"""The CPU backend: what ``reference`` specifies, at the speed of memory."""

# Standard
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache, partial
import os

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS, Effort
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_common import (
    estimate_common_errors,
    make_search,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_decode import decode_tiles
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_encode import encode_tiles
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    Constants,
    Plan,
    make_constants,
    make_plan,
    num_tiles,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.search import sample_step
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout, ValueField

_SHARES_PER_THREAD = 4
"""Work is dealt out in shares, so that a thread held up does not hold up all."""

_TILES_PER_SHARE = 64
"""At least; fewer take less time than handing them to a thread."""


def supports(views: KVViews, slots: torch.Tensor, slot: SlotLayout) -> bool:
    """Return whether the kernels can work on these tensors.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        slot: Byte layout of a slot.

    Returns:
        False where ``reference`` has to do the work: on accelerators, on keys
        without values of their width, and on vectors whose elements are apart.
    """
    keys, values = views
    return (
        keys.device.type == slots.device.type == "cpu"
        and values is not None
        and isinstance(slot.value, ValueField)
        and slot.value.dim == slot.key.dim
        and values.stride() == keys.stride()
        and keys.stride(-1) == 1
        and slots.stride(1) == slots.shape[2] * slots.stride(2)
        and slots.stride(3) == 1
    )


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
    effort: Effort = EFFORTS["fast"],
) -> None:
    """Quantise layers into slots: the bytes of ``search.encode_layers``.

    Args:
        views: Keys and values that :func:`supports`.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        threads: Threads to work with: this one, or as many that all operations
            with that number share. The bytes do not depend on it.
        effort: What to try.
    """
    if not slots.numel():
        return
    num_layers, _, num_heads, _ = slots.shape
    plan = make_plan(views, slots, slot)
    search = make_search(effort, slot.key, plan.value_bits, num_layers, num_heads)
    source = _memory_of(views[0])
    if len(search.key_scales):
        constants = make_constants(slot.key, first_layer, first_layer + num_layers)
        step = sample_step(plan.num_tokens)
        estimate = partial(
            estimate_common_errors, source, plan, constants, search, step
        )
        _run([partial(estimate, i, i + 1) for i in range(num_layers)], threads)

    def encode(plan: Plan, constants: Constants, first: int, last: int) -> None:
        encode_tiles(source, payload, plan, constants, search, first, last)

    payload = _memory_of(slots)
    _run(_tile_jobs(encode, views, slots, slot, first_layer, threads), threads)


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
    work = partial(decode_tiles, _memory_of(slots), _memory_of(views[0]))
    _run(_tile_jobs(work, views, slots, slot, first_layer, threads), threads)


def _memory_of(tensor: torch.Tensor) -> np.ndarray:
    """View the storage that a tensor lies in as one array of bytes."""
    memory = torch.empty(0, dtype=torch.uint8)
    return memory.set_(tensor.untyped_storage()).numpy()


def _tile_jobs(
    work: Callable,
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    threads: int,
) -> list[Callable[[], object]]:
    """Share the tiles of some layers out among threads."""
    if not slots.numel():
        return []
    plan = make_plan(views, slots, slot)
    num_layers = slots.shape[0]
    constants = make_constants(slot.key, first_layer, first_layer + num_layers)
    tiles = num_tiles(plan) * num_layers
    shares = 1 if threads == 1 else threads * _SHARES_PER_THREAD
    step = max(-(-tiles // shares), _TILES_PER_SHARE)
    return [
        partial(work, plan, constants, first, min(first + step, tiles))
        for first in range(0, tiles, step)
    ]


def _run(jobs: list[Callable[[], object]], threads: int) -> None:
    """Do all jobs, in this thread or in those that operations share."""
    if threads == 1 or len(jobs) < 2:
        for job in jobs:
            job()
        return
    results = [_pool(threads).submit(job) for job in jobs]
    wait(results)
    for result in results:
        result.result()


@lru_cache(maxsize=8)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of so many threads; making one takes half a millisecond."""
    return ThreadPoolExecutor(threads, "turboquant-cpu")


# A forked process inherits the pools, but not their threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
