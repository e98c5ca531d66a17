# SPDX-License-Identifier: Apache-2.0
"""Calibrated presets on the GPU backend against the reference."""

# Standard
from dataclasses import dataclass

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE

# isort: split

# First Party
from lmcache.v1.distributed.serde.turboquant import calibration, reference
from lmcache.v1.distributed.serde.turboquant.kernels import gpu
from lmcache.v1.distributed.serde.turboquant.kv_layout import kv_views
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.packing import FP16_MAX
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
from lmcache.v1.distributed.serde.turboquant.slot import KeyField
from tests.v1.distributed.serde.turboquant.closeness import (
    RARELY,
    assert_restored_alike,
)
from tests.v1.distributed.serde.turboquant.cpu_helpers import layout_of, slots_shape
from tests.v1.distributed.serde.turboquant.helpers import POISONS, gaussian

LAYERS, TOKENS, HEADS = 2, 70, 2
FARTHEST = 37
"""The token that is farthest from the mean of its head."""

CASES = {
    "4 bits": ("turboquant_4bit_cc", torch.bfloat16, 64, 0.0),
    "3 and 2 bits, rotary": ("turboquant_k3v2_cc", torch.float16, 128, 1e4),
    "2 bits, rotary": ("turboquant_2bit_cc", torch.float32, 64, 1e4),
    "an odd factor": ("turboquant_3bit_cc", torch.bfloat16, 80, 0.0),
}


@dataclass
class Encoded:
    """What the GPU backend makes of keys and values, on the CPU."""

    layout: PayloadLayout
    views: tuple[torch.Tensor, torch.Tensor]
    slots: torch.Tensor
    table: torch.Tensor

    @property
    def part(self) -> SideTablePart:
        """Side table of the keys."""
        return self.layout.side_table.parts(self.table)[0]


def biased_tensor(dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Split KV: keys with a mean and unequal spreads, and hard rows among them."""
    tensor = gaussian(2, LAYERS, TOKENS, HEADS, dim, seed=dim)
    keys = tensor[0]
    keys *= gaussian(dim, seed=1).abs() + 0.1
    keys += 4 * gaussian(LAYERS, 1, HEADS, dim, seed=2)
    keys[:, FARTHEST] *= -3
    keys[0, 5, 0] = 0
    keys[1, 6, 1, 3] = float("nan")
    keys[1, 7, 1, 3] = float("inf")
    if dtype != torch.float16:
        keys[0, 8, 1, 3] = 1e6
    return tensor.flatten(-2).to(dtype)


def encode(name: str, poison: int = POISONS[0]) -> Encoded:
    """Encode a case into poisoned memory."""
    preset, dtype, dim, theta = CASES[name]
    tensor = biased_tensor(dim, dtype)
    layout = layout_of(tensor, preset, dim, framed=True, rope_theta=theta)
    keys, values = kv_views(tensor.to(DEVICE), layout.geometry)
    assert values is not None
    shape, size = slots_shape(layout), layout.side_table.num_bytes
    slots = torch.full(shape, poison, dtype=torch.uint8, device=DEVICE)
    table = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    assert gpu.supports((keys, values), slots, layout.slot)
    parts = layout.side_table.parts(table)
    gpu.encode_layers((keys, values), slots, layout.slot, 0, parts)
    return Encoded(layout, (keys.cpu(), values.cpu()), slots.cpu(), table.cpu())


def bounded(rows: torch.Tensor) -> torch.Tensor:
    """Finite numbers within float16."""
    limit = FP16_MAX
    return torch.where(rows.isfinite(), rows.clamp(-limit, limit), rows)


@pytest.mark.parametrize("name", CASES)
def test_statistics_are_the_references_to_one_step(name: str) -> None:
    encoded = encode(name)
    part, key = encoded.part, encoded.layout.slot.key
    for layer, rows in enumerate(encoded.views[0].float()):
        expected, distances = calibration.measure(bounded(rows), key)
        steps = [x.view(torch.int16).int() for x in (part.statistics[layer], expected)]
        assert (steps[0] - steps[1]).abs().max() <= 1
        positions = calibration.farthest(distances, part.positions.shape[-1])
        assert FARTHEST in positions
        assert torch.equal(part.positions[layer].long(), positions)
        kept = calibration.kept_rows(bounded(rows), positions)
        assert torch.allclose(part.rows[layer].float(), kept, rtol=2**-7, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_slots_are_the_references(name: str) -> None:
    encoded = encode(name)
    assert torch.equal(encoded.slots, encode(name, POISONS[1]).slots)
    slot, start = encoded.layout.slot, encoded.layout.slot.value_offset
    assert isinstance(slot.value, KeyField)
    for layer in range(LAYERS):
        keys, values = (view[layer].float() for view in encoded.views)
        statistics = encoded.part.statistics[layer]
        expected = [
            reference.encode_field(keys, slot.key, layer, statistics),
            reference.encode_field(values, slot.value, layer),
        ]
        stored = encoded.slots[layer]
        finite = keys.isfinite().all(dim=-1)
        signs = [x[..., start - 1][finite] >> 7 for x in (stored, expected[0])]
        assert torch.equal(signs[0], signs[1])
        assert 0 < signs[0].float().mean() < 1
        specified = torch.cat(expected, dim=-1)
        differing = (stored[..., : slot.used_bytes] != specified)[finite].sum()
        assert differing <= RARELY * specified.numel()


@pytest.mark.parametrize("name", CASES)
def test_decodes_to_the_references_numbers(name: str) -> None:
    encoded = encode(name)
    layout, dtype = encoded.layout, encoded.layout.dtype
    restored = [torch.full_like(x, float("nan"), device=DEVICE) for x in encoded.views]
    parts = layout.side_table.parts(encoded.table.to(DEVICE))
    views = restored[0], restored[1]
    gpu.decode_layers(encoded.slots.to(DEVICE), views, layout.slot, 0, parts)
    specified = [torch.empty_like(x, dtype=dtype) for x in encoded.views]
    parts = layout.side_table.parts(encoded.table)
    views = specified[0], specified[1]
    reference.decode_layers(encoded.slots, views, layout.slot, 0, parts)
    for ours, theirs in zip(restored, specified, strict=True):
        assert_restored_alike(ours.cpu(), theirs, theirs.shape[-1])


def test_a_position_out_of_range_stays_within_the_keys() -> None:
    encoded = encode("4 bits")
    encoded.part.positions[:] = 10**6
    layout = encoded.layout
    restored = [torch.zeros_like(x, device=DEVICE) for x in encoded.views]
    parts = layout.side_table.parts(encoded.table.to(DEVICE))
    views = restored[0], restored[1]
    gpu.decode_layers(encoded.slots.to(DEVICE), views, layout.slot, 0, parts)
    kept = encoded.part.rows[:, :, -1]
    assert torch.equal(restored[0][:, -1].cpu(), kept.to(layout.dtype))
