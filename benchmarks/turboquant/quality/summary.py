# SPDX-License-Identifier: Apache-2.0
"""Measurements of a run, one summary for each scheme under each condition."""

# Standard
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, fsum

# First Party
from benchmarks.turboquant.quality import intervals
from benchmarks.turboquant.quality.bench import Retrieved
from benchmarks.turboquant.quality.intervals import Estimate
from benchmarks.turboquant.quality.laboratory import Measurement
from benchmarks.turboquant.quality.run import Results
from benchmarks.turboquant.quality.schemes import Scheme

LAYER_ERRORS = {
    "key_error": lambda measured: measured.key_errors,
    "varying_key_error": lambda measured: measured.varying_key_errors,
    "value_error": lambda measured: measured.value_errors,
    "logit_error": lambda measured: measured.logit_errors,
    "output_error": lambda measured: measured.output_errors,
}
"""Errors by layer, by the names that reports use."""


@dataclass(frozen=True)
class Summary:
    """A scheme under a condition, over all windows.

    Attributes:
        scheme: The scheme.
        condition: Name of the condition.
        windows: How many windows there were.
        bits: Stored bits an element, frame included.
        ratio: Raw bytes over stored bytes.
        divergence: From the exact cache's predictions, in nats.
        surprise: Mean negative log likelihood of the continuations, in nats.
        agreement: Share of next tokens that stay the exact cache's.
        layer_errors: Errors by name and layer, means over the windows.
    """

    scheme: Scheme
    condition: str
    windows: int
    bits: float
    ratio: float
    divergence: Estimate
    surprise: Estimate
    agreement: Estimate
    layer_errors: dict[str, list[float]]

    @property
    def perplexity(self) -> Estimate:
        """Perplexity of the continuations."""
        number = self.surprise
        return Estimate(exp(number.value), exp(number.low), exp(number.high))

    def error(self, name: str) -> float:
        """Mean over layers of an error of ``LAYER_ERRORS``."""
        return _mean(self.layer_errors[name])


def summaries(results: Results) -> list[Summary]:
    """Summarise a run, conditions in order and schemes in each.

    Args:
        results: What was measured.

    Returns:
        The summaries.
    """
    conditions = dict.fromkeys(each.condition for each in results.measurements)
    return [
        _summary(scheme, condition, of(results, scheme.name, condition))
        for condition in conditions
        for scheme in results.schemes
    ]


def of(results: Results, scheme: str, condition: str) -> list[Measurement]:
    """Return a scheme's measurements under a condition, window by window."""
    return [
        measured
        for measured in results.measurements
        if (measured.scheme, measured.condition) == (scheme, condition)
    ]


def found(
    retrieved: Sequence[Retrieved], scheme: str, condition: str, task: str
) -> tuple[Estimate, float] | None:
    """Say how well numbers are found.

    Returns:
        The share of right answers, and the mean negative log likelihood of a right
        answer's tokens in nats; None where nothing was asked.
    """
    answers = [
        each
        for each in retrieved
        if (each.scheme, each.condition, each.task) == (scheme, condition, task)
    ]
    if not answers:
        return None
    right = sum(each.is_right for each in answers)
    share = intervals.share(right, len(answers))
    return share, _mean([each.surprise for each in answers])


def _summary(scheme: Scheme, condition: str, measured: list[Measurement]) -> Summary:
    def mean(field: Callable[[Measurement], float]) -> Estimate:
        return intervals.mean([field(each) for each in measured])

    return Summary(
        scheme=scheme,
        condition=condition,
        windows=len(measured),
        bits=_mean([each.bits for each in measured]),
        ratio=_mean([each.ratio for each in measured]),
        divergence=mean(lambda each: each.divergence),
        surprise=mean(lambda each: each.surprise),
        agreement=mean(lambda each: each.agreement),
        layer_errors={
            name: [_mean(layer) for layer in zip(*map(field, measured), strict=True)]
            for name, field in LAYER_ERRORS.items()
        },
    )


def _mean(numbers: Sequence[float]) -> float:
    return fsum(numbers) / len(numbers)
