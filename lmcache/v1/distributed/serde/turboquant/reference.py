# SPDX-License-Identifier: Apache-2.0
"""The specification of the codec, in plain torch, for any device.

Every step is an elementwise float32 operation in a fixed order (sums are
trees, the rotation is butterflies), so the bytes depend on the input alone:
not on the device, the number of threads or how rows are batched. Faster
backends are tested against this module.
"""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.slot import (
    FP16_BYTES,
    INDICES_PER_PACK,
    SlotLayout,
)

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = torch.finfo(FP8_DTYPE).max
FP16_MAX = torch.finfo(torch.float16).max

SMALLEST_VALUE_SCALE = 1e-8
"""Scale of a constant value row; LMCache 0.5.6 uses the same floor."""


def encode(tensor: torch.Tensor, payload: torch.Tensor, layout: PayloadLayout) -> None:
    """Write the payload of a KV tensor.

    Args:
        tensor: KV tensor of ``layout.shape`` and ``layout.dtype``.
        payload: uint8 tensor of ``layout.payload_bytes`` on the same device;
            every byte is written.
        layout: The payload's layout.
    """
    for layers, span in zip(layout.raw_layers, layout.raw_spans, strict=True):
        payload[span] = tensor[:, layers].reshape(-1).view(torch.uint8)
    slots = payload[layout.compressed_span].view(layout.compressed_shape)
    slots[:, layout.num_tokens :] = 0
    slots[..., layout.slot.used_bytes :] = 0
    heads = _split_heads(tensor, layout)
    for layer in range(layout.quant_start, layout.quant_end):
        layer_slots = slots[layer - layout.quant_start, : layout.num_tokens]
        keys, values = heads[:, layer].float()
        value_offset, end = layout.slot.value_offset, layout.slot.used_bytes
        layer_slots[..., :value_offset] = encode_keys(keys, layout.slot, layer)
        layer_slots[..., value_offset:end] = encode_values(values, layout.slot)


def decode(payload: torch.Tensor, tensor: torch.Tensor, layout: PayloadLayout) -> None:
    """Restore a KV tensor from its payload.

    Args:
        payload: uint8 tensor of ``layout.payload_bytes``.
        tensor: KV tensor of ``layout.shape`` and ``layout.dtype`` on the same
            device; every element is written.
        layout: The payload's layout.
    """
    for layers, span in zip(layout.raw_layers, layout.raw_spans, strict=True):
        # A clone starts at an address that every dtype is aligned to.
        raw = payload[span].clone().view(layout.dtype)
        tensor[:, layers] = raw.view(tensor[:, layers].shape)
    slots = payload[layout.compressed_span].view(layout.compressed_shape)
    heads = _split_heads(tensor, layout)
    for layer in range(layout.quant_start, layout.quant_end):
        layer_slots = slots[layer - layout.quant_start, : layout.num_tokens]
        heads[0, layer] = _to_dtype(
            decode_keys(layer_slots, layout.slot, layer), layout.dtype
        )
        heads[1, layer] = _to_dtype(
            decode_values(layer_slots, layout.slot), layout.dtype
        )


def encode_keys(keys: torch.Tensor, slot: SlotLayout, layer: int) -> torch.Tensor:
    """Quantise keys.

    Args:
        keys: float32 head vectors, ``[..., head_dim]``.
        slot: Byte layout of a slot.
        layer: Index of the layer within the memory object.

    Returns:
        uint8 tensor ``[..., slot.key_bytes]``.
    """
    if slot.preset.key_is_fp8:
        return keys.clamp(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).view(torch.uint8)
    norms = row_norms(keys)
    units = keys / torch.where(norms > 0, norms, 1)
    indices = torch.bucketize(
        rotate(units, layer),
        tables.boundaries(slot.head_dim, slot.preset.key_bits).to(keys.device),
        right=True,
    )
    packed = pack(indices, slot.preset.key_bits)
    return torch.cat([packed, _fp16_bytes(norms)], dim=-1)


