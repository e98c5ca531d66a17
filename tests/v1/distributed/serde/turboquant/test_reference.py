# SPDX-License-Identifier: Apache-2.0
"""The specification against theory: packing, rotation, distortion, determinism."""

# Standard
from itertools import product

# Third Party
from scipy import linalg
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, tables
from lmcache.v1.distributed.serde.turboquant.slot import Field, KeyField, ValueField
from tests.v1.distributed.serde.turboquant.helpers import (
    HEAD_DIMS,
    PRESET_NAMES,
    gaussian,
    relative_error,
    slot_of,
)
from tests.v1.distributed.serde.turboquant.paper import theory

ROWS = 20_000
FLOAT32_ROUNDING = 2.0**-24


FP16_MAX = 65504.0


def round_trip(rows: torch.Tensor, field: Field, layer: int = 0) -> torch.Tensor:
    """Quantise rows and restore them."""
    stored = reference.encode_field(rows, field, layer)
    assert stored.shape == (*rows.shape[:-1], field.num_bytes)
    return reference.decode_field(stored, field, layer)


def fields(dim: int = 128) -> list[Field]:
    """Every kind of field that a preset has."""
    slots = [slot_of(preset, dim) for preset in PRESET_NAMES]
    found = [field for slot in slots for field in (slot.key, slot.value) if field]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_pack_matches_numpy_packbits(bits: int) -> None:
    indices = np.random.RandomState(bits).randint(0, 2**bits, (50, 64))
    planes = (indices[..., None] >> np.arange(bits)) & 1
    expected = np.packbits(planes.reshape(50, -1), axis=-1, bitorder="little")
    packed = reference.pack(torch.from_numpy(indices), bits)
    assert np.array_equal(packed.numpy(), expected)
    assert torch.equal(reference.unpack(packed, bits), torch.from_numpy(indices))


def test_pack_puts_even_dimensions_in_low_nibbles() -> None:
    for low, high in product(range(16), repeat=2):
        pair = torch.tensor([low, high, 0, 0, 0, 0, 0, 0])
        assert reference.pack(pair, 4).tolist() == [low | high << 4, 0, 0, 0]


def test_pack_makes_24_bit_little_endian_words_of_3_bit_indices() -> None:
    indices = torch.tensor([1, 2, 3, 4, 5, 6, 7, 0])
    word = sum(int(index) << 3 * place for place, index in enumerate(indices))
    assert bytes(reference.pack(indices, 3).tolist()) == word.to_bytes(3, "little")


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_rotation_is_orthonormal_and_undone(head_dim: int) -> None:
    identity = torch.eye(head_dim)
    matrix = reference.rotate(identity, layer=3)
    tolerance = 8 * FLOAT32_ROUNDING
    assert torch.allclose(matrix @ matrix.T, identity, atol=tolerance * 4)
    restored = reference.unrotate(matrix, layer=3)
    assert torch.allclose(restored, identity, atol=tolerance)


@pytest.mark.parametrize("head_dim", [8, 64, 128, 256])
def test_rotation_is_the_signed_sylvester_hadamard(head_dim: int) -> None:
    signs = tables.rotation_signs(head_dim, 5).numpy()
    expected = signs[:, None] * linalg.hadamard(head_dim) / np.sqrt(head_dim)
    matrix = reference.rotate(torch.eye(head_dim), layer=5).numpy()
    assert np.allclose(matrix, expected, rtol=4 * FLOAT32_ROUNDING, atol=0)


@pytest.mark.parametrize("head_dim", [80, 96, 112, 192])
def test_rotation_leaves_no_coordinate_unmixed(head_dim: int) -> None:
    matrix = reference.rotate(torch.eye(head_dim), layer=0).abs()
    flat = head_dim**-0.5
    assert matrix.max() < 2 * flat
    assert (matrix < flat / 100).double().mean() < 0.01


def test_rotation_differs_between_layers() -> None:
    rows = gaussian(4, 128)
    assert not torch.equal(reference.rotate(rows, 0), reference.rotate(rows, 1))


def sphere_distortion(head_dim: int, bits: int) -> float:
    """Distortion of the codebook on a uniform unit vector, by quadrature."""
    codebook = tables.centroids(head_dim, bits).double().numpy()
    inner = tables.boundaries(head_dim, bits).double().numpy()
    return theory.distortion(codebook, inner, head_dim)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
def test_key_distortion_is_that_of_theory(head_dim: int, bits: int) -> None:
    field = KeyField(bits=bits, dim=head_dim)
    keys = gaussian(ROWS, head_dim, seed=bits)
    stored = reference.encode_field(keys, field, layer=1)
    indices = reference.unpack(stored[:, : field.norm_offset], bits)
    directions = tables.centroids(head_dim, bits)[indices]
    units = reference.rotate(keys / keys.norm(dim=1, keepdim=True), layer=1)
    distortion = (units - directions).square().sum(dim=1).double().mean()
    assert distortion == pytest.approx(sphere_distortion(head_dim, bits), rel=0.01)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_norm_correction_keeps_distortion_and_norms(bits: int) -> None:
    keys = 7 * gaussian(ROWS, 128, seed=bits)
    restored = round_trip(keys, KeyField(bits=bits, dim=128))
    theory = sphere_distortion(128, bits)
    assert relative_error(keys, restored) == pytest.approx(theory, rel=0.03)
    norm_ratio = restored.norm(dim=1) / keys.norm(dim=1)
    assert (norm_ratio - 1).abs().max() < 2.0**-11 + 1e-6


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_value_distortion_is_that_of_uniform_levels(head_dim: int, bits: int) -> None:
    values = gaussian(ROWS, head_dim, seed=bits)
    restored = round_trip(values, ValueField(bits=bits, dim=head_dim))
    steps = (values.amax(1) - values.amin(1)).double() / (2**bits - 1)
    interior = (head_dim - 2) / head_dim  # the extremes are levels themselves
    theory = steps.square().mean() / 12 * interior
    error = (values - restored).double().square().mean()
    assert error == pytest.approx(theory.item(), rel=0.02)


