# SPDX-License-Identifier: Apache-2.0
"""Time schemes over every store, in a process of its own.

Run as a program with the JSON of a request; prints a JSON line for each scheme and
store as soon as it is measured::

    python -m benchmarks.turboquant.e2e.measure REQUEST
"""

# Standard
from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import NamedTuple
import json
import os
import sys
import time
import warnings

# LMCache reads this when it is imported.
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

# Third Party
import torch

# First Party
from benchmarks.turboquant.e2e.gpu_time import kernel_time
from benchmarks.turboquant.e2e.schemes import Scheme, scheme_named
from benchmarks.turboquant.e2e.stores import Store
from kv_store import KVStore, LoadedChunks, StoredChunks
from storage_config import parse_l2_adapter

LEAST_ROUNDS = 2
"""A spread takes two."""


class Row(NamedTuple):
    """One scheme over one store; times in milliseconds, of all objects together.

    Attributes:
        rounds: How often objects were stored and prefetched.
        raw_bytes: Of the objects in L1.
        moved_bytes: Of the objects in L2.
        cosine: Between the objects and what was restored, the worst of them.
        store_ms: Median time from L1 to L2.
        store_spread_ms: Interquartile range.
        store_cpu_ms: Median time that LMCache's process computed meanwhile.
        store_gpu_ms: Time of the GPU's kernels meanwhile, in a round of its own over
            the first store; it does not depend on the store.
    """

    store: str
    gigabytes_per_second: float
    scheme: str
    rounds: int
    raw_bytes: int
    moved_bytes: int
    cosine: float
    store_ms: float
    store_spread_ms: float
    store_cpu_ms: float
    store_gpu_ms: float
    prefetch_ms: float
    prefetch_spread_ms: float
    prefetch_cpu_ms: float
    prefetch_gpu_ms: float


class Patience(NamedTuple):
    """How long to measure a row.

    Attributes:
        rounds: Most rounds that count.
        seconds: After which no further one starts, two being done.
    """

    rounds: int
    seconds: float


def measure_stores(
    scheme: Scheme,
    stores: Sequence[Store],
    objects: list[torch.Tensor],
    patience: Patience,
) -> Iterator[Row]:
    """Measure a scheme over one store after the other.

    Args:
        scheme: The serde.
        stores: Where to store.
        objects: KV of one shape and type.
        patience: How long to measure each row.

    Yields:
        A row for each store.

    Raises:
        RuntimeError: If a round trip does not keep what the scheme must keep.
    """
    kernel_ms: tuple[float, float] | None = None
    for store in stores:
        spec = store.spec | ({"serde": scheme.serde} if scheme.serde else {})
        adapter = parse_l2_adapter(json.dumps(spec))
        with KVStore(adapter, objects[0].shape, objects[0].dtype, len(objects)) as kv:
            stored, loaded = _round(kv, objects)
            cosine = _checked(scheme, objects, stored, loaded)
            rounds = _rounds(kv, objects, patience)
            kernel_ms = kernel_ms or _kernel_milliseconds(kv, objects)
        yield Row(
            store.name,
            store.gigabytes_per_second,
            scheme.name,
            len(rounds),
            sum(each.nbytes for each in objects),
            stored.num_bytes or 0,
            cosine,
            *_times([stored for stored, _ in rounds]),
            kernel_ms[0],
            *_times([loaded for _, loaded in rounds]),
            kernel_ms[1],
        )


def kv_objects(count: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Draw Gaussian bfloat16 objects."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).bfloat16() for _ in range(count)]


def _round(
    kv: KVStore, objects: list[torch.Tensor]
) -> tuple[StoredChunks, LoadedChunks]:
    """Store, prefetch and delete."""
    stored = kv.store(objects)
    loaded = kv.load(stored)
    kv.delete(stored)
    return stored, loaded


def _rounds(
    kv: KVStore, objects: list[torch.Tensor], patience: Patience
) -> list[tuple[StoredChunks, LoadedChunks]]:
    """Repeat rounds as often as patience allows."""
    deadline = time.perf_counter() + patience.seconds
    rounds: list[tuple[StoredChunks, LoadedChunks]] = []
    while len(rounds) < patience.rounds:
        if len(rounds) >= LEAST_ROUNDS and time.perf_counter() > deadline:
            break
        rounds.append(_round(kv, objects))
    return rounds


def _kernel_milliseconds(
    kv: KVStore, objects: list[torch.Tensor]
) -> tuple[float, float]:
    """Return how long the GPU's kernels run for a store and for a prefetch."""
    with kernel_time() as storing:
        stored = kv.store(objects)
    with kernel_time() as loading:
        kv.load(stored)
    kv.delete(stored)
    return round(storing.milliseconds, 3), round(loading.milliseconds, 3)


def _checked(
    scheme: Scheme,
    objects: list[torch.Tensor],
    stored: StoredChunks,
    loaded: LoadedChunks,
) -> float:
    """Return the worst object's cosine, or raise RuntimeError."""
    pairs = list(zip(objects, loaded.chunks, strict=True))
    if all(torch.equal(exact, restored) for exact, restored in pairs):
        cosine = 1.0
    else:
        # No rounding makes it the 1 of equal objects.
        cosine = min(0.99999, *(_cosine(*pair) for pair in pairs))
    if not cosine >= scheme.least_cosine:
        raise RuntimeError(f"{scheme.name} restored a cosine of {cosine}")
    raw_bytes = sum(each.nbytes for each in objects)
    if not stored.num_bytes or raw_bytes < scheme.least_ratio * stored.num_bytes:
        raise RuntimeError(
            f"{scheme.name} stored {raw_bytes} bytes in {stored.num_bytes}, expected "
            f"a ratio of {scheme.least_ratio}"
        )
    return round(cosine, 5)


def _cosine(exact: torch.Tensor, restored: torch.Tensor) -> float:
    first, second = exact.view(-1).double(), restored.view(-1).double()
    return float(first @ second / (first.norm() * second.norm()))


def _times(
    rounds: list[StoredChunks] | list[LoadedChunks],
) -> tuple[float, float, float]:
    """Return the median, its spread and the median of CPU time, in milliseconds."""
    seconds = [each.seconds for each in rounds]
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    cpu_seconds = median(each.cpu_seconds for each in rounds)
    times = median(seconds), high - low, cpu_seconds
    first, second, third = (round(1e3 * time, 2) for time in times)
    return first, second, third


def main() -> None:
    """Do what the command line's request says."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    request = json.loads(sys.argv[1])
    objects = kv_objects(request["objects"], tuple(request["shape"]))
    stores = [Store(*store) for store in request["stores"]]
    patience = Patience(*request["patience"])
    for name in request["schemes"]:
        for row in measure_stores(scheme_named(name), stores, objects, patience):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
