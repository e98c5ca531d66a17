# SPDX-License-Identifier: Apache-2.0
"""Keys relative to the statistics of their chunk: bounds, edges, hard numbers."""

# Standard
import math

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import calibration, reference
from lmcache.v1.distributed.serde.turboquant.rotation import row_norms
from lmcache.v1.distributed.serde.turboquant.slot import KeyField
from lmcache.v1.distributed.serde.turboquant.tables import rotary
from tests.v1.distributed.serde.turboquant.distortion import DISTORTION, error
from tests.v1.distributed.serde.turboquant.helpers import gaussian


def field_of(bits: int = 4, dim: int = 128, rope_theta: float = 0.0) -> KeyField:
    """A calibrated field."""
    return KeyField(bits=bits, dim=dim, is_calibrated=True, rope_theta=rope_theta)


def statistics_of(rows: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Statistics of keys ``[tokens, heads, dim]``."""
    return calibration.measure(rows, field)[0]


def round_trip(rows: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Keys ``[tokens, heads, dim]`` after encoding and decoding, none kept whole."""
    statistics = statistics_of(rows, field)
    stored = reference.encode_field(rows, field, 0, statistics)
    return reference.decode_field(stored, field, 0, statistics)


def is_relative(rows: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Which keys ``[tokens, heads]`` are stored relative to their statistics."""
    stored = reference.encode_field(rows, field, 0, statistics_of(rows, field))
    return stored[..., -1] > 0x7F


@pytest.mark.parametrize("bits", DISTORTION)
@pytest.mark.parametrize("strength", [0, 3, 60])
def test_a_common_offset_costs_nothing(bits: int, strength: float) -> None:
    noise = gaussian(256, 2, 128)
    rows = noise + strength * gaussian(1, 2, 128, seed=1)
    restored = round_trip(rows, field_of(bits))
    distortion = float((restored - rows).square().sum() / noise.square().sum())
    assert distortion == pytest.approx(DISTORTION[bits], rel=0.06)


@pytest.mark.parametrize("bits", DISTORTION)
def test_spread_lowers_the_error_as_theory_says(bits: int) -> None:
    deviations = torch.linspace(0.2, 3, 128)
    rows = gaussian(1024, 1, 128) * deviations
    distortion = error(round_trip(rows, field_of(bits)), rows)
    gain = float(deviations.mean() ** 2 / deviations.square().mean())
    assert gain < 0.82
    assert distortion == pytest.approx(gain * DISTORTION[bits], rel=0.06)


@pytest.mark.parametrize("theta", [1e4, 1e6])
def test_a_turning_mean_costs_nothing(theta: float) -> None:
    noise, mean = gaussian(256, 2, 64), 20 * gaussian(2, 64, seed=1)
    cosines, sines = (x.unsqueeze(1) for x in rotary(64, theta, 256))
    first, second = mean.chunk(2, dim=-1)
    means = [first * cosines - second * sines, second * cosines + first * sines]
    rows = noise + torch.cat(means, dim=-1)
    power = noise.square().sum()
    known = round_trip(rows, field_of(dim=64, rope_theta=theta))
    unknown = round_trip(rows, field_of(dim=64))
    distortion = float((known - rows).square().sum() / power)
    assert distortion == pytest.approx(DISTORTION[4], rel=0.09)
    assert float((unknown - rows).square().sum() / power) > 10 * distortion


def test_a_mean_that_stands_still_is_not_turned() -> None:
    rows = gaussian(256, 2, 64) + 20 * gaussian(1, 2, 64, seed=1)
    spreads = statistics_of(rows, field_of(dim=64, rope_theta=1e4))[:, 64:]
    assert (spreads[:, 32:] > 0).all()
    # The slowest pairs hardly turn: either frame will do for them.
    assert (spreads[:, :16] > 0).all()
    distortion = error(round_trip(rows, field_of(dim=64, rope_theta=1e4)), rows)
    assert distortion < 1.2 * error(round_trip(rows, field_of(dim=64)), rows)


def test_relative_and_back_is_the_identity() -> None:
    rows = gaussian(100, 3, 96) * 5 + 7
    field = field_of(dim=96, rope_theta=1e4)
    statistics = statistics_of(rows, field)
    relative = calibration.to_relative(rows, statistics, field)
    restored = calibration.from_relative(relative, statistics, field)
    torch.testing.assert_close(restored, rows, rtol=1e-5, atol=1e-5)


def test_statistics_by_their_definition() -> None:
    rows = gaussian(80, 1, 16) * torch.linspace(0.1, 2, 16) + 3
    exact = rows[:, 0].double()
    offsets = exact - exact.mean(dim=0)
    weights = 1 / offsets.square().sum(dim=1, keepdim=True)
    shift = (weights * offsets).sum(dim=0) / weights.sum()
    powers = (weights * (offsets - shift) ** 2).sum(dim=0)
    spreads = ((powers / powers.mean()) ** (1 / 5)).clamp(min=0.25)
    expected = torch.cat([exact.mean(dim=0) + shift, spreads]).bfloat16()
    assert torch.equal(statistics_of(rows, field_of(dim=16))[0], expected)


def test_statistics_hardly_depend_on_the_order_of_tokens() -> None:
    rows = gaussian(256, 4, 64) + 10
    ours = statistics_of(rows, field_of(dim=64)).view(torch.int16).int()
    theirs = statistics_of(rows.flip(0), field_of(dim=64)).view(torch.int16).int()
    assert (ours - theirs).abs().max() <= 1


def test_an_outlier_hardly_moves_the_statistics() -> None:
    rows = gaussian(256, 1, 128)
    clean = round_trip(rows, field_of())
    dirty = rows.clone()
    dirty[7] = 1000 * gaussian(1, 128, seed=2)
    restored = round_trip(dirty, field_of())
    others = torch.arange(256) != 7
    assert error(restored[others], rows[others]) < 1.05 * error(
        clean[others], rows[others]
    )


def test_the_sink_is_coded_as_it_is_and_kept() -> None:
    rows = gaussian(256, 2, 128) + 20
    rows[0] = 0.1 * gaussian(2, 128, seed=1)
    assert not is_relative(rows, field_of())[0].any()
    assert is_relative(rows, field_of())[1:].all()
    distances = calibration.measure(rows, field_of())[1]
    assert (calibration.farthest(distances, 2)[:, 0] == 0).all()
    restored = round_trip(rows, field_of())
    assert error(restored[0], rows[0]) == pytest.approx(DISTORTION[4], rel=0.5)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_non_finite_key_does_not_spread(number: float) -> None:
    rows = gaussian(256, 2, 64) + 5
    dirty = rows.clone()
    dirty[9, 1, 3] = number
    statistics = statistics_of(dirty, field_of(dim=64))
    assert statistics.isfinite().all()
    restored = round_trip(dirty, field_of(dim=64))
    assert not restored[9, 1].isfinite().all()
    others = torch.ones(256, 2, dtype=torch.bool)
    others[9, 1] = False
    assert error(restored[others], rows[others]) < 2 * DISTORTION[4]


@pytest.mark.parametrize(
    "rows",
    [
        torch.zeros(64, 1, 64),
        torch.full((64, 1, 64), 3.0),
        torch.full((64, 1, 64), math.nan),
        torch.full((64, 1, 64), 65504.0),
        gaussian(1, 1, 64).expand(64, 1, 64),
    ],
    ids=["zeros", "threes", "nan", "largest", "same"],
)
def test_equal_keys(rows: torch.Tensor) -> None:
    statistics = statistics_of(rows, field_of(dim=64))
    assert statistics.isfinite().all()
    restored = round_trip(rows, field_of(dim=64))
    if rows.isnan().all():
        assert not restored.isfinite().any()
    else:
        torch.testing.assert_close(restored, rows, rtol=2**-7, atol=0)


def test_zero_keys_stay_zero() -> None:
    rows = gaussian(128, 2, 64) + 4
    rows[5] = 0
    assert not round_trip(rows, field_of(dim=64))[5].any()


@pytest.mark.parametrize("bits", DISTORTION)
def test_averaged_vectors_are_unbiased(bits: int) -> None:
    rows = gaussian(256, 1, 128)
    slopes = []
    for is_averaged in (True, False):
        field = KeyField(bits=bits, dim=128, is_averaged=is_averaged)
        restored = reference.decode_field(
            reference.encode_field(rows, field, 0), field, 0
        )
        slopes.append(float((restored * rows).sum() / rows.square().sum()))
    assert slopes[0] == pytest.approx(1, abs=2e-4)
    assert slopes[1] == pytest.approx(1 - DISTORTION[bits] / 2, abs=0.004)


def test_positions_out_of_range_stay_in_range() -> None:
    rows, kept = torch.zeros(4, 1, 8), torch.ones(1, 2, 8)
    positions = torch.tensor([[-7, 2**31 - 1]], dtype=torch.int32)
    restored = calibration.put_back(rows, kept, positions)
    assert restored[:, 0, 0].tolist() == [1, 0, 0, 1]


def test_the_error_gain_is_the_root_mean_square_of_spreads() -> None:
    rows = gaussian(64, 1, 16) * torch.linspace(0.5, 2, 16)
    field = field_of(dim=16)
    statistics = statistics_of(rows, field)
    gain = calibration.error_gain(statistics, field)
    expected = row_norms(statistics[:, 16:].float()) / 4
    torch.testing.assert_close(gain, expected)
