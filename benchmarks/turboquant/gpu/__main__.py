# SPDX-License-Identifier: Apache-2.0
"""Compare codecs on a GPU: ``python -m benchmarks.turboquant.gpu [PRISTINE]``.

PRISTINE is a folder that holds ``lmcache/`` of the pristine 0.5.6 wheel; without it
that codec is left out, and the report says so. Every codec is checked before it is
timed. Writes ``gpu.csv``, ``gpu_ceilings.csv`` and ``gpu_interference.csv``.
"""

# Standard
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
import argparse
import csv
import json
import os
import subprocess
import sys

# Third Party
import torch

# First Party
from benchmarks.turboquant.gpu.ceilings import ceilings, kernel_rows
from benchmarks.turboquant.gpu.codecs import FORK, FP8, UPSTREAM
from benchmarks.turboquant.gpu.interference import slowdowns
from benchmarks.turboquant.provenance import REPOSITORY, provenance

_RESULTS = REPOSITORY / "benchmarks/turboquant/results"
_PACKAGES = ("torch", "triton", "lmcache")


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pristine", type=Path, nargs="?")
    parser.add_argument("--results", type=Path, default=_RESULTS)
    options = parser.parse_args()
    origin = provenance(*_PACKAGES) | _gpu()
    limits = ceilings()
    rows = kernel_rows()
    with TemporaryDirectory() as folder:
        output = Path(folder) / "rows"
        _run(FORK, output, [])
        _run(FP8, output, [])
        if options.pristine is not None:
            _run(UPSTREAM, output, [str(options.pristine)])
        rows += [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    limits |= ceilings()
    _write(options.results / "gpu.csv", rows, origin)
    _write(options.results / "gpu_ceilings.csv", [limits], origin)
    _write(options.results / "gpu_interference.csv", slowdowns(), origin)


def _run(codec: str, output: Path, path: list[str]) -> None:
    """Measure a codec in a process of its own."""
    paths = [*path, str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    module = "benchmarks.turboquant.gpu.measure"
    subprocess.run(
        [sys.executable, "-m", module, codec, str(output)], env=environment, check=True
    )


def _gpu() -> dict[str, str]:
    """Name the GPU and its driver's CUDA version."""
    return {
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda or "",
    }


def _write(path: Path, rows: list[dict[str, Any]], origin: dict[str, str]) -> None:
    """Write rows with their provenance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *origin])
        writer.writeheader()
        writer.writerows(row | origin for row in rows)


if __name__ == "__main__":
    main()
