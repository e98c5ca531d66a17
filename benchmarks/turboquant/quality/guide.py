# SPDX-License-Identifier: Apache-2.0
"""Puts results into the operators' guide.

``python -m benchmarks.turboquant.quality.guide``, after a run on the default model.
"""

# Standard
from pathlib import Path
import csv
import shutil
import sys

# First Party
from benchmarks.turboquant.provenance import REPOSITORY

RESULTS = REPOSITORY / "benchmarks/turboquant/results"
DOCS = REPOSITORY / "docs/source/mp"
TABLE = DOCS / "turboquant-quality.csv"
PLOT = DOCS / "turboquant-quality.svg"
_PLAIN = "plain"


def table(results: Path) -> list[list[str]]:
    """Choose what an operator compares presets by.

    Args:
        results: ``quality.csv`` of a run.

    Returns:
        Rows of cells, the heading first: a row for each scheme, a column of
        divergence for each condition.

    Raises:
        OSError: If the file cannot be read.
    """
    with open(results, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    divergence = {
        (row["scheme"], row["condition"]): f"{float(row['divergence']):.4f}"
        for row in rows
    }
    conditions = list(dict.fromkeys(row["condition"] for row in rows))
    heading = ["Scheme", "Ratio", "Same next token %"]
    heading += [f"KL, {condition}" for condition in conditions]
    body = [
        [
            row["scheme"],
            f"{float(row['ratio']):.2f}",
            f"{100 * float(row['agreement']):.1f}",
            *(divergence[row["scheme"], condition] for condition in conditions),
        ]
        for row in rows
        if row["condition"] == _PLAIN
    ]
    return [heading, *body]


def main() -> int:
    """Write the guide's table and copy its plot.

    Returns:
        Exit status.
    """
    with open(TABLE, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(table(RESULTS / "quality.csv"))
    shutil.copyfile(RESULTS / "quality.svg", PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
