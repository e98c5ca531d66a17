# SPDX-License-Identifier: Apache-2.0
"""What a check found: a measured number between two bounds."""

# Standard
from dataclasses import dataclass
from typing import NamedTuple
import math

# Third Party
import torch

SHARPNESS = 5
"""Standard errors that the expected number is inside its bounds, at least."""


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


def estimate(samples: torch.Tensor) -> Estimate:
    """Average independent samples.

    Args:
        samples: Numbers of any shape.

    Returns:
        Their mean and its standard error, in float64.
    """
    numbers = samples.double().flatten()
    error = float(numbers.std()) / math.sqrt(numbers.numel())
    return Estimate(float(numbers.mean()), error)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One number of the paper, as theory has it and as measured.

    Attributes:
        claim: What is claimed.
        source: Where the paper claims it.
        setting: Dimensions and input.
        case: Bits, or the preset.
        expected: The number by theory.
        measured: The number as measured.
        low: Least number that agrees with the claim.
        high: Greatest number that does.
        error: Standard error of ``measured``; 0 where nothing is sampled.
    """

    claim: str
    source: str
    setting: str
    case: str
    expected: float
    measured: float
    low: float = -math.inf
    high: float = math.inf
    error: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the measured number is within the bounds."""
        return self.low <= self.measured <= self.high

    @property
    def is_sharp(self) -> bool:
        """Whether a correct codec is safe from chance."""
        margin = min(self.expected - self.low, self.high - self.expected)
        return margin >= SHARPNESS * self.error


def around(expected: float, tolerance: float) -> dict[str, float]:
    """Bound a result to ``expected`` within a relative tolerance, on both sides."""
    return {
        "expected": expected,
        "low": expected * (1 - tolerance),
        "high": expected * (1 + tolerance),
    }


def beside(expected: float, distance: float) -> dict[str, float]:
    """Bound a result to ``expected`` within an absolute distance, on both sides."""
    return {
        "expected": expected,
        "low": expected - distance,
        "high": expected + distance,
    }
