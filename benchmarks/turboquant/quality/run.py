# SPDX-License-Identifier: Apache-2.0
"""Runs a plan on a model: every scheme, every condition, every window and question."""

# Standard
from dataclasses import dataclass

# First Party
from benchmarks.turboquant.quality.bench import Bench, Retrieved
from benchmarks.turboquant.quality.laboratory import Measurement
from benchmarks.turboquant.quality.schemes import Scheme
from benchmarks.turboquant.quality.tasks import tasks
from benchmarks.turboquant.quality.workers import perform_all


@dataclass(frozen=True)
class Results:
    """What a run measured.

    Attributes:
        schemes: What was compared, in order.
        measurements: One for each scheme, condition and window.
        retrieved: One for each scheme, condition and question.
    """

    schemes: list[Scheme]
    measurements: list[Measurement]
    retrieved: list[Retrieved]


def run(bench: Bench, workers: int = 1) -> Results:
    """Measure everything that a bench's plan asks for.

    Args:
        bench: What to measure with.
        workers: How many processes measure.

    Returns:
        The results.

    Raises:
        ValueError: If the texts are too short, or the model cannot be measured.
        BrokenProcessPool: If a worker could not start or was killed.
    """
    wanted = tasks(bench.setup.plan, bench.setup.texts)
    performed = perform_all(bench, wanted, workers)
    found = [each for findings in performed for each in findings]
    return Results(
        schemes=bench.schemes,
        measurements=[each for each in found if isinstance(each, Measurement)],
        retrieved=[each for each in found if isinstance(each, Retrieved)],
    )
