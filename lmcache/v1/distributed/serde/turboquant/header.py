# SPDX-License-Identifier: Apache-2.0
"""The header of a frame, byte by byte.

Little-endian: a preface, a record for each tensor, zero bytes, and in the last four
bytes the CRC-32 of all before. The size is a multiple of 64.
"""

# Standard
from dataclasses import dataclass
import hashlib
import math
import struct
import zlib

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.serde.turboquant.failures import (
    CorruptPayloadError,
    UnframedPayloadError,
)
from lmcache.v1.distributed.serde.turboquant.record import RECORD_BYTES, TensorRecord

MAGIC = b"\x93KVTQ\r\n\x1a"
"""Not text: a transfer that alters line ends or the high bit shows at once."""

VERSION = 1

ROTATION = 1
"""Code of the signed Hadamard and Hartley rotation of ``reference.rotate``."""

KEY_ENCODING = 1
"""Code of float8 e4m3 keys and indices of the exact Lloyd-Max codebook."""

ALIGNMENT_BYTES = 64
MAX_TENSORS = 1024

_PREFACE = struct.Struct("<8sHHBBHQQQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class Header:
    """Everything that a header says.

    Attributes:
        records: The tensors, in order.
        total_bytes: Bytes of the whole frame.
        key_fingerprint: ``fingerprint`` of the key that it is stored under; 0 where
            it is stored under none.
        checksum: Checksum of what follows the header.
    """

    records: tuple[TensorRecord, ...]
    total_bytes: int
    key_fingerprint: int
    checksum: int

    def pack(self) -> bytes:
        """Return the header's bytes, ``header_bytes`` of them."""
        num_records = len(self.records)
        preface = _PREFACE.pack(
            MAGIC,
            VERSION,
            num_records,
            ROTATION,
            KEY_ENCODING,
            0,
            self.total_bytes,
            self.key_fingerprint,
            self.checksum,
        )
        content = preface + b"".join(record.pack() for record in self.records)
        content = content.ljust(header_bytes(num_records) - _CRC.size, b"\0")
        return content + _CRC.pack(zlib.crc32(content))

    @classmethod
    def unpack(cls, data: bytes) -> "Header":
        """Read the header at the start of ``data``.

        Args:
            data: The frame's first bytes.

        Returns:
            The header. Its CRC is right; whether its numbers agree with each
            other is not checked.

        Raises:
            ValueError: If ``data`` does not start with a whole, intact header of
                this version.
        """
        if data[: len(MAGIC)] != MAGIC or len(data) < _PREFACE.size:
            raise UnframedPayloadError(
                f"not a framed TurboQuant payload: it starts with {data[:8].hex()}, "
                f"expected {MAGIC.hex()}; to read bare payloads, such as those of "
                "LMCache 0.5.6, set framed to false"
            )
        _, version, num_records, *rest = _PREFACE.unpack_from(data)
        *codes, _, total_bytes, key_fingerprint, checksum = rest
        if version != VERSION or num_records > MAX_TENSORS:
            raise UnframedPayloadError(
                f"TurboQuant frame version {version} with {num_records} tensors, "
                f"expected version {VERSION} with up to {MAX_TENSORS}"
            )
        if codes != [ROTATION, KEY_ENCODING]:
            raise UnframedPayloadError(
                f"TurboQuant rotation and key encoding {codes}, expected "
                f"{[ROTATION, KEY_ENCODING]}"
            )
        size = header_bytes(num_records)
        content, crc = data[: size - _CRC.size], data[size - _CRC.size : size]
        if crc != _CRC.pack(zlib.crc32(content)):
            raise CorruptPayloadError(
                "TurboQuant header is corrupt: its CRC-32 is wrong"
            )
        starts = range(_PREFACE.size, _PREFACE.size + num_records * RECORD_BYTES)
        records = tuple(
            TensorRecord.unpack(content[start : start + RECORD_BYTES])
            for start in starts[::RECORD_BYTES]
        )
        return cls(
            records=records,
            total_bytes=total_bytes,
            key_fingerprint=key_fingerprint,
            checksum=checksum,
        )


def fingerprint(key: ObjectKey) -> int:
    """Return a 64-bit digest of everything that identifies an object.

    Args:
        key: Key of the object. Its texts hold no ``@``, which separates them here.

    Returns:
        An unsigned number.
    """
    place = (key.model_name, str(key.kv_rank), str(key.object_group_id), key.cache_salt)
    identity = "@".join(place).encode() + b"@" + key.chunk_hash
    return int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")


def stored_checksum(head: bytes) -> int:
    """Return the checksum in a header's bytes, whatever else is in them."""
    return _PREFACE.unpack_from(head)[-1]


def header_bytes(num_records: int) -> int:
    """Return the size of a header that describes ``num_records`` tensors."""
    content = _PREFACE.size + num_records * RECORD_BYTES + _CRC.size
    return math.ceil(content / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
