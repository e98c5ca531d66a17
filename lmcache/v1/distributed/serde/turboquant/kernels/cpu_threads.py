# SPDX-License-Identifier: Apache-2.0
"""The threads that work of the CPU backend is dealt out to."""

# Standard
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache
import os

SHARES_PER_THREAD = 4
"""Work is dealt out in shares, so that a thread held up does not hold up all."""


def share_out(total: int, threads: int, *, unit: int, least: int) -> list[range]:
    """Divide items among threads.

    Args:
        total: Number of items.
        threads: Threads that will work; one gets everything.
        unit: Every share but the last is a multiple of it.
        least: Fewest items of a share, as fewer take less time than handing them
            to a thread.

    Returns:
        The shares, in order.
    """
    shares = 1 if threads == 1 else threads * SHARES_PER_THREAD
    step = max(-(-total // shares), least)
    step = -(-step // unit) * unit
    return [range(first, min(first + step, total)) for first in range(0, total, step)]


def run(jobs: list[Callable[[], object]], threads: int) -> None:
    """Do all jobs, in this thread and in those that operations share.

    Args:
        jobs: What to do, in any order.
        threads: Threads to work with: this one, and one less that all operations
            with that number share.
    """
    if threads == 1 or len(jobs) < 2:
        _work_off(iter(jobs))
        return
    # Taking from an iterator of a list is atomic.
    queue = iter(jobs)
    helpers = min(threads, len(jobs)) - 1
    results = [_pool(threads - 1).submit(_work_off, queue) for _ in range(helpers)]
    try:
        _work_off(queue)
    finally:
        wait(results)
    for result in results:
        result.result()


def _work_off(queue: Iterator[Callable[[], object]]) -> None:
    """Do jobs until none is left."""
    for job in queue:
        job()


@lru_cache(maxsize=8)
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of so many threads; making one takes half a millisecond."""
    return ThreadPoolExecutor(threads, "turboquant-cpu")


# A forked process inherits the pools, but not their threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
