# SPDX-License-Identifier: Apache-2.0
"""The trellis code: its paths, levels and distortion, and the presets that use it."""

# Standard
from itertools import product

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, tables, trellis
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.presets import TRELLIS_PRESETS
from lmcache.v1.distributed.serde.turboquant.slot import KeyField
from lmcache.v1.distributed.serde.turboquant.standalone import TurboQuantCodec
from tests.v1.distributed.serde.turboquant.distortion import DISTORTION, error
from tests.v1.distributed.serde.turboquant.helpers import gaussian

BITS = (2, 3, 4)

FIGURES = {
    (2, 64): 0.0846,
    (2, 128): 0.0850,
    (2, 256): 0.0852,
    (3, 64): 0.0214,
    (3, 128): 0.0222,
    (3, 256): 0.0232,
    (4, 64): 0.00521,
    (4, 128): 0.00547,
    (4, 256): 0.00576,
}
"""``1 - cosine**2`` on Gaussian rows, by bits and dimensions, when levels were fit."""


def field_of(bits: int, dim: int, **settings: bool) -> KeyField:
    """A field of trellis codes."""
    return KeyField(bits=bits, dim=dim, is_trellis=True, **settings)


def units(rows: torch.Tensor) -> torch.Tensor:
    """Rows of length 1."""
    return torch.nn.functional.normalize(rows, dim=-1)


@pytest.mark.parametrize("bits", BITS)
def test_no_path_costs_less(bits: int) -> None:
    """All paths of eight coordinates, each with the best levels that it allows."""
    rows = units(gaussian(40, 8))
    field = field_of(bits, 8)
    scaled = rows * trellis.gains(rows, field)
    levels = tables.trellis_levels(8, bits)
    starts = trellis.window_starts(scaled, levels)
    costs = []
    for path in product((0, 1), repeat=8):
        padded = [0, 0, 0, *path]
        total = torch.zeros(len(rows))
        for place in range(8):
            third, second, first, latest = padded[place : place + 4]
            subset = 2 * (latest ^ second ^ third) + first
            near = starts[:, place] + (subset - starts[:, place]) % 4
            total += (scaled[:, place] - levels[near]).square()
        costs.append(total)
    least = torch.stack(costs).amin(dim=0)
    found = trellis.decode(trellis.encode(rows, field), field)
    torch.testing.assert_close((found - scaled).square().sum(dim=-1), least)


@pytest.mark.parametrize("bits", BITS)
def test_the_window_holds_the_levels_around_a_coordinate(bits: int) -> None:
    levels = tables.trellis_levels(128, bits)
    coordinates = torch.cat([gaussian(4096) * 128**-0.5, levels])
    starts = trellis.window_starts(coordinates, levels)
    below = (levels <= coordinates[:, None]).sum(dim=-1) - 1
    for level in (below, below + 1):
        is_inside = (level >= starts) & (level < starts + 4)
        assert bool((is_inside | (level < 0) | (level == len(levels))).all())


@given(data=st.data(), bits=st.sampled_from(BITS))
@settings(max_examples=50, deadline=None)
def test_codes_are_read_one_by_one(data: st.DataObject, bits: int) -> None:
    """A shift register that reads any codes in turn sees what ``decode`` sees."""
    codes = data.draw(
        st.lists(st.integers(0, 2**bits - 1), min_size=16, max_size=16), label="codes"
    )
    levels = tables.trellis_levels(16, bits)
    restored, register = [], 0
    for code in codes:
        register = (register << 1 | code >> (bits - 1)) & 0b1111
        parity = (register & 0b1101).bit_count() & 1
        subset = 2 * parity + (register >> 1 & 1)
        restored.append(levels[(code % 2 ** (bits - 1)) * 4 + subset])
    found = trellis.decode(torch.tensor(codes), field_of(bits, 16))
    assert torch.equal(found, torch.stack(restored))


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_the_means_of_what_is_given_them(bits: int) -> None:
    field = field_of(bits, 128)
    levels = tables.trellis_levels(128, bits)
    assert torch.equal(levels, -levels.flip(0))
    assert bool((levels.diff() > 0).all())
    rows = units(gaussian(2000, 128))
    scaled = rows * trellis.gains(rows, field)
    found = trellis.decode(trellis.encode(rows, field), field)
    for level in levels:
        chosen = scaled[found == level]
        assert len(chosen) > 50
        spread = float(chosen.std()) / len(chosen) ** 0.5
        assert abs(float(chosen.mean() - level)) < 5 * spread + 1e-4


