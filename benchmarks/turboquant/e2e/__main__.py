# SPDX-License-Identifier: Apache-2.0
"""The same KV through LMCache to L2 and back: ``python -m benchmarks.turboquant.e2e``.

Every serde is checked over every store before it is timed there. Results go to
``results/e2e.csv``, with their provenance, ``results/e2e.md`` and ``results/e2e.svg``;
those of a host with a GPU to ``e2e-gpu.csv`` and so on.
"""

# Standard
from argparse import ArgumentParser, Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
import csv
import json
import os
import subprocess
import sys

# Third Party
import torch

# First Party
from benchmarks.turboquant.e2e import plot, report
from benchmarks.turboquant.e2e.measure import Row
from benchmarks.turboquant.e2e.schemes import SCHEMES, Scheme
from benchmarks.turboquant.e2e.stores import Store, running_stores
from benchmarks.turboquant.provenance import REPOSITORY, provenance

_RESULTS = REPOSITORY / "benchmarks/turboquant/results"
_EXAMPLE = REPOSITORY / "examples/serde/turboquant"
_PACKAGES = ("torch", "numpy", "numba", "lmcache")
_SHAPE = (2, 32, 256, 1024)
_LEAST_REPETITIONS = 2


def main(arguments: list[str] | None = None) -> int:
    """Measure everything and write the results.

    Args:
        arguments: Command line without the program's name; None takes the process's.

    Returns:
        Exit status.
    """
    options = _options(arguments)
    origin = provenance(*_PACKAGES) | {"gpu": _gpu() or "none"}
    has_upstream = bool(options.pristine and _gpu())
    schemes = [each for each in SCHEMES if has_upstream or not each.needs_pristine]
    rows: list[Row] = []
    with TemporaryDirectory(prefix="lmcache-e2e-", dir=options.folder) as folder:
        with running_stores(Path(folder)) as stores:
            for scheme in schemes:
                print(f"{scheme.name}:", *(store.name for store in stores))
                rows += _run(scheme, stores, options)
                # All serdes of a store stand together.
                order = [store.name for store in stores]
                rows.sort(key=lambda row: order.index(row.store))
                # What is measured is kept, whatever becomes of the next one.
                text = _write(rows, origin, options)
    print(text)
    return 0


def _options(arguments: list[str] | None) -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(prog="benchmarks.turboquant.e2e", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--objects", type=int, default=4, metavar="N")
    parser.add_argument(
        "--folder", type=Path, help="where the stores keep their data, a disk to test"
    )
    parser.add_argument(
        "--pristine",
        type=Path,
        help="folder with lmcache/ of the pristine 0.5.6 wheel, whose turboquant is "
        "then measured too where there is a GPU",
    )
    parser.add_argument("--results", type=Path, default=_RESULTS)
    options = parser.parse_args(arguments)
    if options.repetitions < _LEAST_REPETITIONS:
        parser.error(f"--repetitions must be at least 2, got {options.repetitions}")
    if options.objects < 1:
        parser.error(f"--objects must be at least 1, got {options.objects}")
    return options


def _run(scheme: Scheme, stores: list[Store], options: Namespace) -> list[Row]:
    """Measure a scheme in a process of its own."""
    request = {
        "scheme": scheme.name,
        "stores": stores,
        "objects": options.objects,
        "shape": _SHAPE,
        "repetitions": options.repetitions,
    }
    paths = [options.pristine] if scheme.needs_pristine else []
    paths += [REPOSITORY, _EXAMPLE, os.environ.get("PYTHONPATH", "")]
    environment = {"LMCACHE_LOG_LEVEL": "ERROR"} | os.environ
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, map(str, paths)))
    done = subprocess.run(
        [sys.executable, "-m", Row.__module__, json.dumps(request)],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    lines = (line for line in done.stdout.splitlines() if line.startswith("["))
    return [Row(*json.loads(line)) for line in lines]


def _gpu() -> str:
    """Name the accelerator; empty where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _write(rows: list[Row], origin: dict[str, str], options: Namespace) -> str:
    """Write the results; return the report."""
    options.results.mkdir(parents=True, exist_ok=True)
    has_gpu = origin["gpu"] != "none"
    stem = options.results / ("e2e-gpu" if has_gpu else "e2e")
    with open(f"{stem}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*Row._fields, *origin])
        writer.writeheader()
        writer.writerows(row._asdict() | origin for row in rows)
    measured = {row.scheme for row in rows}
    missing = [scheme for scheme in SCHEMES if scheme.name not in measured]
    text = "\n".join(
        [
            f"{options.objects} KV objects {list(_SHAPE)} bfloat16, "
            f"{rows[0].raw_bytes / 1e6:.1f} MB, in one task; no layer skipped. Medians "
            "and interquartile ranges. CPU time is that of LMCache's process, without "
            "the Redis server's, which writes to disk before it answers.",
            ", ".join(f"{key} {value}" for key, value in origin.items()) + ".",
            "",
            report.table(rows, missing),
            "",
            *report.targets(rows, has_gpu),
            "",
        ]
    )
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    plot.draw(rows, stem.with_suffix(".svg"))
    return text


if __name__ == "__main__":
    sys.exit(main())
