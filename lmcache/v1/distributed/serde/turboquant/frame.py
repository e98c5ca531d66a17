# SPDX-License-Identifier: Apache-2.0
"""The frame: what stands around the payloads of one memory object.

``header | payloads, each at a multiple of 64 bytes | zero bytes``, rounded up to
whole pages of 4096 bytes, or to 64 bytes where no file adapter reads it. What a
header must say follows from the tensors and the configuration, so a reader compares
headers and believes no number in one.
"""

# Standard
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant.checksum import checksum
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.failures import (
    ChangedSettingsError,
    CorruptPayloadError,
    PayloadError,
    TruncatedPayloadError,
    WrongKeyError,
)
from lmcache.v1.distributed.serde.turboquant.header import (
    ALIGNMENT_BYTES,
    MAGIC,
    MAX_TENSORS,
    Header,
    TensorRecord,
    header_bytes,
)
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout, layouts_of

PAGE_BYTES = 4096
"""What O_DIRECT asks of a file's size."""


@dataclass(frozen=True)
class BareLayout:
    """Payloads one after another, and nothing else.

    Attributes:
        layouts: Payload layouts of the object's tensors, in order.
    """

    layouts: tuple[PayloadLayout, ...]

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """Byte ranges of the payloads."""
        stops = list(accumulate(layout.payload_bytes for layout in self.layouts))
        starts = [0, *stops][: len(stops)]
        return tuple(map(slice, starts, stops))

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(layout.payload_bytes for layout in self.layouts)

    def seal(self, buffer: torch.Tensor, key_fingerprint: int = 0) -> None:
        """Do nothing: the payloads are all there is."""

    def verify(self, buffer: torch.Tensor, key_fingerprint: int | None = None) -> None:
        """Check that a buffer has room for the payloads, and is no frame.

        Args:
            buffer: uint8 tensor that starts with the payloads.
            key_fingerprint: Unused: nothing tells whose payloads they are.

        Raises:
            ValueError: If it is too small, or starts as a frame does.
        """
        require_size(buffer, self.total_bytes, "source")
        if bytes(buffer[: len(MAGIC)].cpu().numpy()) == MAGIC:
            raise ChangedSettingsError(
                "TurboQuant payload has a frame, expected a bare one: set framed to "
                "true"
            )


