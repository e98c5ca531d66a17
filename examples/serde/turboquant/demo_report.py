# SPDX-License-Identifier: Apache-2.0
"""The comparison as a table, and as JSON with its provenance."""

# Standard
from importlib.metadata import version
import json
import os
import platform

# Third Party
from rich import box
from rich.table import Table
import torch

# First Party
from comparison import CHUNK_TOKENS, REPEATS, Comparison, Row

_MEGABYTE = 1e6
_REPORTED_PACKAGES = ("lmcache", "torch", "transformers")
_NUMBER_HEADINGS = (
    "raw\nMB",
    "bytes\non disk",
    "ratio",
    "store\nms",
    "load\nms",
    "K rel.\nerror",
    "V rel.\nerror",
    "perpl-\nexity",
    "top-1\n%",
)


def headline(comparison: Comparison, text_name: str, adapter_type: str) -> str:
    """Say what was stored where.

    Args:
        comparison: The model and what it read.
        text_name: Name of the text.
        adapter_type: LMCache's name of the L2 adapter.

    Returns:
        Lines to print above the table.
    """
    cache, model = comparison.cache, comparison.model
    return (
        f"model  {model.name}: {cache.num_layers} layers, {cache.num_heads} KV heads "
        f"of {cache.head_dim}\n"
        f"text   {text_name}: {cache.num_tokens:,} tokens in "
        f"{_dtype_name(cache.kv.dtype)} chunks of {CHUNK_TOKENS}, "
        f"{comparison.num_reading} read on\n"
        f"store  LMCache {version('lmcache')}, L2 adapter {adapter_type}, on "
        f"{_device_name(model.device)}"
    )


def results_table(rows: list[Row]) -> Table:
    """Lay the rows out.

    Args:
        rows: One a scheme.

    Returns:
        A table; what nobody could count reads ``n/a``.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    table.add_column("serde", no_wrap=True)
    for heading in _NUMBER_HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.scheme.name,
            f"{row.raw_bytes / _MEGABYTE:.1f}",
            _stored_bytes(row),
            "n/a" if row.ratio is None else f"{row.ratio:.2f}",
            f"{row.store_seconds * 1e3:.0f}",
            f"{row.load_seconds * 1e3:.0f}",
            f"{row.key_error:.4f}",
            f"{row.value_error:.4f}",
            f"{row.perplexity:.3f}",
            f"{row.agreement * 100:.1f}",
        )
    return table


def notes(rows: list[Row], comparison: Comparison) -> list[str]:
    """Say how to read the table.

    Args:
        rows: The table's rows.
        comparison: What they were measured against.

    Returns:
        Paragraphs to print below the table.
    """
    paragraphs = [
        "top-1: next tokens that stay the same as with the exact cache, which is "
        f"{_dtype_name(comparison.model.dtype)} and never stored; its perplexity is "
        f"{comparison.exact_perplexity:.3f}.",
        "store: finish_write to L2. load: L2 to restored KV in L1. Median of "
        f"{REPEATS} rounds after one to warm up.",
    ]
    if any(row.bytes_source == "adapter" for row in rows):
        paragraphs.append("*: as the adapter reports, not read from a disk.")
    partly_raw = [row for row in rows if row.scheme.raw_layers]
    if partly_raw:
        paragraphs.append(_raw_layers_note(partly_raw, comparison.cache.num_layers))
    return paragraphs


def results_json(
    rows: list[Row], comparison: Comparison, settings: dict[str, object]
) -> str:
    """Write everything that was measured, unrounded, with what it depends on.

    Args:
        rows: One a scheme.
        comparison: What they were measured against.
        settings: What the user asked for.

    Returns:
        A JSON document.
    """
    cache, model = comparison.cache, comparison.model
    document = {
        "provenance": {
            **{package: version(package) for package in _REPORTED_PACKAGES},
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": _device_name(model.device),
        },
        "settings": settings,
        "cache": {
            "layers": cache.num_layers,
            "heads": cache.num_heads,
            "head_dim": cache.head_dim,
            "tokens": cache.num_tokens,
            "chunk_tokens": CHUNK_TOKENS,
            "dtype": _dtype_name(cache.kv.dtype),
        },
        "exact_cache": {
            "dtype": _dtype_name(model.dtype),
            "perplexity": comparison.exact_perplexity,
        },
        "rounds": REPEATS,
        "rows": [_row_json(row) for row in rows],
    }
    return json.dumps(document, indent=2) + "\n"


def _row_json(row: Row) -> dict[str, object]:
    """A row's numbers; of the serde only its name, as its settings may be secret."""
    numbers = {name: value for name, value in vars(row).items() if name != "scheme"}
    return {"serde": row.scheme.name, **numbers, "ratio": row.ratio}


def _raw_layers_note(rows: list[Row], num_layers: int) -> str:
    """Separate what is compressed from the layers that stay raw."""
    num_raw = rows[0].scheme.raw_layers
    note = (
        f"turboquant stores the first {num_raw // 2} and last {num_raw // 2} of the "
        f"{num_layers} layers raw (--skip-layers), so no ratio can exceed "
        f"{num_layers / num_raw:.2f}."
    )
    ratios = []
    for row in rows:
        if row.stored_bytes is not None:
            raw_part = row.raw_bytes * num_raw // num_layers
            ratio = (row.raw_bytes - raw_part) / (row.stored_bytes - raw_part)
            ratios.append(f"{row.scheme.name.removeprefix('turboquant_')} {ratio:.2f}")
    if ratios:
        note += f" The {num_layers - num_raw} others alone: {', '.join(ratios)}."
    return note


def _stored_bytes(row: Row) -> str:
    if row.stored_bytes is None:
        return "n/a"
    return f"{row.stored_bytes:,}" + ("*" if row.bytes_source == "adapter" else "")


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"
    return torch.get_device_module(device).get_device_name(device)
