# SPDX-License-Identifier: Apache-2.0
"""Calibrated presets on the CPU against the reference."""

# Standard
from dataclasses import replace

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantSerdeConfig,
    calibration,
)
from lmcache.v1.distributed.serde.turboquant import payload as payload_module
from lmcache.v1.distributed.serde.turboquant import (
    reference,
)
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.presets import ALL_PRESETS
from lmcache.v1.distributed.serde.turboquant.side_table import (
    SideTableLayout,
    SideTablePart,
)
from lmcache.v1.distributed.serde.turboquant.slot import (
    KeyField,
    SlotLayout,
)
from tests.v1.distributed.serde.turboquant.cpu_helpers import assert_same_numbers
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    POISONS,
    decode,
    encode,
    gaussian,
    relative_error,
)

FIRST_LAYER = 5
KEPT = 3
THETA = 10000.0

CALIBRATED = [name for name, preset in ALL_PRESETS.items() if preset.is_calibrated]
FRAMED = [name for name, preset in ALL_PRESETS.items() if preset.needs_frame]

CASES = [
    (64, 8, 128, THETA),
    (64, 8, 128, 0.0),
    (67, 1, 64, THETA),
    (65, 3, 24, THETA),
    (66, 4, 80, THETA),
    (70, 9, 8, THETA),
    (64, 16, 40, THETA),
    (300, 2, 256, 0.0),
]
"""Tokens, heads, head_dim and rope_theta."""


def biased_keys(tokens: int, heads: int, dim: int, seed: int = 1) -> torch.Tensor:
    """Two layers of keys with means and spreads of their own, and outliers."""
    keys = gaussian(2, tokens, heads, dim, seed=seed)
    keys *= gaussian(2, 1, heads, dim, seed=seed + 1).abs() + 0.01
    keys += 5 * gaussian(2, 1, heads, dim, seed=seed + 2)
    keys[0, 0] *= 50
    keys[0, 3, 0] = 0
    keys[1, 7, heads - 1, 2] = float("nan")
    keys[1, 9, heads - 1, dim - 1] = float("inf")
    return keys


def slot_of(preset: str, dim: int, theta: float, *, latent: int = 0) -> SlotLayout:
    """Slot of a calibrated preset that has statistics."""
    return SlotLayout.for_preset(
        ALL_PRESETS[preset],
        dim,
        latent or dim,
        keys_only=latent > 0,
        is_calibrated=True,
        rope_theta=theta,
    )


def cpu_encode(views, slot: SlotLayout, threads: int = 1):
    """Encode into poisoned slots and a poisoned side table."""
    layers, tokens, heads, _ = views[0].shape
    shape = (layers, tokens, heads, slot.slot_bytes)
    slots = torch.full(shape, POISONS[threads % 2], dtype=torch.uint8)
    layout = SideTableLayout(
        num_layers=layers, num_heads=heads, num_kept=KEPT, fields=slot.calibrated_fields
    )
    data = torch.full((layout.num_bytes,), POISONS[threads % 2], dtype=torch.uint8)
    table = layout.parts(data)
    cpu.encode_layers(views, slots, slot, FIRST_LAYER, threads, table)
    return slots, table


def specified_slots(
    views, slot: SlotLayout, table: tuple[SideTablePart, ...]
) -> torch.Tensor:
    """What the reference makes of keys, given their statistics."""
    layers, tokens, heads, _ = views[0].shape
    slots = torch.zeros(layers, tokens, heads, slot.slot_bytes, dtype=torch.uint8)
    parts = iter(table)
    for view, (field, start) in zip(views, slot.fields, strict=True):
        assert isinstance(field, KeyField)
        part = next(parts) if field.is_calibrated else None
        for layer in range(layers):
            shared = part.statistics[layer] if part else None
            rows, index = view[layer].float(), FIRST_LAYER + layer
            slots[layer, ..., start : start + field.num_bytes] = reference.encode_field(
                rows, field, index, shared
            )
    return slots


def assert_same_slots(ours: torch.Tensor, specified: torch.Tensor, field: KeyField):
    """Bit for bit, but for the NaN that stands for the norm of a strange key."""
    norms = slice(field.norm_offset, field.norm_offset + 2)
    strange = specified[..., norms].clone().view(torch.float16).isnan()
    assert torch.equal(ours[..., norms].clone().view(torch.float16).isnan(), strange)
    same = (ours == specified) | strange
    assert same.all()


