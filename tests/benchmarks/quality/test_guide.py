# SPDX-License-Identifier: Apache-2.0
"""The guide shows the results that are in the repository."""

# Standard
import csv

# First Party
from benchmarks.turboquant.quality.guide import PLOT, RESULTS, TABLE, table


def test_the_guide_has_the_table_and_the_plot_of_the_last_run() -> None:
    with open(TABLE, newline="") as file:
        written = list(csv.reader(file))
    assert written == table(RESULTS / "quality.csv")
    assert len(written) > 1 and all(len(row) == len(written[0]) for row in written)
    assert PLOT.read_bytes() == (RESULTS / "quality.svg").read_bytes()
