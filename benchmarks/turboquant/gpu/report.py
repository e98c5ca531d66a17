# SPDX-License-Identifier: Apache-2.0
"""Lay out what was measured on a GPU: ``python -m benchmarks.turboquant.gpu.report``.

Reads ``results/gpu.csv``, ``gpu_ceilings.csv`` and ``gpu_interference.csv``; writes
``gpu.md`` and ``gpu.svg``.
"""

# Standard
from pathlib import Path
import csv

# Third Party
from matplotlib import pyplot as plt

# First Party
from benchmarks.turboquant.provenance import REPOSITORY

_RESULTS = REPOSITORY / "benchmarks/turboquant/results"
_PLACES = {
    "kernels": "kernels alone, device time",
    "resident": "serde, GPU memory",
    "pinned": "serde, pinned host memory",
    "pageable": "serde, pageable host memory",
}
_PLOTTED_SHAPE = "2x80x256x1024"

Row = dict[str, str]


def main(folder: Path = _RESULTS) -> None:
    """Write table and plot."""
    rows, (limits,) = _read(folder / "gpu.csv"), _read(folder / "gpu_ceilings.csv")
    text = _document(rows, limits) + _slowdowns(_read(folder / "gpu_interference.csv"))
    (folder / "gpu.md").write_text(text, encoding="utf-8")
    _plot(rows, limits, folder / "gpu.svg")


def fraction_of_ceiling(row: Row, limits: Row) -> float:
    """Return which part of the ceiling a measurement reaches.

    On the device, raw and payload bytes against the copy rate; from and to the host,
    raw bytes against the rate of the direction that they take.
    """
    seconds, num_bytes = float(row["median_us"]) / 1e6, int(row["raw_bytes"])
    limit = "host_to_device" if row["operation"] == "encode" else "device_to_host"
    if row["place"] in ("kernels", "resident"):
        num_bytes += int(row["payload_bytes"])
        limit = "device_copy"
    return num_bytes / seconds / float(limits[limit])


def _read(path: Path) -> list[Row]:
    """Read a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _document(rows: list[Row], limits: Row) -> str:
    """Return the tables, a section for each shape."""
    rates = {
        name: float(limits[name]) / 1e9
        for name in ("device_copy", "host_to_device", "device_to_host")
    }
    lines = [
        f"{limits['gpu']}, torch {limits['torch']}, triton {limits['triton']}, commit "
        f"{limits['commit']}, {limits['time']}; medians (spread) in microseconds.",
        "",
        f"Ceilings in GB/s: device copy {rates['device_copy']:.0f} (read and written), "
        f"host to device {rates['host_to_device']:.1f}, device to host "
        f"{rates['device_to_host']:.1f}.",
    ]
    for shape in dict.fromkeys(row["shape"] for row in rows):
        of_shape = [row for row in rows if row["shape"] == shape]
        lines += ["", f"## {shape}, {of_shape[0]['dtype']}", ""]
        lines += [
            "| where | codec | ratio | encode | of ceiling | decode | of ceiling |"
        ]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        lines += _table(of_shape, limits)
    return "\n".join(lines) + "\n"


def _slowdowns(rows: list[Row]) -> str:
    """Return the table of what the serde costs a model's own work."""
    lines = [
        "",
        "## Interference",
        "",
        "Matrix products on the default stream, alone and while a worker encodes and "
        "decodes 84 MB of pinned memory without a pause.",
        "",
        "| preset | alone ms | beside ms | slower by |",
        "| --- | --- | --- | --- |",
    ]
    for row in rows:
        alone, beside, percent = (
            float(row[name]) for name in ("alone_ms", "beside_ms", "slowdown_percent")
        )
        lines.append(
            f"| {row['preset']} | {alone:.2f} | {beside:.2f} | {percent:.1f}% |"
        )
    return "\n".join(lines) + "\n"


def _table(rows: list[Row], limits: Row) -> list[str]:
    """Return a table's lines, encode and decode side by side."""
    lines = []
    for place, what in _PLACES.items():
        encodes = (r for r in rows if (r["place"], r["operation"]) == (place, "encode"))
        for encode in encodes:
            decode = next(
                row
                for row in rows
                if row["operation"] == "decode"
                and all(row[x] == encode[x] for x in ("place", "codec", "preset"))
            )
            ratio = int(encode["raw_bytes"]) / int(encode["payload_bytes"])
            name = encode["codec"]
            if encode["preset"]:
                preset = encode["preset"].removeprefix("turboquant_")
                name = f"{name} {preset}"
            cells = [what, name, f"{ratio:.2f}"]
            for row in (encode, decode):
                median, spread = float(row["median_us"]), float(row["spread_us"])
                cells.append(f"{median:.1f} ({spread:.1f})")
                cells.append(f"{fraction_of_ceiling(row, limits):.1%}")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _plot(rows: list[Row], limits: Row, path: Path) -> None:
    """Draw what the codecs make of pinned host memory, on a logarithmic scale."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharex=True, sharey=True)
    for axis, operation in zip(axes, ("encode", "decode"), strict=True):
        chosen = [
            row
            for row in rows
            if (row["shape"], row["place"], row["operation"])
            == (_PLOTTED_SHAPE, "pinned", operation)
        ]
        names = [f"{row['codec']} {row['preset'][12:]}".strip() for row in chosen]
        milliseconds = [float(row["median_us"]) / 1e3 for row in chosen]
        axis.barh(names[::-1], milliseconds[::-1])
        limit = "host_to_device" if operation == "encode" else "device_to_host"
        floor = int(chosen[0]["raw_bytes"]) / float(limits[limit]) * 1e3
        axis.axvline(floor, color="black", linestyle="--", label="PCIe alone")
        axis.set(xscale="log", xlabel="ms", title=f"{operation}, 84 MB, pinned")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
