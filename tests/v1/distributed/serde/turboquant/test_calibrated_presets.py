# SPDX-License-Identifier: Apache-2.0
"""The calibrated presets: bytes, layouts, sizes, corruption, settings."""

# Standard
from dataclasses import replace
import math

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.layout import (
    MIN_CALIBRATED_TOKENS,
    PayloadLayout,
)
from lmcache.v1.distributed.serde.turboquant.presets import (
    CALIBRATED_PRESETS,
    PRESETS,
)
from lmcache.v1.distributed.serde.turboquant.standalone import TurboQuantCodec
from tests.v1.distributed.serde.turboquant.distortion import DISTORTION, error
from tests.v1.distributed.serde.turboquant.helpers import (
    POISONS,
    decode,
    encode,
    gaussian,
    unskipped,
)

NAMESAKES = {
    "turboquant_4bit_cc": "turboquant_4bit_nc",
    "turboquant_k3v4_cc": "turboquant_k3v4_nc",
    "turboquant_3bit_cc": "turboquant_3bit_nc",
    "turboquant_4bit_tc": "turboquant_4bit_nc",
    "turboquant_3bit_tc": "turboquant_3bit_nc",
}
LAYOUTS = {
    "split": ((2, 3, 100, 128), {}),
    "fused": ((1, 3, 100, 256), {}),
    "fused_planes": ((1, 3, 100, 256), {}),
    "diff": ((1, 3, 100, 192), {"value_head_dim": 32}),
    "latent": ((1, 3, 100, 96), {"value_head_dim": 32}),
    "components": ((1, 6, 100, 128), {}),
}


