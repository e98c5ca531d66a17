# SPDX-License-Identifier: Apache-2.0
"""What a header says of one tensor, byte by byte; little-endian."""

# Standard
from dataclasses import dataclass
import struct

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.failures import UnframedPayloadError
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout

MAX_DIMENSIONS = 7
MAX_SIZE = 2**32 - 1

_RECORD = struct.Struct("<BBBB7IfHHIIIQ")

RECORD_BYTES = _RECORD.size

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
    "turboquant_4bit_tc": 11,
    "turboquant_3bit_tc": 12,
    "turboquant_2bit_tc": 13,
    "turboquant_4bit_t": 14,
    "turboquant_3bit_t": 15,
    "turboquant_2bit_t": 16,
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


def _name(code: int, codes: dict, field: str):
    """Return what ``code`` stands for."""
    for name, known in codes.items():
        if code == known:
            return name
    raise UnframedPayloadError(f"TurboQuant header: unknown code {code} of {field}")
