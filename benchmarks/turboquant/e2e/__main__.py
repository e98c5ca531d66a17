# SPDX-License-Identifier: Apache-2.0
"""The same KV through LMCache to L2 and back: ``python -m benchmarks.turboquant.e2e``.

Every serde is checked over every store before it is timed there. Results go to
``results/e2e.csv``, with their provenance, ``results/e2e.md`` and ``results/e2e.svg``;
those of a host with a GPU to ``e2e-gpu.csv`` and so on.
"""

# Standard
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
import csv
import json
import os
import subprocess
import sys
import time

# Third Party
import torch

# First Party
from benchmarks.turboquant.e2e import plot, report
from benchmarks.turboquant.e2e.measure import LEAST_ROUNDS, Row
from benchmarks.turboquant.e2e.schemes import SCHEMES, Scheme
from benchmarks.turboquant.e2e.stores import Store, running_stores
from benchmarks.turboquant.provenance import REPOSITORY, provenance

_RESULTS = REPOSITORY / "benchmarks/turboquant/results"
_EXAMPLE = REPOSITORY / "examples/serde/turboquant"
_PACKAGES = ("torch", "numpy", "numba", "lmcache")
_SHAPE = (2, 32, 256, 1024)


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
    started = time.monotonic()
    with TemporaryDirectory(prefix="lmcache-e2e-", dir=options.folder) as folder:
        with running_stores(Path(folder)) as stores:
            for row in _measured(schemes, stores, options):
                print(f"{time.monotonic() - started:.0f} s: {row.scheme}, {row.store}")
                # What is measured is kept, whatever becomes of the next one.
                rows.append(row)
                text = _write(_by_store(rows, stores), origin, options)
    print(text)
    return 0


def _options(arguments: list[str] | None) -> Namespace:
    """Read the command line."""
    parser = ArgumentParser(prog="benchmarks.turboquant.e2e", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        metavar="S",
        help="after which a row is not measured again, two rounds being done",
    )
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
    if options.repetitions < LEAST_ROUNDS:
        parser.error(f"--repetitions must be at least 2, got {options.repetitions}")
    if options.objects < 1:
        parser.error(f"--objects must be at least 1, got {options.objects}")
    return options


def _measured(
    schemes: list[Scheme], stores: list[Store], options: Namespace
) -> Iterator[Row]:
    """Measure schemes, the ones of the pristine LMCache in a process of their own."""
    for needs_pristine in (False, True):
        names = [s.name for s in schemes if s.needs_pristine == needs_pristine]
        request = {
            "schemes": names,
            "stores": stores,
            "objects": options.objects,
            "shape": _SHAPE,
            "patience": (options.repetitions, options.seconds),
        }
        if names:
            paths = [options.pristine] if needs_pristine else []
            yield from _rows(request, [*paths, REPOSITORY, _EXAMPLE])


def _rows(request: dict[str, object], paths: list[Path]) -> Iterator[Row]:
    """Run a request in a process with some more paths to import from."""
    environment = {"LMCACHE_LOG_LEVEL": "ERROR"} | os.environ
    inherited = os.environ.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [*map(str, paths), inherited])
    )
    command = [sys.executable, "-m", Row.__module__, json.dumps(request)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("["):
                yield Row(*json.loads(line))
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _by_store(rows: list[Row], stores: list[Store]) -> list[Row]:
    """Bring the serdes of a store together."""
    order = [store.name for store in stores]
    return sorted(rows, key=lambda row: order.index(row.store))


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
            f"and interquartile ranges of {options.repetitions} rounds, of fewer, at "
            f"least {LEAST_ROUNDS}, where they would take more than "
            f"{options.seconds:g} s. L1 memory is page-locked where there is a GPU, as "
            "that of LMCache's server is by default. CPU time is that of LMCache's "
            "process, without the Redis server's, which writes to disk before it "
            "answers. GPU time is that of the kernels, without copies, measured once "
            "for each serde.",
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
