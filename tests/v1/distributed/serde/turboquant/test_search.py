# SPDX-License-Identifier: Apache-2.0
"""Searches against theory and against the plain rule."""

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import payload, reference, search
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS, Effort
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.packing import FP16_MAX
from lmcache.v1.distributed.serde.turboquant.presets import CALIBRATED_PRESETS
from lmcache.v1.distributed.serde.turboquant.rotation import unrotate
from lmcache.v1.distributed.serde.turboquant.slot import (
    Field,
    KeyField,
    ValueField,
)
from tests.v1.distributed.serde.turboquant.cpu_helpers import layout_of
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    relative_error,
    unskipped,
)

DIM = 128
LAYER = 1

KEY4, KEY3 = (KeyField(bits=bits, dim=DIM) for bits in (4, 3))
VALUE4, VALUE3 = (ValueField(bits=bits, dim=DIM) for bits in (4, 3))
FIELDS = [KEY4, KEY3, VALUE4, VALUE3]
each_field = pytest.mark.parametrize("field", FIELDS, ids=repr)

SHANNON_BOUND = {4: 4.0**-4, 3: 4.0**-3}
"""No code of so many bits a dimension distorts a Gaussian vector less."""


def restored(rows: torch.Tensor, field: Field, effort: str) -> torch.Tensor:
    """Quantise ``[tokens, heads, dim]`` with an effort and restore it."""
    stored = search.encode_field(rows, field, LAYER, effort=EFFORTS[effort])
    assert stored.shape == (*rows.shape[:-1], field.num_bytes)
    return reference.decode_field(stored, field, LAYER)


def row_errors(rows: torch.Tensor, field: Field, effort: str) -> torch.Tensor:
    """Squared error of each vector."""
    difference = restored(rows, field, effort).double() - rows.double()
    return difference.square().sum(dim=-1)


@pytest.mark.parametrize(
    ("field", "effort", "change"),
    [
        (KEY4, "balanced", -0.115),
        (KEY4, "best", -0.143),
        (KEY3, "balanced", -0.047),
        (KEY3, "best", -0.056),
        (VALUE4, "balanced", -0.136),
        (VALUE4, "best", -0.149),
        (VALUE3, "balanced", -0.259),
        (VALUE3, "best", -0.273),
    ],
    ids=repr,
)
def test_gaussian_distortion(field: Field, effort: str, change: float) -> None:
    rows = gaussian(256, 32, DIM, seed=field.bits)
    plain = relative_error(rows, restored(rows, field, "fast"))
    searched = relative_error(rows, restored(rows, field, effort))
    assert searched / plain - 1 == pytest.approx(change, abs=0.006)
    assert searched > SHANNON_BOUND[field.bits]


@each_field
@pytest.mark.parametrize("effort", ["balanced", "best"])
@pytest.mark.parametrize("mean", [0.0, 1.0, -100.0])
def test_no_vector_by_itself_is_worse(field: Field, effort: str, mean: float) -> None:
    """Of one token, nothing is known to be common."""
    rows = mean + gaussian(1, 2000, DIM, seed=3)
    plain, searched = (row_errors(rows, field, name) for name in ("fast", effort))
    assert (searched <= plain * 1.0001).all()


@each_field
def test_fast_is_the_plain_rule(field: Field) -> None:
    rows = gaussian(20, 3, DIM)
    stored = search.encode_field(rows, field, LAYER, effort=EFFORTS["fast"])
    assert torch.equal(stored, reference.encode_field(rows, field, LAYER))


def varying_error(exact: torch.Tensor, decoded: torch.Tensor) -> float:
    """Squared error of keys that attention sees: not what all tokens share."""
    error = (decoded - exact).double()
    return float((error - error.mean(dim=0)).square().sum())