@pytest.mark.parametrize("tokens,heads,dim,theta", CASES)
def test_statistics(tokens: int, heads: int, dim: int, theta: float) -> None:
    for dtype in KV_DTYPES:
        keys = biased_keys(tokens, heads, dim).to(dtype)
        slot = slot_of("turboquant_4bit_cc", dim, theta)
        _, (table,) = cpu_encode((keys, keys), slot, threads=2)
        for layer in range(2):
            rows = keys[layer].float()
            limit = torch.finfo(torch.float16).max
            rows = torch.where(rows.isfinite(), rows.clamp(-limit, limit), rows)
            specified, distances = calibration.measure(rows, slot.key)
            found = table.statistics[layer]
            assert torch.equal(found.signbit(), specified.signbit())
            ours, exact = (x.view(torch.int16).int() for x in (found, specified))
            assert (ours - exact).abs().max() <= 1
            positions = calibration.farthest(distances, KEPT)
            assert torch.equal(table.positions[layer], positions.int())
            kept = calibration.kept_rows(rows, positions).bfloat16()
            assert torch.equal(table.rows[layer], kept)


@pytest.mark.parametrize("preset", CALIBRATED)
@pytest.mark.parametrize("tokens,heads,dim,theta", CASES)
def test_slots_and_keys(
    preset: str, tokens: int, heads: int, dim: int, theta: float
) -> None:
    for dtype in KV_DTYPES:
        keys = biased_keys(tokens, heads, dim).to(dtype)
        values = gaussian(2, tokens, heads, dim, seed=9).to(dtype)
        slot = slot_of(preset, dim, theta)
        slots, table = cpu_encode((keys, values), slot)
        specified = specified_slots((keys, values), slot, table)
        assert_same_slots(slots, specified, slot.key)
        relative = (specified[..., slot.key.norm_offset + 1] & 0x80) > 0
        assert 0.8 < relative.float().mean() < 1
        ours, exact = torch.zeros(2, *keys.shape), torch.ones(2, *keys.shape)
        ours, exact = ours.to(dtype), exact.to(dtype)
        cpu.decode_layers(slots, (ours[0], ours[1]), slot, FIRST_LAYER, 2, table)
        reference.decode_layers(slots, (exact[0], exact[1]), slot, FIRST_LAYER, table)
        assert_same_numbers(ours, exact)


@pytest.mark.parametrize("preset", ["turboquant_3bit_cc", "turboquant_3bit_tc"])
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_bytes(preset: str, threads: int) -> None:
    keys = biased_keys(300, 17, 64).bfloat16()
    slot = slot_of(preset, 64, THETA)
    slots, table = cpu_encode((keys, keys), slot)
    again, table_again = cpu_encode((keys, keys), slot, threads)
    assert torch.equal(slots, again)
    for part, same in zip(table, table_again, strict=True):
        assert torch.equal(part.statistics.signbit(), same.statistics.signbit())
        assert torch.equal(part.statistics, same.statistics)
        assert torch.equal(part.positions, same.positions)
        assert torch.equal(part.rows, same.rows)


@pytest.mark.parametrize("preset", ["turboquant_3bit_cc", "turboquant_3bit_tc"])
def test_latents_have_two_sets_of_statistics(preset: str) -> None:
    slot = slot_of(preset, 512, 0.0, latent=64)
    first = biased_keys(64, 1, 512).bfloat16()
    second = biased_keys(64, 1, 64, seed=7).bfloat16()
    slots, table = cpu_encode((first, second), slot, threads=2)
    assert [part.statistics.shape[-1] for part in table] == [2 * 512, 2 * 64]
    specified = specified_slots((first, second), slot, table)
    finite = first.isfinite().all(-1) & second.isfinite().all(-1)
    assert torch.equal(slots[finite], specified[finite])


@pytest.mark.parametrize("strange", [0.0, 3.0, float("nan"), float("inf")])
def test_keys_that_are_all_alike(strange: float) -> None:
    keys = torch.full((1, 64, 2, 16), strange)
    slot = slot_of("turboquant_4bit_cc", 16, THETA)
    _, (table,) = cpu_encode((keys, keys), slot)
    specified, distances = calibration.measure(keys[0], slot.key)
    assert torch.equal(table.statistics[0], specified)
    assert torch.equal(table.positions[0], calibration.farthest(distances, KEPT).int())


@pytest.mark.parametrize("preset", FRAMED)
@pytest.mark.parametrize("tokens", [1, 63, 64, 200])
def test_the_reference_has_nothing_to_do(
    preset: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload_module, "reference", None)
    config = TurboQuantSerdeConfig(
        preset=preset, head_dim=64, framed=True, rope_theta=THETA, skip_last_layers=0
    )
    config = replace(config, skip_first_layers=1)
    tensor = gaussian(2, 3, tokens, 2 * 64).half()
    payload = encode(tensor, config)
    restored = decode(payload, tensor, config)
    assert torch.equal(restored[:, 0], tensor[:, 0])
    assert 0 < relative_error(tensor, restored) < 0.12


def test_a_side_table_is_needed() -> None:
    keys = biased_keys(64, 2, 16)
    slot = slot_of("turboquant_4bit_cc", 16, 0.0)
    slots = torch.zeros(2, 64, 2, slot.slot_bytes, dtype=torch.uint8)
    with pytest.raises(ValueError, match="side table"):
        cpu.encode_layers((keys, keys), slots, slot, 0, 1)
