# SPDX-License-Identifier: Apache-2.0
"""Performs tasks in this process, or in several at the same time."""

# Standard
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

# Third Party
from tqdm import tqdm

# First Party
from benchmarks.turboquant.quality.bench import Bench, Retrieved, Setup
from benchmarks.turboquant.quality.laboratory import Measurement
from benchmarks.turboquant.quality.tasks import Task

Finding = Measurement | Retrieved

_bench: Bench | None = None
"""A worker's own, from its start to its end."""


def perform_all(
    bench: Bench, tasks: Sequence[Task], workers: int
) -> list[Sequence[Finding]]:
    """Perform tasks; what is found does not depend on the number of workers.

    Args:
        bench: What to measure with; several workers load their own like it.
        tasks: What to measure.
        workers: How many processes measure; 1: this one.

    Returns:
        What each task found, in the order of the tasks.

    Raises:
        ValueError: If ``workers`` is less than 1, or a task cannot be measured.
        BrokenProcessPool: If a worker could not start or was killed.
    """
    if workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    if workers == 1:
        return [task.perform(bench) for task in tqdm(tasks, desc="tasks")]
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)),
        mp_context=get_context("spawn"),
        initializer=_load,
        initargs=(bench.setup,),
    )
    with pool:
        # The largest first: a small one at the end leaves the others less idle.
        ordered = sorted(tasks, key=lambda task: task.weight, reverse=True)
        futures = {id(task): pool.submit(_perform, task) for task in ordered}
        try:
            for done in tqdm(as_completed(futures.values()), "tasks", len(tasks)):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [futures[id(task)].result() for task in tasks]


def _load(setup: Setup) -> None:
    """Start a worker."""
    global _bench
    _bench = Bench(setup)


def _perform(task: Task) -> Sequence[Finding]:
    """Perform a task in a worker."""
    if _bench is None:
        raise RuntimeError("expected a worker that has loaded its bench, got none")
    return task.perform(_bench)
