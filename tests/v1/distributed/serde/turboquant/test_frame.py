# SPDX-License-Identifier: Apache-2.0
"""The frame: what it costs, and that nothing else is ever decoded."""

# Standard
from dataclasses import replace

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.checksum import checksum
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.header import Header, header_bytes
from lmcache.v1.distributed.serde.turboquant.presets import ALL_PRESETS
from lmcache.v1.distributed.serde.turboquant.record import PRESET_CODES
from tests.v1.distributed.serde.turboquant.helpers import (
    POISONS,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    memory_obj,
    object_key,
    unskipped,
)

TENSOR = gaussian(2, 4, 20, 2 * 64).half()
CONFIG = unskipped("turboquant_4bit_nc", 64, framed=True, skip_first_layers=1)
FRAME = encode(TENSOR, CONFIG)


def assert_refused(
    payload: torch.Tensor,
    message: str = "",
    tensor: torch.Tensor = TENSOR,
    config: TurboQuantSerdeConfig = CONFIG,
) -> None:
    """The payload raises ValueError and leaves the destination alone."""
    destination = torch.full_like(tensor, 7)
    with pytest.raises(ValueError, match=message):
        TurboQuantDeserializer(config).deserialize(
            memory_obj(payload), memory_obj(destination), object_key()
        )
    assert (destination == 7).all()


def test_size_is_a_page_multiple_and_every_byte_is_written() -> None:
    layout = container_of(MemoryLayoutDesc([TENSOR.shape], [TENSOR.dtype]), CONFIG)
    raw, slots = 2 * 20 * 128 * 2, 3 * 20 * 2 * 70
    assert isinstance(layout, FrameLayout)
    assert layout.header_bytes == header_bytes(1) == 128
    assert layout.spans == (slice(128, 128 + raw + slots),)
    assert FRAME.numel() == layout.total_bytes == -(-(128 + raw + slots) // 4096) * 4096
    assert torch.equal(FRAME, encode(TENSOR, CONFIG, POISONS[1]))


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("num_tokens", [0, 1, 2, 15, 16, 17, 255, 4096])
def test_a_frame_is_never_larger_than_raw_bytes_and_a_page(
    preset: str, num_tokens: int
) -> None:
    config = unskipped(preset, 64, framed=True)
    shape = torch.Size([2, 3, num_tokens, 2 * 64])
    layout = container_of(MemoryLayoutDesc([shape], [torch.half]), config)
    assert layout.total_bytes <= 2 * shape.numel() + 128 + 4095


def test_payloads_are_those_of_unpadded_bare_ones() -> None:
    bare = encode(TENSOR, replace(CONFIG, framed=False, block_size=1))
    assert torch.equal(FRAME[128 : 128 + bare.numel()], bare)
    assert not FRAME[128 + bare.numel() :].any()


def test_longer_buffers_are_read() -> None:
    longer = torch.cat([FRAME, torch.full((1000,), 0x5A, dtype=torch.uint8)])
    assert torch.equal(decode(longer, TENSOR, CONFIG), decode(FRAME, TENSOR, CONFIG))


@given(position=st.integers(0, FRAME.numel() * 8 - 1))
@settings(max_examples=300)
def test_every_flipped_bit_is_found(position: int) -> None:
    changed = FRAME.clone()
    changed[position // 8] ^= 1 << position % 8
    assert_refused(changed)


@given(length=st.integers(0, FRAME.numel() - 1))
@settings(max_examples=100)
def test_every_truncation_is_found(length: int) -> None:
    assert_refused(FRAME[:length].clone())


@given(
    start=st.integers(0, FRAME.numel() - 1),
    length=st.integers(1, 4096),
    source=st.integers(0, FRAME.numel() - 1),
)
@settings(max_examples=200)
def test_every_splice_is_found(start: int, length: int, source: int) -> None:
    changed = FRAME.clone()
    piece = FRAME[source : source + length][: FRAME.numel() - start]
    changed[start : start + piece.numel()] = piece
    if not torch.equal(changed, FRAME):
        assert_refused(changed)


@pytest.mark.parametrize("unit", [1, 2, 4, 64, 512, 4096])
def test_swapped_stretches_are_found(unit: int) -> None:
    stretches = FRAME.view(-1, unit)
    changed = stretches.clone()
    filled = stretches.any(dim=1).nonzero().flatten()
    swapped = torch.stack([filled[0], filled[-1]])
    changed[swapped] = stretches[swapped.flip(0)]
    assert_refused(changed.flatten())


@pytest.mark.parametrize("value", [0, 1, 0xFF])
def test_constant_bytes_are_refused(value: int) -> None:
    assert_refused(torch.full_like(FRAME, value), "not a framed TurboQuant payload")


def test_bare_payloads_are_refused_with_what_to_do() -> None:
    bare = encode(TENSOR, replace(CONFIG, framed=False))
    padded = torch.cat([bare, torch.zeros(8192, dtype=torch.uint8)])
    assert_refused(padded, "not a framed TurboQuant payload.*set framed to false")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"preset": "turboquant_3bit_nc"},
            "preset turboquant_4bit_nc .* expected turb",
        ),
        ({"preset": "turboquant_k8v4"}, "preset turboquant_4bit_nc"),
        ({"head_dim": 128}, "head_dim 64 .*expected 128"),
        ({"skip_first_layers": 0}, "quant_start 1 .*expected 0"),
        ({"skip_last_layers": 2}, "quant_end 4 .*expected 2"),
        ({"kv_layout": "opaque"}, "preset turboquant_4bit_nc"),
    ],
)
def test_another_configuration_is_refused(other: dict, message: str) -> None:
    longer = torch.cat([FRAME, torch.zeros(1 << 16, dtype=torch.uint8)])
    assert_refused(longer, message, config=replace(CONFIG, **other))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 4, 21, 128), torch.half, r"shape \(2, 4, 20, 128\) .*\(2, 4, 21, 128\)"),
        ((2, 4, 20, 128), torch.bfloat16, "dtype torch.float16 .*torch.bfloat16"),
        ((2, 4, 10, 256), torch.half, "shape"),
    ],
)
def test_another_tensor_is_refused(
    shape: tuple[int, ...], dtype: torch.dtype, message: str
) -> None:
    longer = torch.cat([FRAME, torch.zeros(1 << 16, dtype=torch.uint8)])
    assert_refused(longer, message, tensor=torch.zeros(shape, dtype=dtype))


def test_another_objects_frame_is_refused() -> None:
    other = encode(TENSOR, CONFIG, key=object_key(1))
    assert_refused(other, "belongs to another key")
    for key in (object_key(0, "another model"), replace(object_key(), cache_salt="x")):
        assert_refused(encode(TENSOR, CONFIG, key=key), "belongs to another key")


def test_headers_survive_packing() -> None:
    data = bytes(FRAME[:128].numpy())
    header = Header.unpack(data)
    assert header.pack() == data
    assert header.total_bytes == FRAME.numel()
    assert header.checksum == checksum(FRAME[128:])
    assert [record.preset for record in header.records] == [CONFIG.preset]


def test_every_preset_has_a_code_of_its_own() -> None:
    assert set(PRESET_CODES) == {"", *ALL_PRESETS}
    assert len(set(PRESET_CODES.values())) == len(PRESET_CODES)


def test_checksum_is_the_same_on_every_device(device: torch.device) -> None:
    data = torch.randint(0, 256, (1 << 18,), dtype=torch.uint8)
    assert checksum(data.to(device)) == checksum(data) != 0
    assert checksum(torch.zeros(64, dtype=torch.uint8)) != checksum(data)
