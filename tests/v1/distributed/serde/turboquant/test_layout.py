# SPDX-License-Identifier: Apache-2.0
"""Sizes and offsets to the byte, computed here from the format's definition."""

# Standard
import math

# Third Party
from hypothesis import given
from hypothesis import strategies as st
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout, layouts_of
from lmcache.v1.distributed.serde.turboquant.slot import MAX_HEAD_DIM, ValueField
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    PRESET_NAMES,
    slot_of,
    unskipped,
)

KEY_AND_VALUE_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


@pytest.mark.parametrize(
    ("preset", "head_dim", "slot_bytes"),
    [
        ("turboquant_k8v4", 64, 100),
        ("turboquant_k8v4", 128, 196),
        ("turboquant_k8v4", 256, 388),
        ("turboquant_4bit_nc", 64, 70),
        ("turboquant_4bit_nc", 128, 134),
        ("turboquant_4bit_nc", 256, 262),
        ("turboquant_k3v4_nc", 64, 62),
        ("turboquant_k3v4_nc", 128, 118),
        ("turboquant_k3v4_nc", 256, 230),
        ("turboquant_3bit_nc", 64, 54),
        ("turboquant_3bit_nc", 128, 102),
        ("turboquant_3bit_nc", 256, 198),
        ("turboquant_k3v4_nc", 8, 14),
    ],
)
def test_slot_bytes(preset: str, head_dim: int, slot_bytes: int) -> None:
    assert slot_of(preset, head_dim).slot_bytes == slot_bytes


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("head_dim", range(8, MAX_HEAD_DIM + 1, 8))
def test_slot_fields_are_contiguous(preset: str, head_dim: int) -> None:
    slot = slot_of(preset, head_dim)
    key_bits, value_bits = KEY_AND_VALUE_BITS[preset]
    norm_bytes = 0 if key_bits == 8 else 2
    assert slot.key.norm_offset * 8 == head_dim * key_bits
    assert slot.value_offset == slot.key.num_bytes
    assert slot.key.num_bytes == slot.key.norm_offset + norm_bytes
    assert isinstance(slot.value, ValueField)
    assert slot.value.scale_offset * 8 == head_dim * value_bits
    assert slot.value.zero_offset == slot.value.scale_offset + 2
    assert slot.value.num_bytes == slot.value.zero_offset + 2
    assert slot.used_bytes == slot.value_offset + slot.value.num_bytes
    assert slot.slot_bytes % 2 == 0 and 0 <= slot.slot_bytes - slot.used_bytes <= 1


@given(
    preset=st.sampled_from(PRESET_NAMES),
    dtype=st.sampled_from(KV_DTYPES),
    head_dim=st.integers(1, MAX_HEAD_DIM // 8).map(lambda eighth: 8 * eighth),
    num_layers=st.integers(0, 90),
    num_tokens=st.integers(0, 4096),
    num_heads=st.integers(1, 64),
    block_size=st.integers(1, 64),
    skips=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_payload_bytes_follow_the_definition(
    preset: str,
    dtype: torch.dtype,
    head_dim: int,
    num_layers: int,
    num_tokens: int,
    num_heads: int,
    block_size: int,
    skips: tuple[int, int],
) -> None:
    config = TurboQuantSerdeConfig(
        preset=preset,
        head_dim=head_dim,
        block_size=block_size,
        skip_first_layers=skips[0],
        skip_last_layers=skips[1],
    )
    shape = torch.Size([2, num_layers, num_tokens, num_heads * head_dim])
    layout = PayloadLayout.for_tensor(shape, dtype, config, block_size)
    raw_layers = min(num_layers, sum(skips))
    raw_bytes = 2 * raw_layers * num_tokens * num_heads * head_dim * dtype.itemsize
    blocks = math.ceil(num_tokens / block_size)
    slots = (num_layers - raw_layers) * blocks * block_size * num_heads
    assert layout.payload_bytes == raw_bytes + slots * config.slot_size_aligned
    assert layouts_of(MemoryLayoutDesc([shape], [dtype]), config) == (layout,)
    first, last = layout.raw_spans
    assert (first.start, first.stop) == (0, layout.compressed_span.start)
    assert (last.start, last.stop) == (layout.compressed_span.stop, sum_end(layout))


def sum_end(layout: PayloadLayout) -> int:
    """End of the payload as the sum of its parts."""
    leading, trailing = layout.raw_layers
    raw_layers = leading.stop - leading.start + trailing.stop - trailing.start
    slots = math.prod(layout.compressed_shape)
    return raw_layers * layout.raw_layer_bytes + slots


def test_sizes_beyond_32_bits_are_exact() -> None:
    config = unskipped("turboquant_4bit_nc")
    shape = torch.Size([2, 80, 1 << 20, 8 * 128])
    layout = PayloadLayout.for_tensor(shape, torch.bfloat16, config, 16)
    assert layout.payload_bytes == 80 * (1 << 20) * 8 * 134 > 2**36