@pytest.mark.parametrize("bits", [3, 4])
def test_rotation_protects_outlier_channels(bits: int) -> None:
    keys = gaussian(ROWS, 128)
    keys[:, [3, 17, 64, 100]] *= 20
    restored = round_trip(keys, KeyField(bits=bits, dim=128), layer=2)
    theory = sphere_distortion(128, bits)
    assert relative_error(keys, restored) == pytest.approx(theory, rel=0.15)


def test_fp8_keys_round_to_nearest_and_saturate() -> None:
    keys = torch.tensor([[0.0, 1.0, 1.0625, 1.1875, 448.0, 500.0, -1e5, 2.0**-10]])
    restored = round_trip(keys, KeyField(bits=8, dim=8))
    assert restored.tolist() == [[0, 1, 1, 1.25, 448, 448, -448, 0]]


@pytest.mark.parametrize("field", fields(), ids=repr)
def test_zero_rows_are_exact(field: Field) -> None:
    zeros = torch.zeros(3, 128)
    assert torch.equal(round_trip(zeros, field), zeros)


@pytest.mark.parametrize("field", fields(), ids=repr)
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_number_stays_in_its_row(field: Field, poison: float) -> None:
    clean = gaussian(5, 128)
    dirty = clean.clone()
    dirty[2, 7] = poison
    stored = reference.encode_field(dirty, field, layer=0)
    others = [0, 1, 3, 4]
    assert torch.equal(
        stored[others], reference.encode_field(clean, field, layer=0)[others]
    )
    restored = reference.decode_field(stored, field, layer=0)
    if field == KeyField(bits=8, dim=128):
        assert torch.equal(restored.isnan(), dirty.isnan())
    else:
        assert not restored[2].isfinite().any()


@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0, -100.0])
@pytest.mark.parametrize("bits", [3, 4])
def test_values_are_nearest_levels_of_what_is_stored(mean: float, bits: int) -> None:
    field = ValueField(bits=bits, dim=128)
    values = mean + 0.1 * gaussian(1000, 128)
    stored = reference.encode_field(values, field, layer=0)
    numbers = stored[:, field.scale_offset :].contiguous().view(torch.float16).float()
    scale, zero = numbers[:, :1], numbers[:, 1:]
    levels = torch.arange(2**bits) * scale + zero
    nearest = (values[:, :, None] - levels[:, None, :]).abs().amin(dim=-1)
    error = (reference.decode_field(stored, field, layer=0) - values).abs()
    assert (error <= nearest + 4 * FLOAT32_ROUNDING * (1 + abs(mean))).all()


@pytest.mark.parametrize("field", fields(), ids=repr)
def test_an_outlier_beyond_float16_saturates_alone(field: Field) -> None:
    rows = gaussian(4, 128)
    rows[:, 9] = -1e5
    at_limit = rows.clamp(min=-FP16_MAX)
    restored = round_trip(rows, field)
    assert restored.isfinite().all()
    assert torch.equal(restored, round_trip(at_limit, field))


@pytest.mark.parametrize("field", fields(), ids=repr)
def test_rows_beyond_float16_are_finite(field: Field) -> None:
    rows = torch.full((2, 128), 6e4)
    rows[1] = 3e38
    restored = round_trip(rows, field)
    assert restored.isfinite().all()
    limit = 448 if field == KeyField(bits=8, dim=128) else FP16_MAX
    assert restored.abs().max() <= limit * 1.01


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize("scale", [1e-3, 1e-4, 1e-5, 1e-6])
def test_small_keys_lose_only_what_the_stored_norm_rounds(
    bits: int, scale: float
) -> None:
    keys = scale * gaussian(500, 128)
    restored = round_trip(keys, KeyField(bits=bits, dim=128))
    norms = keys.norm(dim=1)
    norm_rounding = (2.0**-11 * norms).clamp(min=2.0**-25)
    error = (restored - keys).norm(dim=1)
    bound = 2 * sphere_distortion(128, bits) ** 0.5 * norms + norm_rounding
    assert (error <= bound).all()


def test_keys_below_half_the_smallest_float16_flush_to_zero() -> None:
    keys = torch.full((1, 128), 1e-10)
    assert not round_trip(keys, KeyField(bits=4, dim=128)).any()


@pytest.mark.parametrize("ones", [1, 2])
@pytest.mark.parametrize("bits", [3, 4])
def test_sparse_keys_keep_their_direction(ones: int, bits: int) -> None:
    keys = torch.zeros(128, 128)
    for shift in range(ones):
        keys += torch.eye(128).roll(17 * shift, dims=1)
    restored = round_trip(keys, KeyField(bits=bits, dim=128))
    cosine = torch.cosine_similarity(keys, restored)
    assert cosine.min() > 1 - 2 * sphere_distortion(128, bits)


def test_row_norms_are_a_tree_of_float32_sums() -> None:
    rows = gaussian(64, 192)
    exact = rows.double().norm(dim=1, keepdim=True)
    depth = 10  # additions on the longest path, and the root
    error = (reference.row_norms(rows).double() - exact).abs() / exact
    assert error.max() < depth * FLOAT32_ROUNDING
