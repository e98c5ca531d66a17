# SPDX-License-Identifier: Apache-2.0
"""Properties that hold for every shape, dtype and preset."""

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import torch

# First Party
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    POISONS,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    relative_error,
    unskipped,
)

LARGEST_KEY_ERROR = {4: 3 * 0.0095, 3: 3 * 0.0346}
"""Relative to the keys: three times Lloyd-Max theory, as short rows scatter."""


def assert_fp8_keys_are_nearest(keys: torch.Tensor, restored: torch.Tensor) -> None:
    """e4m3 has 4 significant bits, and steps of 2^-9 below 2^-6."""
    bound = (keys.abs() / 16).clamp(min=2.0**-10)
    assert ((restored - keys).abs() <= bound * (1 + 2.0**-7)).all()


def assert_values_are_nearest(
    values: torch.Tensor, restored: torch.Tensor, bits: int
) -> None:
    """Half a step, and what rounding scale and zero to float16 adds."""
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    steps = (high - low) / (2**bits - 1)
    rounding = 2.0**-7 * torch.maximum(low.abs(), high.abs())
    assert ((restored - values).abs() <= steps / 2 + rounding + 2.0**-24).all()


@st.composite
def kv_cases(draw: st.DrawFn):
    """A small KV tensor of Gaussian rows, and a configuration that fits it."""
    preset = draw(st.sampled_from(PRESET_NAMES))
    head_dim = draw(st.sampled_from([8, 16, 24, 64, 80, 128, 192, 256]))
    config = unskipped(
        preset,
        head_dim,
        block_size=draw(st.integers(1, 32)),
        skip_first_layers=draw(st.integers(0, 3)),
        skip_last_layers=draw(st.integers(0, 3)),
    )
    num_layers, num_heads = draw(st.integers(0, 5)), draw(st.integers(1, 3))
    num_tokens = draw(st.integers(0, 40))
    dtype = draw(st.sampled_from(KV_DTYPES))
    scale = draw(st.sampled_from([1e-2, 1.0, 30.0]))
    tensor = scale * gaussian(
        2, num_layers, num_tokens, num_heads * head_dim, seed=draw(st.integers(0, 999))
    )
    return tensor.to(dtype), config


@given(case=kv_cases())
@settings(max_examples=150)
def test_round_trip(case) -> None:
    tensor, config = case
    payload, again = (encode(tensor, config, poison) for poison in POISONS)
    assert torch.equal(payload, again)
    restored = decode(payload, tensor, config)
    assert restored.shape == tensor.shape and restored.isfinite().all()
    num_layers = tensor.shape[1]
    first = min(config.skip_first_layers, num_layers)
    last = max(first, num_layers - config.skip_last_layers)
    for raw in (slice(0, first), slice(last, None)):
        assert torch.equal(restored[:, raw], tensor[:, raw])
    if last == first or not tensor.numel():
        return
    heads = [
        part[:, first:last].float().unflatten(-1, (-1, config.head_dim))
        for part in (tensor, restored)
    ]
    (keys, values), (restored_keys, restored_values) = heads
    if config.key_fp8:
        assert_fp8_keys_are_nearest(keys, restored_keys)
    else:
        error = relative_error(keys, restored_keys)
        assert 0 < error < LARGEST_KEY_ERROR[config.key_quant_bits]
    assert_values_are_nearest(values, restored_values, config.value_quant_bits)