def codec(preset: str, head_dim: int = 64, **settings: object) -> TurboQuantCodec:
    """A codec of all layers."""
    config = TurboQuantSerdeConfig(
        preset=preset, head_dim=head_dim, skip_first_layers=0, skip_last_layers=0
    )
    return TurboQuantCodec(replace(config, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", NAMESAKES)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_bytes_are_those_of_the_namesake(preset: str, head_dim: int) -> None:
    def payload_bytes(name: str) -> int:
        rule = unskipped(name, head_dim)
        shape = torch.Size([2, 30, 256, 8 * head_dim])
        layout = PayloadLayout.for_tensor(shape, torch.bfloat16, rule, block_size=1)
        return layout.payload_bytes

    ratio = payload_bytes(preset) / payload_bytes(NAMESAKES[preset])
    assert 0.97 < ratio < 1.0205


@pytest.mark.parametrize("preset", CALIBRATED_PRESETS)
@pytest.mark.parametrize("kv_layout", LAYOUTS)
def test_every_layout_restores(preset: str, kv_layout: str) -> None:
    shape, settings = LAYOUTS[kv_layout]
    tensor = gaussian(*shape).bfloat16()
    data = codec(preset, kv_layout=kv_layout, **settings).to_bytes(tensor)
    restored = TurboQuantCodec.from_bytes(data)
    bits = CALIBRATED_PRESETS[preset]
    worst = DISTORTION[min(bits.key_bits, bits.value_bits)]
    best = DISTORTION[max(bits.key_bits, bits.value_bits)]
    assert restored.dtype == tensor.dtype
    assert 0.8 * best < error(restored.float(), tensor.float()) < 1.1 * worst
    assert len(data) < tensor.nbytes


@pytest.mark.parametrize("preset", CALIBRATED_PRESETS)
@pytest.mark.parametrize("num_tokens", [0, 1, 16, 63, 64, 65, 300])
def test_any_number_of_tokens(preset: str, num_tokens: int) -> None:
    tensor = gaussian(2, 2, num_tokens, 128).half()
    data = codec(preset, rope_theta=1e4).to_bytes(tensor)
    assert TurboQuantCodec.from_bytes(data).shape == tensor.shape
    assert len(data) <= tensor.nbytes + 128
    layout = PayloadLayout.for_tensor(
        tensor.shape, tensor.dtype, unskipped(preset, 64), block_size=1
    )
    has_table = layout.side_table.num_bytes > 0
    assert has_table == (num_tokens >= MIN_CALIBRATED_TOKENS)


def test_the_kept_keys_are_exact() -> None:
    tensor = gaussian(2, 1, 256, 64).bfloat16()
    tensor[0, 0, 0] *= 0.01
    tensor[0, 0, :, 5] += 50
    tensor[0, 0, 0, 5] = 0
    restored = TurboQuantCodec.from_bytes(codec("turboquant_2bit_cc").to_bytes(tensor))
    assert torch.equal(restored[0, 0, 0], tensor[0, 0, 0])
    assert not torch.equal(restored[0, 0, 1], tensor[0, 0, 1])


def test_encoding_again_is_stable() -> None:
    tensor = (gaussian(2, 2, 128, 128) + 5 * gaussian(2, 2, 1, 128, seed=1)).float()
    once = codec("turboquant_4bit_cc")
    first = TurboQuantCodec.from_bytes(once.to_bytes(tensor))
    second = TurboQuantCodec.from_bytes(once.to_bytes(first))
    assert error(second, tensor) < 1.5 * error(first, tensor)


@given(
    preset=st.sampled_from(list(CALIBRATED_PRESETS)),
    num_layers=st.integers(1, 4),
    num_tokens=st.integers(1, 140),
    num_heads=st.integers(1, 3),
    head_dim=st.sampled_from([8, 24, 64, 80]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    rope_theta=st.sampled_from([0.0, 1e4]),
)
@settings(max_examples=25, deadline=None)
def test_any_shape_through_the_serde(
    preset: str,
    num_layers: int,
    num_tokens: int,
    num_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    rope_theta: float,
) -> None:
    """Every byte is written, the same at every call; the estimate is exact."""
    config = TurboQuantSerdeConfig(
        preset=preset,
        head_dim=head_dim,
        framed=True,
        skip_first_layers=1,
        skip_last_layers=0,
        rope_theta=rope_theta,
    )
    tensor = gaussian(2, num_layers, num_tokens, num_heads * head_dim).to(dtype)
    payloads = [encode(tensor, config, poison) for poison in POISONS]
    assert torch.equal(*payloads)
    restored = decode(payloads[0], tensor, config)
    assert torch.equal(restored[:, :1], tensor[:, :1])
    if num_layers > 1:
        assert error(restored[:, 1:].float(), tensor[:, 1:].float()) < 0.3


@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
@settings(max_examples=50, deadline=None)
def test_a_changed_side_table_is_found(position: int, bit: int) -> None:
    tensor = gaussian(2, 1, 64, 64).half()
    data = bytearray(codec("turboquant_3bit_cc").to_bytes(tensor))
    rule = unskipped("turboquant_3bit_cc", 64)
    layout = PayloadLayout.for_tensor(tensor.shape, tensor.dtype, rule, block_size=1)
    assert layout.side_table_span.start == 0
    data[128 + position % layout.side_table.num_bytes] ^= 1 << bit
    with pytest.raises(ValueError, match="corrupt"):
        TurboQuantCodec.from_bytes(bytes(data))


def test_a_bare_payload_is_refused() -> None:
    config = TurboQuantSerdeConfig(preset="turboquant_4bit_cc", framed=False)
    with pytest.raises(ValueError, match="needs framed payloads"):
        config.require_presets()


@pytest.mark.parametrize("rope_theta", [-1, 0.5, math.nan, math.inf, True, "1e4"])
def test_impossible_rotary_bases_are_refused(rope_theta: object) -> None:
    with pytest.raises(ValueError, match="rope_theta must be 0 or a number"):
        codec("turboquant_4bit_cc", rope_theta=rope_theta)


def test_another_rotary_base_is_another_format() -> None:
    tensor = gaussian(2, 1, 64, 64).half()
    ours = codec("turboquant_4bit_cc", rope_theta=1e4).to_bytes(tensor)
    theirs = codec("turboquant_4bit_cc").to_bytes(tensor)
    assert ours[:128] != theirs[:128]
    plain = [
        codec(name, rope_theta=theta).to_bytes(tensor)
        for name in PRESETS
        for theta in (0, 1e4)
    ]
    assert plain[0::2] == plain[1::2]
