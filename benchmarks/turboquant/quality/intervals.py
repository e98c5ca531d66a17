# SPDX-License-Identifier: Apache-2.0
"""Means with confidence intervals."""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass

# Third Party
from scipy.stats import binomtest, bootstrap
import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 2000
_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A mean and the bounds of its confidence interval.

    Attributes:
        value: The mean.
        low: Lower bound.
        high: Upper bound.
    """

    value: float
    low: float
    high: float


def mean(numbers: Sequence[float]) -> Estimate:
    """Estimate a mean over windows by the percentile bootstrap.

    Args:
        numbers: One for each window.

    Returns:
        The mean; without bounds (NaN) for a single window.

    Raises:
        ValueError: If there is no number.
    """
    if len(numbers) == 0:
        raise ValueError("expected at least one window, got none")
    if len(numbers) == 1:
        return Estimate(float(numbers[0]), float("nan"), float("nan"))
    found = bootstrap(
        (np.asarray(numbers, dtype=np.float64),),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    )
    low, high = found.confidence_interval
    return Estimate(float(np.mean(numbers)), float(low), float(high))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Estimate the ratio of two means over the same windows, window by window.

    Args:
        numerators: One for each window.
        denominators: As many.

    Returns:
        The ratio; without bounds (NaN) for a single window.

    Raises:
        ValueError: If the numbers of windows differ, or there is none.
    """
    pair = np.asarray([numerators, denominators], dtype=np.float64)
    if pair.shape[1] == 0:
        raise ValueError("expected at least one window, got none")

    def statistic(
        over: np.ndarray, under: np.ndarray, axis: int = -1
    ) -> np.ndarray | float:
        return over.mean(axis=axis) / under.mean(axis=axis)

    value = float(statistic(*pair))
    if pair.shape[1] == 1:
        return Estimate(value, float("nan"), float("nan"))
    found = bootstrap(
        tuple(pair),
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        paired=True,
        vectorized=True,
        rng=np.random.default_rng(_SEED),
    )
    low, high = found.confidence_interval
    return Estimate(value, float(low), float(high))


def share(right: int, asked: int) -> Estimate:
    """Estimate a share of right answers, with Wilson's interval.

    Args:
        right: Right answers.
        asked: Questions, at least one.

    Returns:
        The share.
    """
    interval = binomtest(right, asked).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(right / asked, float(interval.low), float(interval.high))
