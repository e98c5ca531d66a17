# SPDX-License-Identifier: Apache-2.0
"""The end-to-end benchmark checks what it times, and judges what it measured."""

# Standard
from dataclasses import replace
from pathlib import Path
import os
import sys

# Third Party
import pytest
import torch

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "examples" / "serde" / "turboquant"))

# First Party
from benchmarks.turboquant.e2e import plot, report  # noqa: E402
from benchmarks.turboquant.e2e.measure import (  # noqa: E402
    Patience,
    Row,
    kv_objects,
    measure_stores,
)
from benchmarks.turboquant.e2e.schemes import (  # noqa: E402
    NO_SERDE,
    SCHEMES,
    Scheme,
    scheme_named,
)
from benchmarks.turboquant.e2e.stores import mock  # noqa: E402

SHAPE = (2, 5, 64, 256)
OURS = "turboquant_4bit_nc"


def row_of(
    scheme: str, prefetch_ms: float, bandwidth: float = 0.0, store: str = "store"
) -> Row:
    """A row of 100 MB whose other times are of no interest."""
    moved_bytes = 100_000_000 if scheme == NO_SERDE else 25_000_000
    times = (1.0, 0.5, 1.0, 0.0, prefetch_ms, 0.5, 1.0, 0.0)
    return Row(store, bandwidth, scheme, 5, 100_000_000, moved_bytes, 1.0, *times)


def row_measured(scheme: Scheme, objects: list[torch.Tensor]) -> Row:
    """Measure two rounds over a fast store."""
    (row,) = measure_stores(scheme, [mock(10.0)], objects, Patience(2, 60.0))
    return row


@pytest.mark.parametrize(
    "scheme", [x for x in SCHEMES if not x.needs_pristine], ids=lambda x: x.name
)
def test_a_row_of_every_scheme_counts_all_bytes(scheme: Scheme) -> None:
    objects = kv_objects(2, SHAPE)
    row = row_measured(scheme, objects)
    assert (row.store, row.scheme, row.rounds) == ("mock 10 GB/s", scheme.name, 2)
    assert row.raw_bytes == 2 * objects[0].nbytes
    assert row.moved_bytes * scheme.least_ratio <= row.raw_bytes
    assert scheme.least_cosine <= row.cosine <= 1
    # The mock takes no less time than its bandwidth says.
    assert row.prefetch_ms >= row.moved_bytes / 10e6
    assert row.prefetch_cpu_ms > 0 and row.store_cpu_ms > 0
    uses_gpu = scheme.is_ours and torch.cuda.is_available()
    assert (row.prefetch_gpu_ms > 0) == (row.store_gpu_ms > 0) == uses_gpu


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 2), (60.0, 4)])
def test_rounds_end_with_the_time_but_not_before_two(
    seconds: float, rounds: int
) -> None:
    stores, objects = [mock(5.0), mock(10.0)], kv_objects(1, SHAPE)
    scheme, patience = scheme_named(NO_SERDE), Patience(4, seconds)
    rows = list(measure_stores(scheme, stores, objects, patience))
    assert [row.store for row in rows] == [store.name for store in stores]
    assert [row.rounds for row in rows] == [rounds, rounds]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [({"least_cosine": 0.9999}, "cosine"), ({"least_ratio": 8.0}, "ratio of 8")],
)
def test_no_time_without_a_correct_round_trip(
    wanted: dict[str, float], message: str
) -> None:
    scheme = replace(scheme_named(OURS), **wanted)
    with pytest.raises(RuntimeError, match=message):
        row_measured(scheme, kv_objects(1, SHAPE))


def test_raw_kv_must_come_back_bit_for_bit() -> None:
    lossy = replace(scheme_named(OURS), least_cosine=1.0)
    with pytest.raises(RuntimeError, match="cosine"):
        row_measured(lossy, kv_objects(1, SHAPE))


@pytest.mark.parametrize(
    ("bandwidth", "raw_ms", "ours_ms", "has_gpu", "verdict"),
    [
        (1.0, 100.0, 50.0, False, "- met: "),
        (1.0, 100.0, 51.0, False, "- NOT MET: "),
        (10.0, 10.0, 11.0, True, "- met: "),
        (10.0, 10.0, 11.1, True, "- NOT MET: "),
        (10.0, 10.0, 99.0, False, "- not tested: "),
        # 100 MB in 200 ms is a store of 0.5 GB/s, in 50 ms one of 2 GB/s.
        (0.0, 200.0, 101.0, False, "- NOT MET: "),
        (0.0, 50.0, 60.0, True, None),
        (5.0, 20.0, 30.0, True, None),
    ],
)
def test_targets(
    bandwidth: float, raw_ms: float, ours_ms: float, has_gpu: bool, verdict: str | None
) -> None:
    rows = [row_of(NO_SERDE, raw_ms, bandwidth), row_of(OURS, ours_ms, bandwidth)]
    lines = list(report.targets(rows, has_gpu))
    assert len(lines) == (verdict is not None)
    assert all(line.startswith(verdict or "") for line in lines)


def test_peers_have_no_targets() -> None:
    rows = [row_of(NO_SERDE, 100.0, 1.0), row_of("LMCache fp8", 99.0, 1.0)]
    assert not list(report.targets(rows, has_gpu=True))


def test_the_table_compares_within_a_store_and_names_what_is_missing() -> None:
    rows = [
        row_of(NO_SERDE, 100.0, store="slow"),
        row_of(OURS, 40.0, store="slow"),
        row_of(NO_SERDE, 10.0, store="fast"),
        row_of(OURS, 20.0, store="fast"),
    ]
    missing = [scheme for scheme in SCHEMES if scheme.needs_pristine]
    lines = report.table(rows, missing).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| 25.0 | 4.00 |" in lines[3] and "| 2.50 times as fast |" in lines[3]
    assert "| 0.50 times as fast |" in lines[5]
    assert missing[0].name in lines[6] and "needs a GPU" in lines[6]


def test_the_plot_has_a_bar_for_each_row_and_is_the_same_every_time(
    tmp_path: Path,
) -> None:
    rows = [row_of(NO_SERDE, 100.0), row_of(OURS, 40.0)]
    for name in ("first.svg", "second.svg"):
        plot.draw(rows, tmp_path / name)
    first = (tmp_path / "first.svg").read_text()
    assert first == (tmp_path / "second.svg").read_text()
    assert NO_SERDE in first and OURS in first