def test_there_are_levels_for_two_to_four_bits() -> None:
    with pytest.raises(ValueError, match="codebook of 5 bits"):
        tables.trellis_levels(64, 5)


@pytest.mark.parametrize("bits, dim", FIGURES)
def test_distortion(bits: int, dim: int) -> None:
    """Below the best scalar code and above Shannon's bound, and as it was."""
    rows = units(gaussian(2**17 // dim, dim))
    field = field_of(bits, dim)
    found = units(trellis.decode(trellis.encode(rows, field), field))
    left = float(1 - (rows * found).sum(dim=-1).square().mean())
    assert left == pytest.approx(FIGURES[bits, dim], rel=0.02)
    assert 4.0**-bits < left < 0.75 * DISTORTION[bits]


@pytest.mark.parametrize("bits", BITS)
def test_the_peak_is_moved_within_bounds(bits: int) -> None:
    field = field_of(bits, 64)
    rows = torch.zeros(4, 64)
    rows[0, 0] = 1.0
    rows[1] = 0.125
    rows[2, :3] = torch.tensor([2.85, -1.0, 1.0]) / 8
    found = trellis.gains(rows, field)[:, 0]
    if bits == 2:
        assert found.tolist() == [1.0] * 4
        return
    assert found[0] == torch.tensor(0.8)
    assert found[1] == found[3] == 1.25
    assert float(found[2]) == pytest.approx(trellis.REACH[bits] / 2.85)


@pytest.mark.parametrize("bits", BITS)
def test_odd_rows_stay_alone(bits: int) -> None:
    """Zero rows are exact; NaN and infinity spoil their own row only."""
    field = field_of(bits, 64)
    rows = gaussian(6, 64)
    rows[0] = 0
    rows[1, 5], rows[2, 5] = torch.nan, -torch.inf
    rows[3] *= 1e30
    restored = reference.decode_field(reference.encode_field(rows, field, 1), field, 1)
    assert not restored[0].any()
    assert not restored[1].isfinite().any() and not restored[2].isfinite().any()
    assert restored[3:].isfinite().all()
    assert error(restored[4:], rows[4:]) < 1.2 * FIGURES[bits, 64]


@pytest.mark.parametrize("bits", BITS)
def test_averaged_vectors_keep_their_length_along_themselves(bits: int) -> None:
    field = field_of(bits, 64, is_averaged=True)
    rows = gaussian(500, 64)
    restored = reference.decode_field(reference.encode_field(rows, field, 0), field, 0)
    shares = (restored * rows).sum(dim=-1) / rows.square().sum(dim=-1)
    torch.testing.assert_close(shares, torch.ones(500), rtol=2e-3, atol=0)


@pytest.mark.parametrize("preset", TRELLIS_PRESETS)
@pytest.mark.parametrize("num_tokens", [0, 1, 63, 64, 200])
def test_presets_restore(preset: str, num_tokens: int) -> None:
    config = TurboQuantSerdeConfig(
        preset=preset, head_dim=64, skip_first_layers=0, skip_last_layers=0
    )
    tensor = gaussian(2, 2, num_tokens, 128).half()
    data = TurboQuantCodec(config).to_bytes(tensor)
    restored = TurboQuantCodec.from_bytes(data)
    assert restored.shape == tensor.shape and restored.dtype == tensor.dtype
    if num_tokens > 1:
        bits = TRELLIS_PRESETS[preset].key_bits
        figure = FIGURES[bits, 64]
        assert 0.9 * figure < error(restored.float(), tensor.float()) < 1.2 * figure


@pytest.mark.parametrize("bits", BITS)
def test_bytes_of_a_plain_trellis_preset(bits: int) -> None:
    config = TurboQuantSerdeConfig(preset=f"turboquant_{bits}bit_t", framed=True)
    assert config.slot.slot_bytes == 2 * (16 * bits + 2)


def test_trellis_presets_need_a_frame() -> None:
    with pytest.raises(ValueError, match="turboquant_4bit_t.*framed"):
        TurboQuantSerdeConfig(preset="turboquant_4bit_t").require_presets()
