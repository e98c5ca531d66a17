# SPDX-License-Identifier: Apache-2.0
"""Whether a run shows that the calibrated presets reach their targets."""

# Standard
from collections.abc import Iterator

# First Party
from benchmarks.turboquant.quality import intervals
from benchmarks.turboquant.quality.conditions import PLAIN
from benchmarks.turboquant.quality.run import Results
from benchmarks.turboquant.quality.schemes import Scheme
from benchmarks.turboquant.quality.summary import of
from benchmarks.turboquant.quality.targets import TARGETS


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
