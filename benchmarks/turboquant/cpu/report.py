# SPDX-License-Identifier: Apache-2.0
"""Measurements as rows, as a table and against the targets."""

# Standard
from collections.abc import Iterator
from typing import Any, NamedTuple

# First Party
from benchmarks.turboquant.cpu.codecs import FRAMED_PRESETS, MISSING, THREADS
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS

_FOUR_BITS = "turboquant_4bit_nc"


class Row(NamedTuple):
    """One operation of one codec; times in milliseconds.

    Attributes:
        spread_ms: Interquartile range.
        gigabytes_per_second: Of raw KV, at the median.
        extra_megabytes: Peak memory beyond input and output.
    """

    codec: str
    operation: str
    threads: int
    rounds: int
    median_ms: float
    spread_ms: float
    least_ms: float
    gigabytes_per_second: float
    extra_megabytes: float
    ratio: float
    cosine: float


def row_of(measured: dict[str, Any]) -> Row:
    """Make a row of one entry of pytest-benchmark's JSON."""
    info, stats = measured["extra_info"], measured["stats"]
    return Row(
        codec=info["codec"],
        operation=info["operation"],
        threads=info["threads"],
        rounds=stats["rounds"],
        median_ms=round(stats["median"] * 1e3, 3),
        spread_ms=round(stats["iqr"] * 1e3, 3),
        least_ms=round(stats["min"] * 1e3, 3),
        gigabytes_per_second=round(info["raw_bytes"] / stats["median"] / 1e9, 3),
        extra_megabytes=round(info["extra_bytes"] / 1e6, 2),
        ratio=round(info["ratio"], 3),
        cosine=round(info["cosine"], 5),
    )


def table(rows: list[Row]) -> str:
    """Lay the rows out in Markdown, encode and decode side by side."""
    lines = [
        "| codec | threads | ratio | cosine | encode ms (spread) | GB/s | decode ms "
        "(spread) | GB/s | extra MB, encode / decode |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    encodes = [row for row in rows if row.operation == "encode"]
    for encode in encodes:
        decode = find(rows, encode.codec, "decode", encode.threads)
        cells = [encode.codec, encode.threads, f"{encode.ratio:.2f}", encode.cosine]
        for row in (encode, decode):
            cells.append(f"{row.median_ms:.2f} ({row.spread_ms:.2f})")
            cells.append(f"{row.gigabytes_per_second:.2f}")
        cells.append(f"{encode.extra_megabytes:.1f} / {decode.extra_megabytes:.1f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for codec, remedy in MISSING.items():
        lines.append(f"| {codec} | not installed: `{remedy}` |" + " |" * 7)
    return "\n".join(lines)


def find(rows: list[Row], codec: str, operation: str, threads: int) -> Row:
    """Return the row of one measurement."""
    wanted = codec, operation, threads
    return next(row for row in rows if row[:3] == wanted)


def targets(rows: list[Row]) -> Iterator[str]:
    """Say of each target of the CPU backend whether the rows meet it."""
    for operation, least in (("encode", 0.8), ("decode", 1.5)):
        slowest = min(
            find(rows, preset, operation, 1).gigabytes_per_second for preset in PRESETS
        )
        yield _verdict(
            f"{operation}, one thread, every preset: {slowest:.2f} GB/s",
            slowest >= least,
            f"at least {least} GB/s",
        )
    yield from _scaling(rows)
    yield from _against_plain(rows)
    yield from _against_peers(rows)
    per_thread = max(
        row.extra_megabytes / row.threads for row in rows if row.codec in PRESETS
    )
    yield _verdict(
        f"extra memory: {per_thread:.1f} MB a thread", per_thread <= 16, "at most 16 MB"
    )


def _scaling(rows: list[Row]) -> Iterator[str]:
    """Compare two threads with one."""
    for operation in ("encode", "decode"):
        one, two = (
            [find(rows, preset, operation, threads) for preset in PRESETS]
            for threads in THREADS
        )
        gain = min(a.median_ms / b.median_ms for a, b in zip(one, two, strict=True))
        yield _verdict(
            f"{operation}, two threads against one: {gain:.2f} times",
            gain >= 1.8,
            "at least 1.8 times",
        )


def _against_plain(rows: list[Row]) -> Iterator[str]:
    """Compare presets that need a frame with the plain one of as many bits."""
    for preset in FRAMED_PRESETS:
        for operation in ("encode", "decode"):
            one, plain = (
                find(rows, name, operation, 1) for name in (preset, _FOUR_BITS)
            )
            share = plain.median_ms / one.median_ms
            yield _verdict(
                f"{preset}, {operation}, one thread: {share:.2f} of the speed of "
                f"{_FOUR_BITS}",
                share >= 0.5,
                "at least half",
            )


def _against_peers(rows: list[Row]) -> Iterator[str]:
    """Compare with the other codecs, thread for thread."""
    if "tqai 4-bit" not in MISSING:
        mine, peer = (
            find(rows, name, "encode", 1)
            for name in ("turboquant_4bit_t", "tqai 4-bit")
        )
        yield _verdict(
            f"turboquant_4bit_t against tqai: cosine {mine.cosine} against "
            f"{peer.cosine}, ratio {mine.ratio} against {peer.ratio}",
            mine.cosine > peer.cosine and mine.ratio >= peer.ratio,
            "a higher cosine at a ratio that is no lower, to three digits",
        )
    for threads in THREADS:
        if "tqai 4-bit" not in MISSING:
            for operation, least in (("encode", 25), ("decode", 8)):
                mine = find(rows, _FOUR_BITS, operation, threads)
                peer = find(rows, "tqai 4-bit", operation, threads)
                gain = peer.median_ms / mine.median_ms
                memory = peer.extra_megabytes / max(mine.extra_megabytes, 0.1)
                yield _verdict(
                    f"4 bits against tqai, {operation}, {threads} thread(s): "
                    f"{gain:.0f} times as fast, 1/{memory:.0f} of the extra memory",
                    gain >= least and memory >= 50,
                    f"at least {least} times and 1/50",
                )
        peer = find(rows, "LMCache fp8", "decode", threads)
        for preset in PRESETS:
            mine = find(rows, preset, "decode", threads)
            yield _verdict(
                f"{preset} against LMCache's fp8, decode, {threads} thread(s): "
                f"{peer.median_ms / mine.median_ms:.2f} times as fast",
                mine.median_ms <= peer.median_ms,
                "not slower",
            )


def _verdict(measured: str, met: bool, target: str) -> str:
    """Write one line of a Markdown list."""
    return f"- {'met' if met else 'NOT MET'}: {measured} (target: {target})"