@pytest.mark.parametrize("field", [KEY4, KEY3], ids=repr)
@pytest.mark.parametrize("strength", [0.0, 3.0, 10.0, 30.0])
def test_a_common_part_of_keys_does_not_turn_the_search_against_them(
    field: KeyField, strength: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = gaussian(256, 4, DIM) + strength * gaussian(1, 4, DIM, seed=1)
    plain = varying_error(keys, restored(keys, field, "fast"))
    searched = varying_error(keys, restored(keys, field, "best"))
    assert searched < 0.96 * plain
    monkeypatch.setattr(
        search, "common_error", lambda directions, *_: torch.zeros_like(directions[0])
    )
    one_by_one = varying_error(keys, restored(keys, field, "best"))
    assert searched < one_by_one * (1.01 if strength < 10 else 0.97)


def test_keys_without_a_common_part_have_no_common_error() -> None:
    directions, norms = search.directions_of(gaussian(256, 8, DIM), LAYER)
    common = search.common_error(directions, norms, KEY4)
    plain = row_errors(gaussian(256, 8, DIM), KEY4, "fast").mean()
    assert common.square().sum(dim=-1).mean() < plain / search.SAMPLE_TOKENS / 2


def test_equal_keys_have_no_other_error_than_the_common_one() -> None:
    keys = gaussian(1, 8, DIM).repeat(100, 1, 1)
    directions, norms = search.directions_of(keys, LAYER)
    common = unrotate(search.common_error(directions, norms, KEY4), LAYER)
    error = restored(keys, KEY4, "fast") - keys
    assert torch.allclose(common, error[0], atol=2e-3)
    assert not search.common_error(directions[:1], norms[:1], KEY4).any()


def test_keys_that_are_not_finite_do_not_count() -> None:
    keys = gaussian(64, 2, DIM) + 10 * gaussian(1, 2, DIM, seed=1)
    dirty = keys.clone()
    dirty[5, 1, 3], dirty[6, 1, 4] = float("nan"), float("inf")
    finite = torch.cat([keys[:5], keys[7:]])
    split = [search.directions_of(x, LAYER) for x in (keys, dirty, finite)]
    whole, without, fewer = (search.common_error(*both, KEY4) for both in split)
    assert torch.equal(without[0], whole[0])
    assert torch.equal(without[1], fewer[1])


@pytest.mark.parametrize("field", [VALUE4, VALUE3], ids=repr)
def test_values_keep_mean_and_length(field: ValueField) -> None:
    values = 0.5 + gaussian(200, 8, DIM, seed=2)
    found = restored(values, field, "best").double()
    distances = (values - values.mean(dim=-1, keepdim=True)).double()
    gain = (found * distances).sum(dim=-1) / distances.square().sum(dim=-1)
    assert abs(gain.mean() - 1) < 5e-4
    assert (gain - 1).abs().quantile(0.9) < 2e-3
    assert (found - values).mean(dim=-1).abs().quantile(0.9) < 1e-3


@pytest.mark.parametrize("effort", ["balanced", "best"])
@each_field
def test_extreme_rows(field: Field, effort: str) -> None:
    rows = gaussian(8, 1, DIM)
    rows[0] = 0.0
    rows[1] = 0.375
    rows[2, 0, 9] = -1e5
    rows[3] = 3e38
    rows[4] *= 1e-6
    rows[5, 0, 7] = float("nan")
    rows[6, 0, 7] = float("inf")
    found = restored(rows, field, effort)
    assert torch.equal(found[0], rows[0])
    if isinstance(field, ValueField):
        assert torch.equal(found[1], rows[1])
    assert found[:5].isfinite().all() and found[7].isfinite().all()
    assert found.nan_to_num(0, 0, 0).abs().max() <= 65504 * 1.01
    assert not found[5:7].isfinite().any()
    assert relative_error(rows[7], found[7]) < 0.1
    limited = rows.clamp(-FP16_MAX, FP16_MAX)
    assert torch.equal(found[2], restored(limited, field, effort)[2])


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_payloads_of_any_effort_are_read_alike(preset: str) -> None:
    tensor = gaussian(2, 3, 40, 2 * 64).bfloat16()
    configs = [unskipped(preset, 64, framed=True, effort=name) for name in EFFORTS]
    payloads = [encode(tensor, config) for config in configs]
    assert len({len(x) for x in payloads}) == 1
    assert not torch.equal(payloads[0], payloads[2])
    for written in payloads:
        readers = [decode(written, tensor, config) for config in configs]
        assert torch.equal(readers[0], readers[1])
        assert torch.equal(readers[0], readers[2])


def latent_errors() -> list[float]:
    """Relative error of a latent tensor with each effort."""
    latents = gaussian(1, 2, 30, 64 + 32)
    settings = {"kv_layout": "latent", "value_head_dim": 32}
    errors = []
    for effort in EFFORTS.values():
        layout = layout_of(latents, "turboquant_4bit_nc", 64, **settings)
        stored = torch.empty(layout.payload_bytes, dtype=torch.uint8)
        payload.write_payload(latents, stored, layout, effort=effort)
        found = torch.empty_like(latents)
        payload.read_payload(stored, found, layout)
        errors.append(relative_error(latents, found))
    return errors


def test_no_backend_without_a_search_is_asked_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on an accelerator, where the CPU kernels cannot work."""
    plain, balanced, best = by_kernels = latent_errors()
    assert plain > balanced > best
    monkeypatch.setattr(cpu, "supports", lambda *_: False)
    assert latent_errors() == by_kernels


@pytest.mark.parametrize("preset", CALIBRATED_PRESETS)
def test_calibrated_presets_ignore_the_effort(preset: str) -> None:
    tensor = gaussian(2, 2, 64, 2 * 64).bfloat16()
    configs = [unskipped(preset, 64, framed=True, effort=name) for name in EFFORTS]
    fast, *others = [encode(tensor, config) for config in configs]
    for searched in others:
        assert torch.equal(searched, fast)
    fast, _, best = [encode(tensor[:, :, :63].contiguous(), x) for x in configs]
    assert not torch.equal(best, fast)


@pytest.mark.parametrize("name", ["balanced", "best"])
@pytest.mark.parametrize("preset", [*PRESET_NAMES, "turboquant_4bit_cc"])
def test_a_search_is_no_launch_of_a_gpu_kernel(
    preset: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "_gpu_or_reference", lambda *_: object())
    tensor = gaussian(2, 2, 40, 2 * 64)
    layout = layout_of(tensor, preset, 64, framed=True)
    stored = torch.empty(layout.payload_bytes, dtype=torch.uint8)
    assert payload.runs_on_gpu(tensor, stored, layout)
    assert not payload.runs_on_gpu(tensor, stored, layout, EFFORTS[name])


def test_the_search_takes_rotated_rows_of_any_length() -> None:
    rows = gaussian(50, DIM)
    effort = Effort(key_scales=(0.9, 1.1))
    found = search.search_scale(rows, KEY4, effort)
    assert torch.allclose(found, search.search_scale(rows * 8, KEY4, effort))
    lengths = found.norm(dim=-1)
    choices = torch.tensor([1.0, 0.9, 1.1])
    assert (lengths[:, None] - choices).abs().amin(dim=1).max() < 1e-6