def decode_keys(slots: torch.Tensor, slot: SlotLayout, layer: int) -> torch.Tensor:
    """Restore keys.

    Args:
        slots: uint8 tensor ``[..., slot_bytes]``.
        slot: Byte layout of a slot.
        layer: Index of the layer within the memory object.

    Returns:
        float32 head vectors ``[..., head_dim]``.
    """
    packed = slots[..., : slot.key_index_bytes]
    if slot.preset.key_is_fp8:
        return packed.contiguous().view(FP8_DTYPE).float()
    bits = slot.preset.key_bits
    codebook = tables.centroids(slot.head_dim, bits).to(slots.device)
    directions = codebook[unpack(packed, bits)]
    norms = _fp16_at(slots, slot.key_norm_offset)
    return unrotate(directions / row_norms(directions) * norms, layer)


def encode_values(values: torch.Tensor, slot: SlotLayout) -> torch.Tensor:
    """Quantise values to uniform levels between each row's extremes.

    Args:
        values: float32 head vectors, ``[..., head_dim]``.
        slot: Byte layout of a slot.

    Returns:
        uint8 tensor ``[..., slot.value_bytes]``.
    """
    bits = slot.preset.value_bits
    zeros = values.amin(dim=-1, keepdim=True)
    spans = values.amax(dim=-1, keepdim=True) - zeros
    top_level = 2**bits - 1
    # Divide by a tensor: by a number, some devices multiply by the reciprocal.
    scales = spans / torch.full_like(spans, top_level)
    scales = scales.clamp(min=SMALLEST_VALUE_SCALE)
    levels = ((values - zeros) / scales + 0.5).floor().nan_to_num(nan=0)
    packed = pack(levels.clamp(0, top_level).long(), bits)
    return torch.cat([packed, _fp16_bytes(scales), _fp16_bytes(zeros)], dim=-1)


def decode_values(slots: torch.Tensor, slot: SlotLayout) -> torch.Tensor:
    """Restore values as ``level * scale + zero``.

    Args:
        slots: uint8 tensor ``[..., slot_bytes]``.
        slot: Byte layout of a slot.

    Returns:
        float32 head vectors ``[..., head_dim]``.
    """
    packed = slots[..., slot.value_offset : slot.value_scale_offset]
    levels = unpack(packed, slot.preset.value_bits).float()
    scales = _fp16_at(slots, slot.value_scale_offset)
    return levels * scales + _fp16_at(slots, slot.value_zero_offset)


def rotate(rows: torch.Tensor, layer: int) -> torch.Tensor:
    """Apply a layer's random rotation ``y = W (signs * x)``.

    ``W`` is the orthonormal Sylvester Hadamard matrix. Where head_dim is not
    a power of two, it is the Kronecker product of the Hartley matrix of the
    odd factor and the Hadamard matrix of the power of two: orthonormal,
    symmetric, and without a coordinate left unmixed.

    Args:
        rows: float32 tensor ``[..., head_dim]``.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of the same shape.
    """
    return _mix(rows * tables.rotation_signs(rows.shape[-1], layer).to(rows.device))


def unrotate(rows: torch.Tensor, layer: int) -> torch.Tensor:
    """Undo :func:`rotate`: ``x = signs * (W y)``, as ``W`` is its own inverse.

    Args:
        rows: float32 tensor ``[..., head_dim]``.
        layer: Index of the layer within the memory object.

    Returns:
        float32 tensor of the same shape.
    """
    return _mix(rows) * tables.rotation_signs(rows.shape[-1], layer).to(rows.device)


def row_norms(rows: torch.Tensor) -> torch.Tensor:
    """Return Euclidean norms ``[..., 1]`` of ``rows``, summed as a tree."""
    sums = rows * rows
    while sums.shape[-1] % 2 == 0:
        left, right = sums.chunk(2, dim=-1)
        sums = left + right
    total = sums[..., :1]
    for column in range(1, sums.shape[-1]):
        total = total + sums[..., column : column + 1]
    # torch's float32 square root is not correctly rounded on every CPU. Rounding
    # the float64 root is, as float64 has more than twice the digits.
    return total.double().sqrt().float()


