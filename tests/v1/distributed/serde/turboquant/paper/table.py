# SPDX-License-Identifier: Apache-2.0
"""Results as Markdown."""

# Standard
from collections.abc import Iterable
import math

# First Party
from tests.v1.distributed.serde.turboquant.paper.checks import Check
from tests.v1.distributed.serde.turboquant.paper.result import Result

_HEADINGS = (
    "claim",
    "source",
    "setting",
    "subject",
    "bits or preset",
    "expected",
    "measured",
    "bounds",
    "verdict",
)


def results_table(found: dict[Check, dict[str, list[Result]]]) -> str:
    """Lay out results: a row holds those that differ in bits or preset only.

    Args:
        found: Results by check and subject. Subjects that agree to the last digit
            share a row.

    Returns:
        A Markdown table.
    """
    rows: dict[tuple[Result, ...], list[str]] = {}
    for by_subject in found.values():
        for subject, results in by_subject.items():
            for claim in dict.fromkeys(map(_claim, results)):
                group = tuple(x for x in results if _claim(x) == claim)
                rows.setdefault(group, []).append(subject)
    lines = [_row(_HEADINGS), _row(["---"] * len(_HEADINGS))]
    lines += [_results_row(group, subjects) for group, subjects in rows.items()]
    return "\n".join(lines)


def mutants_table(found: dict[Check, dict[str, list[Result]]]) -> str:
    """Lay out how many results of each check a mutant fails.

    Args:
        found: Results by check and mutant.

    Returns:
        A Markdown table.
    """
    lines = [_row(["check", "mutants, and the results that reject them"])]
    lines.append(_row(["---"] * 2))
    for check, by_mutant in found.items():
        counts = [
            f"{mutant} {sum(not x.holds for x in results)}/{len(results)}"
            for mutant, results in by_mutant.items()
        ]
        lines.append(_row([f"`{check.name}`", ", ".join(counts)]))
    return "\n".join(lines)


def _claim(result: Result) -> tuple[str, str, str]:
    """What results of one row have in common."""
    return result.claim, result.source, result.setting


def _results_row(group: tuple[Result, ...], subjects: list[str]) -> str:
    """Write one row."""
    holds = [x.holds for x in group]
    cells = [
        *_claim(group[0]),
        ", ".join(subjects),
        _listed(x.case for x in group),
        _listed(_number(x.expected) for x in group),
        _listed(_number(x.measured) for x in group),
        _listed(f"{_number(x.low)} to {_number(x.high)}" for x in group),
        "holds" if all(holds) else f"FAILS ({holds.count(False)} of {len(holds)})",
    ]
    return _row(cells)


def _listed(cells: Iterable[str]) -> str:
    """List the cells of several results in one."""
    return "; ".join(cells)


def _number(number: float) -> str:
    """Write a number with four digits."""
    if math.isinf(number):
        return "any"
    return "0" if abs(number) < 1e-6 else f"{number:.4g}"


def _row(cells: Iterable[str]) -> str:
    """Write one line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
