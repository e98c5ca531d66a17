# SPDX-License-Identifier: Apache-2.0
"""The plot: time to prefetch by store and serde."""

# Standard
from collections.abc import Sequence
from pathlib import Path

# Third Party
from matplotlib import rc_context
from matplotlib.figure import Figure

# First Party
from benchmarks.turboquant.e2e.measure import Row


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw a group of bars for each store, a bar for each serde.

    Args:
        rows: What was measured.
        path: File to write; its suffix chooses the format.

    Raises:
        OSError: If the file cannot be written.
    """
    stores = list(dict.fromkeys(row.store for row in rows))
    schemes = list(dict.fromkeys(row.scheme for row in rows))
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    width = 0.85 / len(schemes)
    for index, scheme in enumerate(schemes):
        own = [row for row in rows if row.scheme == scheme]
        offset = (index - (len(schemes) - 1) / 2) * width
        axes.bar(
            [stores.index(row.store) + offset for row in own],
            [row.prefetch_ms for row in own],
            width,
            yerr=[row.prefetch_spread_ms / 2 for row in own],
            label=scheme,
        )
    axes.set_xticks(range(len(stores)), stores)
    axes.set(ylabel="prefetch, ms (lower is better)", yscale="log")
    axes.grid(visible=True, axis="y", which="both", alpha=0.25)
    axes.set_axisbelow(True)
    axes.legend(ncols=2)
    # Text stays text, and the same figures give the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "e2e"}):
        figure.savefig(path, metadata={"Date": None})