def pack(indices: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack indices, lowest bits first.

    Eight indices make one little-endian word of ``bits`` bytes: two nibbles a
    byte at 4 bits, a 24-bit word at 3 bits.

    Args:
        indices: int64 tensor ``[..., n]`` of values below ``2 ** bits``;
            ``n`` is a multiple of 8.
        bits: Bits an index, at most 4.

    Returns:
        uint8 tensor ``[..., n * bits / 8]``.
    """
    num_groups = indices.shape[-1] // INDICES_PER_PACK
    groups = indices.unflatten(-1, (num_groups, INDICES_PER_PACK))
    shifts = torch.arange(INDICES_PER_PACK, device=indices.device) * bits
    words = (groups << shifts).sum(dim=-1, keepdim=True)
    byte_shifts = torch.arange(bits, device=indices.device) * 8
    return ((words >> byte_shifts) & 0xFF).to(torch.uint8).flatten(-2)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Undo :func:`pack`.

    Args:
        packed: uint8 tensor ``[..., n * bits / 8]``.
        bits: Bits an index, at most 4.

    Returns:
        int64 tensor ``[..., n]``.
    """
    groups = packed.long().unflatten(-1, (packed.shape[-1] // bits, bits))
    byte_shifts = torch.arange(bits, device=packed.device) * 8
    words = (groups << byte_shifts).sum(dim=-1, keepdim=True)
    shifts = torch.arange(INDICES_PER_PACK, device=packed.device) * bits
    return ((words >> shifts) & (2**bits - 1)).flatten(-2)


def _mix(rows: torch.Tensor) -> torch.Tensor:
    """Multiply ``[..., head_dim]`` rows by the symmetric orthonormal ``W``."""
    width = rows.shape[-1]
    block = width & -width
    blocks = rows.unflatten(-1, (width // block, block))
    half = block // 2
    while half:
        pairs = blocks.unflatten(-1, (block // (2 * half), 2, half))
        left, right = pairs.unbind(dim=-2)
        blocks = torch.stack([left + right, left - right], dim=-2).flatten(-3)
        half //= 2
    blocks = blocks * block**-0.5
    if width == block:
        return blocks.flatten(-2)
    parts = blocks.unbind(dim=-2)
    mixed = []
    for weights in tables.hartley(len(parts)):
        total = parts[0] * weights[0]
        for part, weight in zip(parts[1:], weights[1:], strict=True):
            total = total + part * weight
        mixed.append(total)
    return torch.cat(mixed, dim=-1)


def _split_heads(tensor: torch.Tensor, layout: PayloadLayout) -> torch.Tensor:
    """View a KV tensor as ``[2, layers, tokens, heads, head_dim]``."""
    return tensor.unflatten(-1, (layout.num_heads, layout.slot.head_dim))


def _fp16_bytes(numbers: torch.Tensor) -> torch.Tensor:
    """Round ``[..., 1]`` float32 to float16, saturating; return ``[..., 2]`` bytes."""
    saturated = torch.where(
        numbers.isfinite(), numbers.clamp(-FP16_MAX, FP16_MAX), numbers
    )
    return saturated.to(torch.float16).view(torch.uint8)


def _fp16_at(slots: torch.Tensor, offset: int) -> torch.Tensor:
    """Read the float16 at ``offset`` of each slot as float32 ``[..., 1]``."""
    pair = slots[..., offset : offset + FP16_BYTES].contiguous()
    return pair.view(torch.float16).float()


def _to_dtype(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 to ``dtype``; finite numbers saturate, they do not overflow."""
    limit = torch.finfo(dtype).max
    saturated = torch.where(numbers.isfinite(), numbers.clamp(-limit, limit), numbers)
    return saturated.to(dtype)
