# SPDX-License-Identifier: Apache-2.0
"""Compare CPU codecs: ``python -m benchmarks.turboquant.cpu``.

Every codec is checked before it is timed. Results go to ``results/cpu.csv``,
with their provenance, and ``results/cpu.md``.
"""

# Standard
from pathlib import Path
from tempfile import TemporaryDirectory
import csv
import json
import sys

# Third Party
import pytest

# First Party
from benchmarks.turboquant.cpu import report
from benchmarks.turboquant.cpu.codecs import SHAPE
from benchmarks.turboquant.provenance import provenance

_FOLDER = Path(__file__).parent
_RESULTS = _FOLDER.parent / "results"
_PACKAGES = ("torch", "numpy", "numba", "llvmlite", "lmcache", "tqai")


def main(arguments: list[str]) -> int:
    """Run the benchmarks and write the results.

    Args:
        arguments: More arguments for pytest, such as ``--benchmark-max-time=5``.

    Returns:
        Exit status: 1 if a codec failed its check.
    """
    origin = provenance(*_PACKAGES)
    with TemporaryDirectory() as folder:
        measurements = Path(folder) / "measurements.json"
        status = pytest.main(
            [
                str(_FOLDER / "bench_codecs.py"),
                "--override-ini=python_files=bench_*.py",
                f"--benchmark-json={measurements}",
                "--benchmark-disable-gc",
                "--benchmark-warmup=on",
                "--benchmark-min-rounds=5",
                "--benchmark-sort=name",
                *arguments,
            ]
        )
        if status != pytest.ExitCode.OK:
            return 1
        measured = json.loads(measurements.read_text())["benchmarks"]
    rows = [report.row_of(entry) for entry in measured]
    _write(rows, origin)
    return 0


def _write(rows: list[report.Row], origin: dict[str, str]) -> None:
    """Write and print the results."""
    _RESULTS.mkdir(exist_ok=True)
    with open(_RESULTS / "cpu.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*report.Row._fields, *origin])
        writer.writeheader()
        writer.writerows(row._asdict() | origin for row in rows)
    text = "\n".join(
        [
            f"KV tensor {list(SHAPE)} bfloat16, no layer skipped; medians.",
            ", ".join(f"{key} {value}" for key, value in origin.items()) + ".",
            "",
            report.table(rows),
            "",
            *report.targets(rows),
            "",
        ]
    )
    (_RESULTS / "cpu.md").write_text(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
