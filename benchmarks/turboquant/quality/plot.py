# SPDX-License-Identifier: Apache-2.0
"""The rate-distortion plot: bits an element against divergence."""

# Standard
from pathlib import Path

# Third Party
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# First Party
from benchmarks.turboquant.quality.conditions import representative
from benchmarks.turboquant.quality.recorded import Recorded, Row
from benchmarks.turboquant.quality.schemes import FP8, NO_SERDE, SKIPS

_FAMILIES = {
    "turboquant, calibrated": ("o-", "tab:green"),
    "turboquant": ("s-", "tab:blue"),
    "turboquant, fast": ("s-", "tab:blue"),
    "turboquant, balanced": ("s--", "tab:purple"),
    "turboquant, best": ("s-.", "tab:olive"),
    "turboquant, outer layers raw": ("s:", "tab:cyan"),
    "tqai": ("^-", "tab:orange"),
    "LMCache fp8": ("D", "tab:red"),
}


def draw(run: Recorded, path: Path) -> None:
    """Draw a panel of plain keys and one of each kind of bias.

    Args:
        run: What to draw.
        path: File to write; its suffix chooses the format.

    Raises:
        OSError: If the file cannot be written.
    """
    conditions = representative(run.conditions)
    figure = Figure(figsize=(5.5 * len(conditions), 5), layout="constrained")
    panels = figure.subplots(1, len(conditions), sharey=True, squeeze=False)[0]
    for panel, condition in zip(panels, conditions, strict=True):
        _panel(panel, condition, run.rows(condition))
    panels[0].set_ylabel("KL to the exact cache, nats")
    panels[0].legend()
    # Text stays text, and the same figures give the same file.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "quality"}):
        figure.savefig(path, metadata={"Date": None})


def _panel(panel: Axes, condition: str, rows: list[Row]) -> None:
    """Draw one condition, a line for each family of schemes."""
    for family, (style, colour) in _FAMILIES.items():
        points = sorted(
            ((each.bits, each.divergence) for each in rows if _family(each) == family),
            key=lambda point: (point[0], point[1].value),
        )
        if not points:
            continue
        bits = [x for x, _ in points]
        values = [y.value for _, y in points]
        bounds = [
            [y.value - y.low for _, y in points],
            [y.high - y.value for _, y in points],
        ]
        panel.errorbar(
            bits, values, bounds, fmt=style, color=colour, label=family, capsize=2
        )
    for each in rows:
        if _family(each) in _FAMILIES and each.preset:
            panel.annotate(
                each.preset.removeprefix("turboquant_"),
                (each.bits, each.divergence.value),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
            )
    panel.set(title=condition, xlabel="stored bits an element", yscale="log")
    panel.grid(visible=True, which="both", alpha=0.25)


def _family(row: Row) -> str:
    """Name the line that a scheme belongs to; empty for none."""
    if row.name in (NO_SERDE, FP8):
        return row.name
    if not row.preset:
        return "tqai"
    if row.setting.startswith(SKIPS):
        return "" if row.is_calibrated else "turboquant, outer layers raw"
    if row.is_calibrated:
        return "turboquant, calibrated"
    return f"turboquant, {row.setting}" if row.setting else "turboquant"
