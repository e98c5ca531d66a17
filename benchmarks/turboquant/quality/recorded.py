# SPDX-License-Identifier: Apache-2.0
"""A run that was written to files, read again."""

# Standard
from dataclasses import dataclass
from pathlib import Path
import csv

# First Party
from benchmarks.turboquant.quality.intervals import Estimate
from benchmarks.turboquant.quality.options import RESULTS
from benchmarks.turboquant.quality.schemes import CALIBRATED_SUFFIXES, EFFORTS


@dataclass(frozen=True)
class Row:
    """A scheme under a condition.

    Attributes:
        name: The scheme with its settings.
        condition: Name of the condition.
        windows: How many windows there were.
        bits: Stored bits an element.
        ratio: Raw bytes over stored bytes.
        agreement: Share of next tokens that stay the exact cache's.
        divergence: From the exact cache's predictions, in nats.
    """

    name: str
    condition: str
    windows: int
    bits: float
    ratio: float
    agreement: float
    divergence: Estimate

    @property
    def scheme(self) -> str:
        """The scheme without its settings."""
        return self.name.split(", ")[0]

    @property
    def setting(self) -> str:
        """Its settings; empty where all have their defaults."""
        return self.name.removeprefix(self.scheme).removeprefix(", ")

    @property
    def preset(self) -> str:
        """The turboquant preset; empty for others."""
        return self.scheme if self.scheme.startswith("turboquant_") else ""

    @property
    def is_calibrated(self) -> bool:
        """Whether the preset adapts to each chunk."""
        return self.scheme.endswith(CALIBRATED_SUFFIXES)

    @property
    def is_default(self) -> bool:
        """Whether effort is the default one and no layer is raw."""
        return self.setting in ("", EFFORTS[0])


class Recorded:
    """A run's files.

    Args:
        stem: What their names begin with.
        folder: Where they are.

    Raises:
        OSError: If a file cannot be read.
    """

    def __init__(self, stem: str, folder: Path = RESULTS) -> None:
        self.stem = stem
        self.plot = folder / f"{stem}.svg"
        summaries = _read(folder / f"{stem}.csv")
        self.model = summaries[0]["model"]
        self.plan = summaries[0]["plan"]
        self.conditions = list(dict.fromkeys(row["condition"] for row in summaries))
        rows = map(_row, summaries)
        self._rows = {(row.name, row.condition): row for row in rows}
        self._windows = _read(folder / f"{stem}-windows.csv")

    def rows(self, condition: str) -> list[Row]:
        """Return every scheme under a condition, in the order of the run."""
        return [row for row in self._rows.values() if row.condition == condition]

    def row(self, name: str, condition: str) -> Row:
        """Return one scheme, named with its settings, under a condition.

        Raises:
            ValueError: If the run does not have it.
        """
        if (name, condition) not in self._rows:
            raise ValueError(f"expected {name!r} under {condition!r} in the run")
        return self._rows[name, condition]

    def divergences(self, scheme: str, condition: str) -> list[float]:
        """Return a scheme's divergence window by window, all settings at defaults.

        Raises:
            ValueError: If the run does not have it.
        """
        names = {row.name for row in self.rows(condition) if row.is_default}
        found = [
            float(row["divergence"])
            for row in self._windows
            if row["condition"] == condition
            and row["scheme"] in names
            and row["scheme"].split(", ")[0] == scheme
        ]
        if not found:
            raise ValueError(f"expected {scheme!r} under {condition!r} in the run")
        return found


def _row(cells: dict[str, str]) -> Row:
    """Read a row of the summaries."""
    bounds = ("divergence", "divergence_low", "divergence_high")
    return Row(
        name=cells["scheme"],
        condition=cells["condition"],
        windows=int(cells["windows"]),
        bits=float(cells["bits"]),
        ratio=float(cells["ratio"]),
        agreement=float(cells["agreement"]),
        divergence=Estimate(*(float(cells[name]) for name in bounds)),
    )


def _read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
