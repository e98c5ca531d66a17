# SPDX-License-Identifier: Apache-2.0
"""Every layout against its split equivalent, and what is refused."""

# Standard
from collections.abc import Callable

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.config import TensorRule
from lmcache.v1.distributed.serde.turboquant.kv_layout import geometry_of
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    relative_error,
    unskipped,
)

LAYERS, HEADS, DIM = 4, 3, 64

Arrange = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ARRANGEMENTS: dict[str, Arrange] = {
    "split": lambda k, v: torch.stack([k, v]).flatten(-2),
    "fused": lambda k, v: torch.stack([k, v], -2).flatten(-3)[None],
    "fused_planes": lambda k, v: torch.stack([k, v], -3).flatten(-3)[None],
    "components": lambda k, v: torch.stack([k, v], 1).flatten(0, 1).flatten(-2)[None],
}
"""How each layout holds keys and values ``[layers, tokens, heads, dim]``."""


def keys_and_values(num_tokens: int, value_dim: int = DIM) -> list[torch.Tensor]:
    """Random keys and values, ``[layers, tokens, heads, dim]``."""
    return [
        (2 + part) * gaussian(LAYERS, num_tokens, HEADS, dim, seed=part).bfloat16()
        for part, dim in enumerate((DIM, value_dim))
    ]


def round_trip(tensor: torch.Tensor, config: TurboQuantSerdeConfig):
    """Size of the payload, and what it restores."""
    payload = encode(tensor, config)
    return payload.numel(), decode(payload, tensor, config)


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("kv_layout", ARRANGEMENTS)
@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 1, 37])
@pytest.mark.parametrize("with_plane_dimension", [True, False])
def test_layouts_restore_what_split_restores(
    preset: str,
    kv_layout: str,
    framed: bool,
    num_tokens: int,
    with_plane_dimension: bool,
) -> None:
    keys, values = keys_and_values(num_tokens)
    settings = {"skip_first_layers": 1, "skip_last_layers": 1, "framed": framed}
    split = unskipped(preset, DIM, **settings)
    size, restored = round_trip(ARRANGEMENTS["split"](keys, values), split)
    restored_keys, restored_values = restored.unflatten(-1, (HEADS, DIM))
    arrange = ARRANGEMENTS[kv_layout]
    tensor, expected = arrange(keys, values), arrange(restored_keys, restored_values)
    if not with_plane_dimension and kv_layout != "split":
        tensor, expected = tensor[0], expected[0]
    config = unskipped(preset, DIM, kv_layout=kv_layout, **settings)
    other_size, other_restored = round_trip(tensor, config)
    assert other_size == size
    assert torch.equal(other_restored, expected)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_diff_quantises_keys_and_values_of_their_own_widths(preset: str) -> None:
    keys, values = keys_and_values(50, value_dim=40)
    tensor = torch.cat([keys, values], dim=-1).flatten(-2)[None]
    config = unskipped(preset, DIM, kv_layout="diff", value_head_dim=40)
    size, restored = round_trip(tensor, config)
    both = restored[0].unflatten(-1, (HEADS, DIM + 40))
    for part, dim, original in (
        (both[..., :DIM], DIM, keys),
        (both[..., DIM:], 40, values),
    ):
        alone = original.flatten(-2)
        pair = torch.stack([alone, alone])
        _, expected = round_trip(pair, unskipped(preset, dim))
        which = 0 if dim == DIM else 1
        assert torch.equal(part.flatten(-2), expected[which])


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_latents_are_keys_in_two_parts(preset: str) -> None:
    tensor = gaussian(1, LAYERS, 50, 512 + 64).bfloat16()
    tensor[..., 512:] *= 30
    config = unskipped(preset, 512, kv_layout="latent", value_head_dim=64)
    size, restored = round_trip(tensor, config)
    bits = config.key_quant_bits
    norms = 0 if bits == 8 else 4
    assert size == LAYERS * 64 * (576 * bits // 8 + norms)
    limit = {8: 0.001, 4: 0.0098, 3: 0.0355}[bits]
    for part in (slice(0, 512), slice(512, 576)):
        error = relative_error(tensor[..., part], restored[..., part])
        assert limit / 2 < error < limit


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.int64], ids=str
)
@pytest.mark.parametrize("shape", [(2, 3, 5, 64), (1, 78, 3, 133), (7,), (0, 4)])
def test_integers_and_float8_are_stored_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    numbers = torch.randint(0, 100, shape).to(torch.uint8)
    tensor = numbers.view(dtype) if dtype.itemsize == 1 else numbers.to(dtype)
    payload = encode(tensor, unskipped("turboquant_3bit_nc", framed=True))
    restored = torch.empty_like(tensor)
    restored.view(torch.uint8).fill_(0xA5)
    restored = decode(payload, tensor, unskipped("turboquant_3bit_nc", framed=True))
    assert torch.equal(restored.view(torch.uint8), tensor.view(torch.uint8))


def test_opaque_tensors_are_stored_bit_for_bit() -> None:
    state = gaussian(2, 24, 16, 100).bfloat16()
    config = unskipped("turboquant_3bit_nc", kv_layout="opaque")
    size, restored = round_trip(state, config)
    assert size == state.numel() * 2
    assert torch.equal(restored, state)


@pytest.mark.parametrize(
    "shape", [(1, 32, 256, 2048), (32, 256, 2048), (3, 32, 256, 2048), (16,)]
)
def test_auto_refuses_what_is_ambiguous(shape: tuple[int, ...]) -> None:
    message = "kv_size=2.*kv_layout.*set it to one of fused, .* opaque .*vLLM 0.26"
    with pytest.raises(ValueError, match=message):
        geometry_of(torch.Size(shape), torch.bfloat16, TensorRule())


@pytest.mark.parametrize(
    ("rule", "shape", "message"),
    [
        ({"kv_layout": "split"}, (1, 2, 8, 128), "first of 4 dimensions must be 2"),
        ({"kv_layout": "fused"}, (2, 2, 8, 256), "first of 4 dimensions must be 1"),
        ({"kv_layout": "fused"}, (2, 8), "first of 4 dimensions must be 1"),
        ({"kv_layout": "fused"}, (1, 2, 8, 384), r"divisible by head_dim=128 \+ 128"),
        ({"kv_layout": "components"}, (1, 3, 8, 128), "do not pair up"),
        (
            {"kv_layout": "latent", "head_dim": 512},
            (1, 2, 8, 500),
            "must add up to 500",
        ),
        (
            {"kv_layout": "latent", "head_dim": 512, "value_head_dim": 32},
            (1, 2, 8, 576),
            "value_head_dim=32 must add up to 576",
        ),
        ({}, (2, 3, 20, 500), "must be divisible by head_dim=128"),
    ],
)
def test_misfits_are_refused(rule: dict, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        geometry_of(torch.Size(shape), torch.bfloat16, TensorRule(**rule))
