# SPDX-License-Identifier: Apache-2.0
"""What theory says of the error of calibrated keys, and how it is measured."""

# Third Party
import torch

DISTORTION = {2: 0.11748, 3: 0.03455, 4: 0.009501}
"""Mean squared error of the Lloyd-Max quantiser of N(0, 1).

Coordinates of a unit vector of few dimensions have shorter tails: up to 6% less of
128, and 9% of 64.
"""


def error(restored: torch.Tensor, exact: torch.Tensor) -> float:
    """Squared error over the power of ``exact``."""
    difference = (restored - exact).square().sum()
    return float(difference / exact.square().sum())
