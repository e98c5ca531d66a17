# SPDX-License-Identifier: Apache-2.0
"""Measurements as a table and against the targets."""

# Standard
from collections.abc import Iterator, Sequence

# First Party
from benchmarks.turboquant.e2e.measure import Row
from benchmarks.turboquant.e2e.schemes import NO_SERDE, SCHEMES, Scheme

_SLOW = 1.0
"""GB/s up to which a store must gain from the serde."""
_LEAST_GAIN = 2.0
_FAST = 10.0
"""GB/s at which a store must not lose by it, where there is a GPU."""
_MOST_LOSS = 1.1

_HEADING = (
    "store",
    "serde",
    "rounds",
    "moved MB",
    "ratio",
    "cosine",
    "store ms (spread)",
    "CPU, GPU ms",
    "prefetch ms (spread)",
    "CPU, GPU ms",
    "prefetch against no serde",
)


def table(rows: Sequence[Row], missing: Sequence[Scheme]) -> str:
    """Lay the rows out in Markdown.

    Args:
        rows: What was measured.
        missing: Schemes that were not, as they need a GPU.

    Returns:
        The table.
    """
    lines = [_HEADING, ("---",) * len(_HEADING)]
    for row in rows:
        cells = (
            row.store,
            row.scheme,
            str(row.rounds),
            f"{row.moved_bytes / 1e6:.1f}",
            f"{row.raw_bytes / row.moved_bytes:.2f}",
            f"{row.cosine:.5f}",
            f"{row.store_ms:.1f} ({row.store_spread_ms:.1f})",
            f"{row.store_cpu_ms:.0f}, {row.store_gpu_ms:.2f}",
            f"{row.prefetch_ms:.1f} ({row.prefetch_spread_ms:.1f})",
            f"{row.prefetch_cpu_ms:.0f}, {row.prefetch_gpu_ms:.2f}",
            f"{gain(rows, row):.2f} times as fast",
        )
        lines.append(cells)
    for scheme in missing:
        reason = "not measured: needs a GPU and `--pristine`"
        lines.append(("all", scheme.name, "0", reason, *("",) * (len(_HEADING) - 4)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def gain(rows: Sequence[Row], row: Row) -> float:
    """Return how many times faster a row prefetches than raw KV from its store."""
    return _raw(rows, row.store).prefetch_ms / row.prefetch_ms


def targets(rows: Sequence[Row], has_gpu: bool) -> Iterator[str]:
    """Say of each target whether the rows meet it.

    Args:
        rows: What was measured.
        has_gpu: Whether the serde ran on a GPU.

    Yields:
        Lines of a Markdown list.
    """
    ours = {scheme.name for scheme in SCHEMES if scheme.is_ours}
    for row in (row for row in rows if row.scheme in ours):
        raw = _raw(rows, row.store)
        bandwidth = row.gigabytes_per_second or raw.raw_bytes / raw.prefetch_ms / 1e6
        measured = f"{row.store}, {row.scheme}: {gain(rows, row):.2f} times as fast"
        if not row.gigabytes_per_second:
            measured += f", from a store of {bandwidth:.2f} GB/s"
        if bandwidth <= _SLOW:
            is_met = gain(rows, row) >= _LEAST_GAIN
            yield f"- {_verdict(is_met)}: {measured} (target: at least 2 times)"
        elif row.gigabytes_per_second == _FAST and has_gpu:
            is_met = row.prefetch_ms <= _MOST_LOSS * raw.prefetch_ms
            yield f"- {_verdict(is_met)}: {measured} (target: at most 10% slower)"
        elif row.gigabytes_per_second == _FAST:
            yield f"- not tested: {measured} (the target is for hosts with a GPU)"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"


def _raw(rows: Sequence[Row], store: str) -> Row:
    """Return the row of raw KV over a store."""
    return next(row for row in rows if (row.store, row.scheme) == (store, NO_SERDE))
