# SPDX-License-Identifier: Apache-2.0
"""Frames read without a configuration: the layout that a header describes.

A header may be anything. Its numbers are checked by laying the tensors out again:
what it says must follow from the shapes and rules in it, and fit into the bytes
that are there, before anything of that size is allocated or looped over.
"""

# Standard
from dataclasses import replace
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.config import TWO_WIDTHS, TensorRule
from lmcache.v1.distributed.serde.turboquant.device import available_cores
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.header import (
    ALIGNMENT_BYTES,
    MAX_TENSORS,
    Header,
    header_bytes,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import geometry_of
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.payload import read_payload
from lmcache.v1.distributed.serde.turboquant.record import TensorRecord

_ADDRESSABLE_BYTES = 2**63
"""What strides can span; sizes of empty tensors may go far beyond."""


def described_layout(data: memoryview) -> FrameLayout:
    """Return the layout of the frame at the start of ``data``.

    The work is that of reading the header, whatever numbers it holds.

    Args:
        data: Contiguous bytes that start with a frame.

    Returns:
        A layout that the header follows from, of no more bytes than ``data`` has.
        The payloads are not looked at.

    Raises:
        ValueError: If there is no intact header, its numbers contradict each other,
            or the frame is cut short.
    """
    head = bytes(data[: header_bytes(MAX_TENSORS)])
    stored = Header.unpack(head)
    layouts = tuple(_payload_layout(record) for record in stored.records)
    layout = FrameLayout(layouts)
    if layout.total_bytes != stored.total_bytes:
        layout = FrameLayout(layouts, page_bytes=ALIGNMENT_BYTES)
    derived = replace(stored, records=layout.records, total_bytes=layout.total_bytes)
    if derived.pack() != head[: layout.header_bytes]:
        raise ValueError(
            f"TurboQuant header contradicts itself: {_contradiction(stored, derived)}"
        )
    if len(data) < layout.total_bytes:
        raise ValueError(
            f"TurboQuant payload is cut short: its header says {layout.total_bytes} "
            f"bytes, got {len(data)}"
        )
    return layout


def restore(frame: torch.Tensor, layout: FrameLayout) -> list[torch.Tensor]:
    """Restore the tensors of a frame.

    Args:
        frame: uint8 tensor that starts with the frame.
        layout: What :func:`described_layout` returned for it.

    Returns:
        The tensors, on the device of ``frame``, where work may be queued still.

    Raises:
        ValueError: If a byte of the frame has changed.
    """
    tensors, threads = [], available_cores()
    layout.verify(frame, threads=threads)
    for part, span in zip(layout.layouts, layout.spans, strict=True):
        tensor = torch.empty(part.shape, dtype=part.dtype, device=frame.device)
        if tensor.numel():
            read_payload(frame[span], tensor, part, threads)
        tensors.append(tensor)
    return tensors


def _payload_layout(record: TensorRecord) -> PayloadLayout:
    """Lay out the tensor of a record; whether the record says so is not checked."""
    shape = torch.Size(record.shape)
    spanned = math.prod(max(size, 1) for size in shape) * record.dtype.itemsize
    if spanned >= _ADDRESSABLE_BYTES:
        raise ValueError(f"TurboQuant header: no tensor can have the shape {shape}")
    rule = TensorRule(kv_layout="opaque")
    if record.kv_layout != rule.kv_layout:
        two_widths = record.kv_layout in TWO_WIDTHS
        rule = TensorRule(
            preset=record.preset,
            head_dim=record.head_dim,
            value_head_dim=record.value_head_dim if two_widths else 0,
            kv_layout=record.kv_layout,
            rope_theta=record.rope_theta,
        )
        num_layers = geometry_of(shape, record.dtype, rule).num_layers
        rule = replace(
            rule,
            skip_first_layers=record.quant_start,
            skip_last_layers=max(0, num_layers - record.quant_end),
        )
    return PayloadLayout.for_tensor(shape, record.dtype, rule, block_size=1)


def _contradiction(stored: Header, derived: Header) -> str:
    """Say what the first number is that does not follow from the others."""
    for found, expected in zip(stored.records, derived.records, strict=True):
        if found != expected:
            return f"it says {found}, which would be {expected}"
    if stored.total_bytes != derived.total_bytes:
        return f"its tensors make {derived.total_bytes} bytes, not {stored.total_bytes}"
    return "reserved bytes are not zero"
