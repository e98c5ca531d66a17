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

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.checksum import checksum
from lmcache.v1.distributed.serde.turboquant.failures import (
    ChangedSettingsError,
    CorruptPayloadError,
    PayloadError,
    TruncatedPayloadError,
    WrongKeyError,
)
from lmcache.v1.distributed.serde.turboquant.header import (
    ALIGNMENT_BYTES,
    MAX_TENSORS,
    Header,
    header_bytes,
    stored_checksum,
)
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.record import TensorRecord

PAGE_BYTES = 4096
"""What O_DIRECT asks of a file's size."""


@dataclass(frozen=True)
class FrameLayout:
    """Sizes and offsets of a frame.

    Attributes:
        layouts: Payload layouts of the object's tensors, in order.
        page_bytes: What the frame's size is rounded up to a multiple of.
    """

    layouts: tuple[PayloadLayout, ...]
    page_bytes: int = PAGE_BYTES

    def __hash__(self) -> int:
        """Return the hash of the fields, computed once."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.layouts, self.page_bytes))

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

    @property
    def body_start(self) -> int:
        """Offset of the first byte after the header."""
        return self.header_bytes

    @cached_property
    def gaps(self) -> tuple[slice, ...]:
        """Byte ranges after the header that no payload covers; they are zero."""
        starts = [span.stop for span in self.spans] or [self.header_bytes]
        stops = [span.start for span in self.spans[1:]] + [self.total_bytes]
        return tuple(map(slice, starts, stops))

    def seal(
        self,
        frame: torch.Tensor,
        key_fingerprint: int = 0,
        threads: int = 1,
        payload_sum: int | None = None,
    ) -> None:
        """Zero what no payload covers, and write the header.

        Args:
            frame: uint8 tensor of ``total_bytes``, its payloads in place.
            key_fingerprint: Fingerprint of the object's key; 0 where it has none.
            threads: Threads that the checksum is computed with on the CPU.
            payload_sum: What the payloads add to the checksum of all after the
                header; None has it computed.
        """
        for gap in self.gaps:
            frame[gap].zero_()
        if payload_sum is None:
            body_sum = checksum(frame[self.header_bytes :], threads=threads)
        else:
            body_sum = (payload_sum + self._gap_sum) % 2**64
        header = self._header(key_fingerprint, body_sum).pack()
        frame[: self.header_bytes] = torch.frombuffer(
            bytearray(header), dtype=torch.uint8
        )

    def verify(
        self,
        frame: torch.Tensor,
        key_fingerprint: int | None = None,
        threads: int = 1,
    ) -> None:
        """Check that a frame is exactly what this layout describes.

        Args:
            frame: uint8 tensor that starts with the frame, and may be longer.
            key_fingerprint: Fingerprint of the key that it must be stored under;
                None accepts any.
            threads: Threads that the checksum is computed with on the CPU.

        Raises:
            ValueError: If the header is corrupt or says anything else, the frame
                is cut short, or a byte of it has changed.
        """
        stored = self.check(frame, key_fingerprint)
        body = frame[self.header_bytes : self.total_bytes]
        found = checksum(body, threads=threads)
        require_checksum(stored, found)

    def check(self, frame: torch.Tensor, key_fingerprint: int | None = None) -> int:
        """Check all of a frame but the bytes after the header.

        Args:
            frame: As in :meth:`verify`.
            key_fingerprint: As in :meth:`verify`.

        Returns:
            The checksum that the bytes after the header must have.

        Raises:
            ValueError: If the header is corrupt or says anything else, or the frame
                is cut short.
        """
        head = bytes(frame[: self.header_bytes].cpu().numpy())
        if key_fingerprint is None or not self._begins(head, key_fingerprint):
            # Headers of other objects may be longer.
            head = bytes(frame[: header_bytes(MAX_TENSORS)].cpu().numpy())
            self._compare(head, key_fingerprint)
        if frame.numel() < self.total_bytes:
            raise TruncatedPayloadError(
                f"TurboQuant payload is cut short: expected {self.total_bytes} bytes, "
                f"got {frame.numel()}"
            )
        return stored_checksum(head)

    def _begins(self, head: bytes, key_fingerprint: int) -> bool:
        """Return whether ``head`` is the header of this layout and key."""
        if len(head) < self.header_bytes:
            return False
        return head == self._header(key_fingerprint, stored_checksum(head)).pack()

    def _compare(self, head: bytes, key_fingerprint: int | None) -> None:
        """Raise ValueError, and say why, unless ``head`` starts with the header."""
        stored = Header.unpack(head)
        if key_fingerprint is None:
            key_fingerprint = stored.key_fingerprint
        expected = self._header(key_fingerprint, stored.checksum)
        if head[: self.header_bytes] != expected.pack():
            raise _difference(stored, expected)

    @cached_property
    def _gap_sum(self) -> int:
        """What the zeros that no payload covers add to the checksum."""
        zeros = torch.zeros(self.page_bytes + ALIGNMENT_BYTES, dtype=torch.uint8)
        return sum(
            checksum(zeros[: gap.stop - gap.start], gap.start - self.header_bytes)
            for gap in self.gaps
        )

    def _header(self, key_fingerprint: int, body_checksum: int) -> Header:
        """Return the header of a frame of that key and checksum."""
        return Header(
            records=self.records,
            total_bytes=self.total_bytes,
            key_fingerprint=key_fingerprint,
            checksum=body_checksum,
        )


def require_checksum(stored: int, found: int) -> None:
    """Raise ValueError unless a frame's bytes have the checksum of its header."""
    if found != stored:
        raise CorruptPayloadError(
            f"TurboQuant payload is corrupt: its header has the checksum "
            f"{stored:#018x}, its bytes have {found:#018x}"
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
