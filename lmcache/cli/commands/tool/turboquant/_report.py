# SPDX-License-Identifier: Apache-2.0
"""Reports on payloads, for people and as JSON."""

# Standard
from collections.abc import Iterator, Sequence
from pathlib import Path

# First Party
from lmcache.cli.commands.tool.turboquant._payloads import Payload
from lmcache.cli.metrics import Metrics
from lmcache.v1.distributed.serde.turboquant.header import VERSION
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout

_TENSOR_COLUMNS = (
    ("tensor", "Tensor"),
    ("kv_layout", "kv_layout"),
    ("preset", "Preset"),
    ("dtype", "dtype"),
    ("shape", "Shape"),
    ("head_dim", "head_dim"),
    ("value_head_dim", "value_head_dim"),
    ("raw_bytes", "Raw bytes"),
    ("payload_bytes", "Payload bytes"),
    ("ratio", "Ratio"),
)
_LAYER_COLUMNS = (
    ("tensor", "Tensor"),
    ("layers", "Layers"),
    ("stored", "Stored"),
    ("layer_bytes", "Bytes a layer"),
    ("layer_share", "Share a layer %"),
    ("share", "Share %"),
)
_PAYLOAD_COLUMNS = (
    ("payload", "Payload"),
    ("presets", "Presets"),
    ("raw_bytes", "Raw bytes"),
    ("file_bytes", "Bytes"),
    ("ratio", "Ratio"),
    ("verdict", "Verdict"),
)


def add_one(metrics: Metrics, payload: Payload) -> None:
    """Report on one payload: header, verdict, tensors, and what each layer takes.

    Args:
        metrics: The report.
        payload: The payload.
    """
    metrics.add("file_bytes", "Bytes in the file", payload.file_bytes)
    metrics.add("verdict", "Verdict", payload.refusal or "intact")
    if payload.layout is None:
        return
    frame = payload.layout
    metrics.add("version", "Frame version", VERSION)
    metrics.add("header_bytes", "Bytes of the header", frame.header_bytes)
    metrics.add("frame_bytes", "Bytes of the frame", frame.total_bytes)
    metrics.add("raw_bytes", "Bytes of the tensors", payload.raw_bytes)
    metrics.add("ratio", "Ratio", _ratio(payload.raw_bytes, frame.total_bytes))
    tensors = metrics.add_table("tensors", "Tensors", *_TENSOR_COLUMNS)
    layers = metrics.add_table("layers", "Layers", *_LAYER_COLUMNS)
    for index, part in enumerate(frame.layouts):
        tensors.add_row(tensor=index, **_tensor_row(part))
        for row in _layer_rows(part, frame.total_bytes):
            layers.add_row(tensor=index, **row)


def add_many(metrics: Metrics, payloads: Sequence[Payload], root: Path) -> None:
    """Report on many payloads, a line each, and on all together.

    Args:
        metrics: The report.
        payloads: The payloads.
        root: The directory that names are relative to.
    """
    _add_totals(metrics, payloads)
    table = metrics.add_table("files", "Payloads", *_PAYLOAD_COLUMNS)
    for payload in payloads:
        layouts = payload.layout.layouts if payload.layout else ()
        table.add_row(
            payload=str(payload.path.relative_to(root)),
            presets=", ".join(dict.fromkeys(_preset(part) for part in layouts)),
            raw_bytes=payload.raw_bytes,
            file_bytes=payload.file_bytes,
            ratio=_ratio(payload.raw_bytes, payload.file_bytes),
            verdict=payload.refusal or "intact",
        )


def add_refused(metrics: Metrics, payloads: Sequence[Payload], root: Path) -> None:
    """Report on many payloads together, and on each that would be refused.

    Args:
        metrics: The report.
        payloads: The payloads.
        root: The directory that names are relative to.
    """
    _add_totals(metrics, payloads)
    columns = (("payload", "Refused payload"), ("reason", "Reason"))
    table = metrics.add_table("refused_files", "Refused", *columns)
    for payload in payloads:
        if payload.refusal:
            name = str(payload.path.relative_to(root))
            table.add_row(payload=name, reason=payload.refusal)


def _add_totals(metrics: Metrics, payloads: Sequence[Payload]) -> None:
    """Report what payloads have in common: their number and bytes."""
    raw_bytes = sum(payload.raw_bytes for payload in payloads)
    file_bytes = sum(payload.file_bytes for payload in payloads)
    metrics.add("payloads", "Payloads", len(payloads))
    metrics.add("refused", "Refused", sum(bool(x.refusal) for x in payloads))
    metrics.add("raw_bytes", "Bytes of the tensors", raw_bytes)
    metrics.add("file_bytes", "Bytes in files", file_bytes)
    metrics.add("ratio", "Ratio", _ratio(raw_bytes, file_bytes))


def _tensor_row(part: PayloadLayout) -> dict[str, object]:
    """Return what the table of tensors says of one."""
    raw_bytes = part.shape.numel() * part.dtype.itemsize
    return {
        "kv_layout": part.geometry.kv_layout,
        "preset": _preset(part),
        "dtype": str(part.dtype).removeprefix("torch."),
        "shape": str(list(part.shape)),
        "head_dim": part.geometry.key_dim,
        "value_head_dim": part.geometry.value_dim,
        "raw_bytes": raw_bytes,
        "payload_bytes": part.payload_bytes,
        "ratio": _ratio(raw_bytes, part.payload_bytes),
    }


def _layer_rows(part: PayloadLayout, frame_bytes: int) -> Iterator[dict[str, object]]:
    """Yield what the table of layers says of each group of equal layers."""
    first, last = part.raw_layers
    middle = slice(part.quant_start, part.quant_end)
    spans = (part.raw_spans[0], part.compressed_span, part.raw_spans[1])
    kinds = ("raw", "compressed", "raw")
    for layers, span, kind in zip((first, middle, last), spans, kinds, strict=True):
        count, num_bytes = layers.stop - layers.start, span.stop - span.start
        if count:
            yield {
                "layers": f"{layers.start}-{layers.stop - 1}",
                "stored": kind,
                "layer_bytes": num_bytes // count,
                "layer_share": 100 * num_bytes / count / frame_bytes,
                "share": 100 * num_bytes / frame_bytes,
            }


def _preset(part: PayloadLayout) -> str:
    """Name what a tensor is stored with."""
    return "opaque" if part.geometry.is_opaque else part.preset


def _ratio(raw_bytes: int, stored_bytes: int) -> float:
    """Return how many times fewer bytes are stored; 0 where there are none."""
    return raw_bytes / stored_bytes if stored_bytes else 0.0