@dataclass(frozen=True)
class FrameLayout:
    """Sizes and offsets of a frame.

    Attributes:
        layouts: Payload layouts of the object's tensors, in order.
        page_bytes: What the frame's size is rounded up to a multiple of.
    """

    layouts: tuple[PayloadLayout, ...]
    page_bytes: int = PAGE_BYTES

    @cached_property
    def records(self) -> tuple[TensorRecord, ...]:
        """What the header says of the tensors; raises ValueError like ``of``."""
        return tuple(TensorRecord.of(layout) for layout in self.layouts)

    @cached_property
    def header_bytes(self) -> int:
        """Bytes of the header."""
        return header_bytes(len(self.layouts))

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """Byte ranges of the payloads."""
        spans, start = [], self.header_bytes
        for layout in self.layouts:
            spans.append(slice(start, start + layout.payload_bytes))
            start += round_up(layout.payload_bytes, ALIGNMENT_BYTES)
        return tuple(spans)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of the whole frame."""
        end = self.spans[-1].stop if self.spans else self.header_bytes
        return round_up(end, self.page_bytes)

    def seal(self, frame: torch.Tensor, key_fingerprint: int = 0) -> None:
        """Zero what no payload covers, and write the header.

        Args:
            frame: uint8 tensor of ``total_bytes``, its payloads in place.
            key_fingerprint: Fingerprint of the object's key; 0 where it has none.
        """
        starts = [span.stop for span in self.spans] or [self.header_bytes]
        stops = [span.start for span in self.spans[1:]] + [self.total_bytes]
        for start, stop in zip(starts, stops, strict=True):
            frame[start:stop] = 0
        body = checksum(frame[self.header_bytes :])
        header = self._header(key_fingerprint, body).pack()
        frame[: self.header_bytes] = torch.frombuffer(
            bytearray(header), dtype=torch.uint8
        )

    def verify(self, frame: torch.Tensor, key_fingerprint: int | None = None) -> None:
        """Check that a frame is exactly what this layout describes.

        Args:
            frame: uint8 tensor that starts with the frame, and may be longer.
            key_fingerprint: Fingerprint of the key that it must be stored under;
                None accepts any.

        Raises:
            ValueError: If the header is corrupt or says anything else, the frame
                is cut short, or a byte of it has changed.
        """
        head = bytes(frame[: header_bytes(MAX_TENSORS)].cpu().numpy())
        stored = Header.unpack(head)
        if key_fingerprint is None:
            key_fingerprint = stored.key_fingerprint
        expected = self._header(key_fingerprint, stored.checksum)
        if head[: self.header_bytes] != expected.pack():
            raise _difference(stored, expected)
        if frame.numel() < self.total_bytes:
            raise TruncatedPayloadError(
                f"TurboQuant payload is cut short: expected {self.total_bytes} bytes, "
                f"got {frame.numel()}"
            )
        found = checksum(frame[self.header_bytes : self.total_bytes])
        if found != stored.checksum:
            raise CorruptPayloadError(
                f"TurboQuant payload is corrupt: its header has the checksum "
                f"{stored.checksum:#018x}, its bytes have {found:#018x}"
            )

    def _header(self, key_fingerprint: int, body_checksum: int) -> Header:
        """Return the header of a frame of that key and checksum."""
        return Header(
            records=self.records,
            total_bytes=self.total_bytes,
            key_fingerprint=key_fingerprint,
            checksum=body_checksum,
        )


Container = BareLayout | FrameLayout
"""What an object becomes: ``layouts``, ``spans`` and ``total_bytes``."""


def container_of(
    description: MemoryLayoutDesc, config: TurboQuantSerdeConfig
) -> Container:
    """Lay out what a memory object becomes.

    Args:
        description: Shapes and dtypes of the object's tensors.
        config: What the serde does with them.

    Returns:
        The container.

    Raises:
        ValueError: If the serde cannot store such an object.
    """
    layouts = layouts_of(description, config)
    if not config.framed:
        return BareLayout(layouts)
    frame = FrameLayout(layouts)
    _ = frame.records
    return frame


def require_size(buffer: torch.Tensor, num_bytes: int, role: str) -> None:
    """Raise ValueError unless ``buffer`` has ``num_bytes``; ``role`` names it."""
    if buffer.numel() < num_bytes:
        raise ValueError(
            f"TurboQuant {role} buffer too small: needs {num_bytes} bytes, got "
            f"{buffer.numel()}"
        )


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple that is not below ``size``."""
    return -(-size // multiple) * multiple


def _difference(stored: Header, expected: Header) -> PayloadError:
    """Return the error that names the first difference between two headers."""
    if len(stored.records) != len(expected.records):
        found, wanted = len(stored.records), len(expected.records)
        return ChangedSettingsError(
            f"TurboQuant payload holds {found} tensors, expected {wanted}"
        )
    for index, pair in enumerate(zip(stored.records, expected.records, strict=True)):
        for field in TensorRecord.__dataclass_fields__:
            found, wanted = (getattr(record, field) for record in pair)
            if found != wanted:
                return ChangedSettingsError(
                    f"TurboQuant payload was written with {field} {found} (tensor "
                    f"{index}), expected {wanted}: it belongs to another "
                    "configuration or model"
                )
    if stored.key_fingerprint != expected.key_fingerprint:
        return WrongKeyError(
            "TurboQuant payload belongs to another key: the storage returned another "
            "object's bytes"
        )
    if stored.total_bytes != expected.total_bytes:
        return ChangedSettingsError(
            f"TurboQuant payload has {stored.total_bytes} bytes, expected "
            f"{expected.total_bytes}"
        )
    return CorruptPayloadError(
        "TurboQuant payload has a header with numbers where zeros are expected"
    )
