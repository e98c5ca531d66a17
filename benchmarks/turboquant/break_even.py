# SPDX-License-Identifier: Apache-2.0
"""What restoring costs and saves: ``python -m benchmarks.turboquant.break_even``.

Without a serde a cache of R bytes takes R / bandwidth to load. With one that makes it
``ratio`` times smaller it takes R / (ratio * bandwidth) to load and R / rate to
decode, one after the other, as LMCache does with each object. Both take the same time
at a bandwidth of rate * (1 - 1 / ratio): below it the serde saves time.

Ratios and rates come from the measurements in ``results/``; the table goes to the
operators' guide.
"""

# Standard
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
import csv
import sys

# First Party
from benchmarks.turboquant.provenance import REPOSITORY

RESULTS = Path(__file__).with_name("results")
MEASURED = RESULTS / "cpu.csv"
MEASURED_ON_GPU = RESULTS / "gpu.csv"
TABLE = REPOSITORY / "docs/source/mp/turboquant-break-even.csv"
BANDWIDTHS = (0.5, 1, 2, 5, 10)
"""Of L2, in GB/s."""

_NOT_A_SERDE = "memcpy"
_HOST_MEMORY = "pinned"
"""Where LMCache hands an object over on a host with a GPU."""


@dataclass(frozen=True)
class Codec:
    """What was measured of one codec.

    Attributes:
        name: Codec, and what it ran on.
        ratio: Raw bytes over stored bytes.
        rate: GB/s of raw KV that it decodes.
    """

    name: str
    ratio: float
    rate: float

    @property
    def break_even(self) -> float:
        """Bandwidth of L2, in GB/s, below which loading is faster with the codec."""
        return self.rate * (1 - 1 / self.ratio)

    def gain(self, bandwidth: float) -> float:
        """Time to load without the codec over the time to load and decode with it.

        Args:
            bandwidth: Of L2, in GB/s.

        Returns:
            More than 1 where the codec saves time.
        """
        return 1 / (1 / self.ratio + bandwidth / self.rate)


def measured_codecs(path: Path) -> Iterator[Codec]:
    """Read the decoders of a benchmark's CSV.

    Args:
        path: File with columns codec, operation, threads, ratio and
            gigabytes_per_second.

    Yields:
        One for each codec and number of threads.

    Raises:
        OSError: If the file cannot be read.
        KeyError: If it has other columns.
    """
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["operation"] == "decode" and row["codec"] != _NOT_A_SERDE:
                plural = "" if row["threads"] == "1" else "s"
                yield Codec(
                    name=f"{row['codec']}, {row['threads']} CPU thread{plural}",
                    ratio=float(row["ratio"]),
                    rate=float(row["gigabytes_per_second"]),
                )


def measured_gpu_codecs(path: Path) -> Iterator[Codec]:
    """Read the decoders of the GPU benchmark's CSV, host memory to host memory.

    Args:
        path: File with columns codec, preset, shape, place, operation, raw_bytes,
            payload_bytes and median_us.

    Yields:
        One for each codec, preset and shape.

    Raises:
        OSError: If the file cannot be read.
        KeyError: If it has other columns.
    """
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["operation"], row["place"]) == ("decode", _HOST_MEMORY):
                raw_bytes = float(row["raw_bytes"])
                yield Codec(
                    name=f"{row['codec']} {row['preset']}, GPU, {row['shape']}",
                    ratio=raw_bytes / float(row["payload_bytes"]),
                    rate=raw_bytes / float(row["median_us"]) / 1e3,
                )


def measured() -> list[Codec]:
    """Read every benchmark whose results are in the repository."""
    codecs = list(measured_codecs(MEASURED))
    if MEASURED_ON_GPU.exists():
        codecs += measured_gpu_codecs(MEASURED_ON_GPU)
    return codecs


def table(codecs: Iterable[Codec]) -> list[list[str]]:
    """Lay the codecs out.

    Args:
        codecs: What was measured.

    Returns:
        Rows of cells, the heading first.
    """
    heading = ["Codec", "Ratio", "Decodes GB/s", "Break-even GB/s"]
    heading += [f"At {bandwidth:g} GB/s" for bandwidth in BANDWIDTHS]
    rows = [
        [
            codec.name,
            f"{codec.ratio:.2f}",
            f"{codec.rate:.2f}",
            f"{codec.break_even:.2f}",
            *(f"{codec.gain(bandwidth):.2f}" for bandwidth in BANDWIDTHS),
        ]
        for codec in codecs
    ]
    return [heading, *rows]


def main() -> int:
    """Write the table.

    Returns:
        Exit status.
    """
    rows = table(measured())
    with open(TABLE, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
