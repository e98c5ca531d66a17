# SPDX-License-Identifier: Apache-2.0
"""Puts a run's results into the README and the operators' guide.

``python -m benchmarks.turboquant.quality.guide [STEM]``, after a run on the default
model; STEM is what the names of its files begin with, ``quality`` unless given.
"""

# Standard
from collections.abc import Iterable
from pathlib import Path
import argparse
import csv
import io
import re
import sys

# First Party
from benchmarks.turboquant.provenance import REPOSITORY
from benchmarks.turboquant.quality import intervals
from benchmarks.turboquant.quality.conditions import PLAIN, representative
from benchmarks.turboquant.quality.markdown import table
from benchmarks.turboquant.quality.options import RESULTS
from benchmarks.turboquant.quality.plot import draw
from benchmarks.turboquant.quality.recorded import Recorded, Row
from benchmarks.turboquant.quality.schemes import EFFORTS, NO_SERDE
from benchmarks.turboquant.quality.targets import TARGETS

README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs/source/mp"
_BEGIN = "<!-- written by benchmarks.turboquant.quality.guide: begin -->"
_END = "<!-- written by benchmarks.turboquant.quality.guide: end -->"


def documents(run: Recorded) -> dict[Path, str]:
    """Say what the documents hold that show a run.

    Args:
        run: The run.

    Returns:
        The whole text of each file.

    Raises:
        OSError: If a file of the run, or the README, cannot be read.
        ValueError: If the README has no place for it, or a scheme is missing.
    """
    guide = DOCS / "turboquant-quality"
    return {
        guide.with_suffix(".svg"): run.plot.read_text("utf-8"),
        guide.with_suffix(".csv"): _csv(presets(run)),
        Path(f"{guide}-settings.csv"): _csv(settings(run)),
        Path(f"{guide}-targets.csv"): _csv(targets(run)),
        README: _with_block(README.read_text("utf-8"), _readme_block(run)),
    }


def documented_stem() -> str:
    """Name the run that the README shows.

    Raises:
        OSError: If the README cannot be read.
        ValueError: If it shows none.
    """
    text = README.read_text("utf-8")
    found = re.search(r"results/(quality[\w-]*)\.svg", text)
    if found is None:
        raise ValueError(f"expected the plot of a run in {README}, got none")
    return found.group(1)


def presets(run: Recorded) -> list[list[str]]:
    """What an operator compares presets by: the default of every other setting.

    Args:
        run: The run.

    Returns:
        Rows of cells, the heading first.
    """
    return [
        ["Scheme", "Ratio", "Same next token %", *_divergence_heading(run)],
        *(
            [
                row.scheme,
                f"{row.ratio:.2f}",
                f"{100 * row.agreement:.1f}",
                *_divergences(run, row),
            ]
            for row in run.rows(PLAIN.name)
            if row.is_default
        ),
    ]


def settings(run: Recorded) -> list[list[str]]:
    """What ``effort`` and raw outer layers change, preset by preset.

    Args:
        run: The run.

    Returns:
        Rows of cells, the heading first.
    """
    return [
        ["Preset", "Setting", "Ratio", *_divergence_heading(run)],
        *(
            [
                row.preset,
                row.setting or EFFORTS[0],
                f"{row.ratio:.2f}",
                *_divergences(run, row),
            ]
            for row in run.rows(PLAIN.name)
            if row.preset
        ),
    ]


def targets(run: Recorded) -> list[list[str]]:
    """How many times as much a preset diverges as the scheme it should not exceed.

    Args:
        run: The run.

    Returns:
        Rows of cells, the heading first; empty where nothing was aimed at.
    """
    compared = [["Preset", "Should not exceed", *run.conditions]]
    for target in TARGETS:
        row = [target.scheme, target.rival]
        for condition in run.conditions:
            if condition == PLAIN.name and not target.plain:
                row.append("")
                continue
            ratio = intervals.ratio(
                run.divergences(target.scheme, condition),
                run.divergences(target.rival, condition),
            ).value
            row.append(f"{ratio:.2g}" if ratio <= 1 else f"{ratio:.2g}, not met")
        compared.append(row)
    return compared


def _readme_block(run: Recorded) -> str:
    """The plot, a short table and what the run does not show as it should."""
    shown = representative(run.conditions)
    plain = run.rows(PLAIN.name)
    rows = [
        [row.scheme, f"{row.bits:.2f}", *_divergences(run, row, shown)]
        for row in plain
        if row.is_default and row.scheme != NO_SERDE
    ]
    path = (RESULTS / run.stem).relative_to(REPOSITORY)
    biased = run.rows(shown[-1])[0].windows
    origin = (
        f"{run.model}, plan `{run.plan}`: {plain[0].windows} windows of text under "
        f"plain keys, {biased} under a bias.\n"
        f"Every scheme and measure is in [benchmarks/turboquant/results]({path}.md)."
    )
    return "\n\n".join(
        [
            f"![Stored bits an element against KL]({path}.svg)",
            table(["KL, nats", "bits", *shown], rows),
            origin,
            _unmet(targets(run)),
        ]
    )


def _unmet(compared: list[list[str]]) -> str:
    """List the targets that are not met."""
    conditions = compared[0][2:]
    lines = [
        f"- {scheme} against {rival}, {condition}: {cell.split(',')[0]} times"
        for scheme, rival, *cells in compared[1:]
        for condition, cell in zip(conditions, cells, strict=True)
        if "not met" in cell
    ]
    asked = sum(bool(cell) for row in compared[1:] for cell in row[2:])
    return "\n".join(
        [
            f"Of {asked} comparisons that the calibrated presets should win, they lose "
            f"{len(lines)}:\n",
            *lines,
        ]
    )


def _divergence_heading(run: Recorded) -> list[str]:
    return [f"KL, {condition}" for condition in run.conditions]


def _divergences(
    run: Recorded, row: Row, conditions: Iterable[str] | None = None
) -> list[str]:
    """Write a scheme's divergence under each condition."""
    return [
        f"{run.row(row.name, condition).divergence.value:.4f}"
        for condition in conditions or run.conditions
    ]


def _csv(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _with_block(text: str, block: str) -> str:
    """Put a block between its marks."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"expected {_BEGIN} and {_END} in {README}")
    return f"{before}{_BEGIN}\n\n{block}\n\n{_END}{after}"


def main() -> int:
    """Draw the run's plot again and write the documents.

    Returns:
        Exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stem", nargs="?", default="quality")
    run = Recorded(parser.parse_args().stem)
    draw(run, run.plot)
    for path, text in documents(run).items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
