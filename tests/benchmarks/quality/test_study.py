# SPDX-License-Identifier: Apache-2.0
"""The study's codes, simulation, allocation and bounds, each against a known result."""

# Standard
from itertools import islice, product
from math import log2

# Third Party
import pytest
import torch

# First Party
from benchmarks.turboquant.quality.schemes import turboquant
from benchmarks.turboquant.quality.study import codes, rows, spreads
from benchmarks.turboquant.quality.study.allocation import allocate, costs, mixed
from benchmarks.turboquant.quality.study.simulation import restored
from benchmarks.turboquant.quality.study.windows import Window
from benchmarks.turboquant.quality.windows import passages
from language_model import LanguageModel
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

DIM = 64


def _gaussian(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("bits", (1, 2, 3, 4))
def test_fitted_levels_are_those_of_the_presets(bits: int) -> None:
    found = codes.lloyd_max(bits)(_gaussian(4000, 8)).unique()
    torch.testing.assert_close(found, tables.centroids(1, bits), rtol=0, atol=1e-5)


@pytest.mark.parametrize("bits", (2, 3))
def test_a_trellis_finds_the_best_of_all_paths(bits: int) -> None:
    states, dim = 4, 4
    memory = int(log2(states))
    rows, levels = _gaussian(20, dim), codes.trellis_levels(bits, states)
    decoded = []
    for path in product((0, 1), repeat=dim):
        seen = [0] * memory + list(path)
        subsets = []
        for at in range(dim):
            window = sum(
                bit << place for place, bit in enumerate(seen[at:][: memory + 1])
            )
            first, second = (
                (window & check).bit_count() % 2 for check in codes.CHECKS[states]
            )
            subsets.append(2 * first + second)
        members = torch.cartesian_prod(*[torch.arange(2 ** (bits - 1))] * dim)
        decoded.append(levels[4 * members + torch.tensor(subsets)])
    errors = (rows[:, None] - torch.cat(decoded)).square().sum(dim=-1)
    found = (rows - codes.trellis(bits, states)(rows)).square().sum(dim=-1)
    torch.testing.assert_close(found, errors.amin(dim=-1))


def test_codes_approach_the_bound_in_order() -> None:
    plain = codes.lloyd_max(3)
    tried = (plain, codes.searched(plain, (0.9, 1.1)), codes.trellis(3, 8))
    errors = [codes.distortion(code) for code in tried]
    assert errors == sorted(errors, reverse=True)
    assert 4.0**-3 < errors[2] < 0.75 * errors[0]


@pytest.mark.parametrize("rope_theta", (0.0, 10000.0))
def test_the_simulation_restores_what_the_serde_does(rope_theta: float) -> None:
    kv = _gaussian(2, 3, 256, 2 * DIM)
    kv[0] += 4 * _gaussian(3, 1, 2 * DIM)
    scheme = turboquant("turboquant_3bit_cc", DIM, rope_theta=rope_theta)
    field = KeyField(bits=3, dim=DIM, is_calibrated=True, rope_theta=rope_theta)
    simulated = restored(kv, field, codes.lloyd_max(3))
    differences = (simulated - scheme.round_trip(kv).chunk).norm() / kv.norm()
    assert differences < 0.01 * (simulated - kv).norm() / kv.norm()


def test_bits_move_to_what_costs_most_until_it_does_not_pay() -> None:
    prices = torch.tensor([[1.0, 100.0, 2.0], [50.0, 10.0, 9.0]])
    widths = allocate(prices, 3, [16.0, 4.0, 1.0])
    assert widths.tolist() == [[2, 4, 2], [4, 3, 3]]
    assert (allocate(torch.ones(2, 3), 3, [16.0, 4.0, 1.0]) == 3).all()
    caches = {bits: torch.full((2, 3, 1, 1), float(bits)) for bits in (2, 3, 4)}
    assert torch.equal(mixed(caches, widths)[..., 0, 0], widths.float())


def test_costs_are_those_of_one_layer_and_side(
    model: LanguageModel, texts: dict[str, str]
) -> None:
    name, passage = next(passages(model, texts, 256, 16))
    window = Window.read(model, name, passage)
    kv = window.cache.kv.clone()
    kv[1, 2] = 0
    found = costs(window, kv)
    assert found.shape == kv.shape[:2]
    assert found.argmax() == kv.shape[1] + 2
    assert found.flatten().sort().values[-2] < 0.01 * found.max()
    assert found[1, 2] == pytest.approx(window.divergences([kv])[0], rel=1e-3)


def test_rows_show_that_bits_pay_and_that_a_bias_is_taken_off(
    model: LanguageModel, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CODES", {"Lloyd-Max": codes.lloyd_max})
    read = islice(passages(model, texts, 256, 16), 2)
    windows = [Window.read(model, *each) for each in read]
    field = KeyField(bits=4, dim=windows[0].cache.head_dim, is_calibrated=True)
    compared = [row for row in rows.codes(windows, field) if row[1] == "Lloyd-Max"]
    assert [row[0] for row in compared] == ["4", "3", "2"]
    for column in (2, 3, 4, 6):
        found = [float(row[column]) for row in compared]
        assert found == sorted(found) and found[0] < found[-1]
    for cells in (*compared, *rows.biases(windows, field)):
        for mean, single in zip(cells[-4::2], cells[-3::2], strict=True):
            numbers = [float(number) for number in single.split()]
            assert len(numbers) == len(windows)
            assert float(mean) == pytest.approx(sum(numbers) / 2, abs=1e-5)
    plain = [float(row[4]) for row in compared]
    biased = [float(row[2]) for row in rows.biases(windows, field)]
    assert biased == pytest.approx(plain, rel=0.5)


def test_shares_of_known_channels_and_tokens() -> None:
    rows = _gaussian(1, 4096, 1, DIM)
    errors = [0.16, 0.04, 0.01]
    assert spreads.error_shares(rows, errors) == pytest.approx(
        (1, 2.125, 2.125, 1), rel=0.1
    )
    rows[..., : DIM // 2] *= 8
    even, halves, both, bound = spreads.error_shares(rows, errors)
    assert (even, bound) == pytest.approx((4.5**2 / 32.5, 8 / 32.5), rel=0.05)
    assert (halves, both) == pytest.approx((10 / 32.5, 10 / 32.5), rel=0.05)
    assert spreads.prediction_shares(rows) == pytest.approx((2, 1), rel=0.05)
    walk = torch.zeros_like(rows)
    for at in range(1, walk.shape[1]):
        walk[:, at] = 0.9 * walk[:, at - 1] + rows[:, at]
    assert spreads.prediction_shares(walk) == pytest.approx((0.2, 0.19), rel=0.05)
