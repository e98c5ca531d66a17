# SPDX-License-Identifier: Apache-2.0
"""A run as files: tables in CSV, the report in Markdown, the plot."""

# Standard
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
import csv

# First Party
from benchmarks.turboquant.quality.plot import draw
from benchmarks.turboquant.quality.recorded import Recorded
from benchmarks.turboquant.quality.report import tables
from benchmarks.turboquant.quality.run import Results
from benchmarks.turboquant.quality.summary import Summary, summaries
from benchmarks.turboquant.quality.upstream import Agreement
from benchmarks.turboquant.quality.verdicts import verdicts

_DIGITS = 5


def write(
    results: Results,
    upstream: list[Agreement],
    folder: Path,
    stem: str,
    origin: Mapping[str, str],
) -> str:
    """Write every file of a run.

    ``STEM.csv`` has a row for each scheme and condition, ``STEM-windows.csv`` for
    each window too, ``STEM-layers.csv`` for each layer, ``STEM-retrieval.csv`` for
    each question; ``STEM.md`` and ``STEM.svg`` are for people.

    Args:
        results: What was measured.
        upstream: How LMCache 0.5.6's encoder did on the sample.
        folder: Where they go.
        stem: What their names begin with.
        origin: Where the figures come from: model, plan, time, commit and others.

    Returns:
        The report.

    Raises:
        OSError: If a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = summaries(results)
    run = {"time": origin["time"], "commit": origin["commit"]}
    _write_csv(folder / f"{stem}.csv", map(_summary_row, rows), origin)
    _write_csv(folder / f"{stem}-windows.csv", _window_rows(results), run)
    _write_csv(folder / f"{stem}-layers.csv", _layer_rows(rows), run)
    _write_csv(folder / f"{stem}-retrieval.csv", map(asdict, results.retrieved), run)
    draw(Recorded(stem, folder), folder / f"{stem}.svg")
    provenance = ", ".join(f"{key} {value}" for key, value in origin.items())
    text = "\n\n".join(
        [
            f"{provenance}.",
            *tables(results, rows, upstream),
            "\n".join(verdicts(results)),
        ]
    )
    (folder / f"{stem}.md").write_text(f"{text.rstrip()}\n", encoding="utf-8")
    return text


def _summary_row(summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {
        "condition": summary.condition,
        "scheme": summary.scheme.name,
        "windows": summary.windows,
        "bits": summary.bits,
        "ratio": summary.ratio,
    }
    for name in ("divergence", "perplexity", "agreement"):
        estimate = getattr(summary, name)
        row |= {name: estimate.value}
        row |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return row | {name: summary.error(name) for name in summary.layer_errors}


def _window_rows(results: Results) -> Iterator[dict[str, Any]]:
    for measured in results.measurements:
        row = asdict(measured)
        yield {key: value for key, value in row.items() if not isinstance(value, list)}


def _layer_rows(rows: list[Summary]) -> Iterator[dict[str, Any]]:
    for summary in rows:
        names = list(summary.layer_errors)
        layers = zip(*summary.layer_errors.values(), strict=True)
        for layer, errors in enumerate(layers):
            yield {
                "condition": summary.condition,
                "scheme": summary.scheme.name,
                "layer": layer,
                **dict(zip(names, errors, strict=True)),
            }


def _write_csv(
    path: Path, rows: Iterable[Mapping[str, Any]], origin: Mapping[str, str]
) -> None:
    """Write rows, numbers rounded and ``origin`` in further columns."""
    written = [
        {key: _rounded(value) for key, value in row.items()} | dict(origin)
        for row in rows
    ]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(written[0]) if written else [])
        writer.writeheader()
        writer.writerows(written)


def _rounded(value: Any) -> Any:
    return f"{value:.{_DIGITS}g}" if isinstance(value, float) else value
