# SPDX-License-Identifier: Apache-2.0
"""What the calibrated presets are meant to reach, and whether a run shows it."""

# Standard
from collections.abc import Iterator
from dataclasses import dataclass

# First Party
from benchmarks.turboquant.quality import intervals
from benchmarks.turboquant.quality.conditions import PLAIN
from benchmarks.turboquant.quality.run import Results
from benchmarks.turboquant.quality.schemes import FP8, Scheme
from benchmarks.turboquant.quality.summary import of


@dataclass(frozen=True)
class Target:
    """A scheme that must not diverge more than another.

    Attributes:
        scheme: Preset of the one.
        rival: Preset or name of the other.
        plain: Whether it holds under plain keys too, or under a bias alone.
    """

    scheme: str
    rival: str
    plain: bool = True


TARGETS = (
    Target("turboquant_4bit_cc", FP8),
    Target("turboquant_3bit_cc", "turboquant_4bit_nc"),
    Target("turboquant_2bit_cc", "turboquant_3bit_nc"),
    Target("turboquant_2bit_cc", "turboquant_4bit_nc", plain=False),
)


def verdicts(results: Results) -> Iterator[str]:
    """Say of each target of this run's schemes whether it is met.

    Args:
        results: What was measured.

    Yields:
        Lines of a Markdown list; none where a scheme of a target is missing.
    """
    conditions = dict.fromkeys(each.condition for each in results.measurements)
    for target in TARGETS:
        scheme = _first(results, target.scheme)
        rival = _first(results, target.rival)
        if scheme is None or rival is None:
            continue
        for condition in conditions:
            if target.plain or condition != PLAIN.name:
                yield _verdict(results, scheme, rival, condition)


def _verdict(results: Results, scheme: Scheme, rival: Scheme, condition: str) -> str:
    """Compare two schemes window by window."""
    ours, theirs = (
        [each.divergence for each in of(results, name, condition)]
        for name in (scheme.name, rival.name)
    )
    found = intervals.ratio(ours, theirs)
    met = "met" if found.value <= 1 else "NOT MET"
    return (
        f"- {met}: {condition}: {scheme.name} diverges {found.value:.3g} times as much "
        f"as {rival.name} (95%: {found.low:.3g} to {found.high:.3g}; target: at most 1)"
    )


def _first(results: Results, name: str) -> Scheme | None:
    """Return the first scheme of a preset or name that keeps no layer raw."""
    for scheme in results.schemes:
        if name in (scheme.preset, scheme.name) and not scheme.skip_layers:
            return scheme
    return None
