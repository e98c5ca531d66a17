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

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.serde.turboquant.failures import (
    CorruptPayloadError,
    UnframedPayloadError,
)
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout

MAGIC = b"\x93KVTQ\r\n\x1a"
"""Not text: a transfer that alters line ends or the high bit shows at once."""

VERSION = 1

ROTATION = 1
"""Code of the signed Hadamard and Hartley rotation of ``reference.rotate``."""

KEY_ENCODING = 1
"""Code of float8 e4m3 keys and indices of the exact Lloyd-Max codebook."""

ALIGNMENT_BYTES = 64
MAX_DIMENSIONS = 7
MAX_TENSORS = 1024
MAX_SIZE = 2**32 - 1

_PREFACE = struct.Struct("<8sHHBBHQQQ")
_RECORD = struct.Struct("<BBBB7IfHHIIIQ")
_CRC = struct.Struct("<I")

PRESET_CODES = {
    "": 0,
    "turboquant_k8v4": 1,
    "turboquant_4bit_nc": 2,
    "turboquant_k3v4_nc": 3,
    "turboquant_3bit_nc": 4,
    "turboquant_4bit_cc": 5,
    "turboquant_k4v3_cc": 6,
    "turboquant_k3v4_cc": 7,
    "turboquant_3bit_cc": 8,
    "turboquant_k3v2_cc": 9,
    "turboquant_2bit_cc": 10,
}
"""Opaque tensors have no preset."""

KV_LAYOUT_CODES = {
    "opaque": 0,
    "split": 1,
    "fused": 2,
    "fused_planes": 3,
    "diff": 4,
    "latent": 5,
    "components": 6,
}

DTYPE_CODES = {
    torch.float16: 1,
    torch.bfloat16: 2,
    torch.float32: 3,
    torch.float64: 4,
    torch.bool: 5,
    torch.uint8: 6,
    torch.int8: 7,
    torch.int16: 8,
    torch.int32: 9,
    torch.int64: 10,
    torch.float8_e4m3fn: 11,
    torch.float8_e5m2: 12,
}


@dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """What a header says of one tensor.

    Attributes:
        preset: Preset's name; empty for an opaque tensor.
        kv_layout: Layout's name, ``auto`` resolved.
        dtype: Element type.
        shape: Shape.
        rope_theta: Base of the rotary embedding that the encoder undid; 0: none.
        head_dim: Dimensions of a key.
        value_head_dim: Dimensions of a value.
        quant_start: First compressed layer.
        quant_end: Layer after the last compressed one.
        side_table_bytes: Bytes of the side table within the payload.
        payload_bytes: Bytes of the payload.
    """

    preset: str
    kv_layout: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    rope_theta: float
    head_dim: int
    value_head_dim: int
    quant_start: int
    quant_end: int
    side_table_bytes: int
    payload_bytes: int

    @classmethod
    def of(cls, layout: PayloadLayout) -> "TensorRecord":
        """Describe a tensor.

        Args:
            layout: Layout of its payload.

        Returns:
            The record.

        Raises:
            ValueError: If a record cannot hold the tensor's dtype or shape.
        """
        shape, geometry = tuple(layout.shape), layout.geometry
        if layout.dtype not in DTYPE_CODES:
            raise ValueError(f"TurboQuant cannot store tensors of {layout.dtype}")
        if len(shape) > MAX_DIMENSIONS or max(shape, default=0) > MAX_SIZE:
            raise ValueError(
                f"TurboQuant stores up to {MAX_DIMENSIONS} dimensions of up to "
                f"{MAX_SIZE}, got {shape}"
            )
        return cls(
            preset="" if geometry.is_opaque else layout.preset,
            kv_layout=geometry.kv_layout,
            dtype=layout.dtype,
            shape=shape,
            rope_theta=layout.slot.key.rope_theta,
            head_dim=geometry.key_dim,
            value_head_dim=geometry.value_dim,
            quant_start=layout.quant_start,
            quant_end=layout.quant_end,
            side_table_bytes=layout.side_table.num_bytes,
            payload_bytes=layout.payload_bytes,
        )

    def pack(self) -> bytes:
        """Return the record's bytes."""
        sizes = self.shape + (0,) * (MAX_DIMENSIONS - len(self.shape))
        return _RECORD.pack(
            PRESET_CODES[self.preset],
            KV_LAYOUT_CODES[self.kv_layout],
            DTYPE_CODES[self.dtype],
            len(self.shape),
            *sizes,
            self.rope_theta,
            self.head_dim,
            self.value_head_dim,
            self.quant_start,
            self.quant_end,
            self.side_table_bytes,
            self.payload_bytes,
        )

    @classmethod
    def unpack(cls, data: bytes) -> "TensorRecord":
        """Read a record.

        Args:
            data: Its bytes.

        Returns:
            The record; whether its numbers agree is not checked.

        Raises:
            ValueError: If a code is unknown.
        """
        preset, kv_layout, dtype, num_dimensions, *rest = _RECORD.unpack(data)
        shape, rest = rest[:MAX_DIMENSIONS], rest[MAX_DIMENSIONS:]
        rope_theta, head_dim, value_head_dim, quant_start, quant_end, *sizes = rest
        side_table_bytes, payload_bytes = sizes
        if num_dimensions > MAX_DIMENSIONS:
            raise UnframedPayloadError(
                f"TurboQuant header: {num_dimensions} dimensions"
            )
        return cls(
            preset=_name(preset, PRESET_CODES, "preset"),
            kv_layout=_name(kv_layout, KV_LAYOUT_CODES, "kv_layout"),
            dtype=_name(dtype, DTYPE_CODES, "dtype"),
            shape=tuple(shape[:num_dimensions]),
            rope_theta=rope_theta,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            quant_start=quant_start,
            quant_end=quant_end,
            side_table_bytes=side_table_bytes,
            payload_bytes=payload_bytes,
        )


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
        starts = range(_PREFACE.size, _PREFACE.size + num_records * _RECORD.size)
        records = tuple(
            TensorRecord.unpack(content[start : start + _RECORD.size])
            for start in starts[:: _RECORD.size]
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
    content = _PREFACE.size + num_records * _RECORD.size + _CRC.size
    return math.ceil(content / ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _name(code: int, codes: dict, field: str):
    """Return what ``code`` stands for."""
    for name, known in codes.items():
        if code == known:
            return name
    raise UnframedPayloadError(f"TurboQuant header: unknown code {code} of {field}")
