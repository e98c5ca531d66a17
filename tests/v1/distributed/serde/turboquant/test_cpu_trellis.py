# SPDX-License-Identifier: Apache-2.0
"""The CPU's trellis search and look-up against torch, bit for bit."""

# Third Party
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numba import njit
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables, trellis
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis import (
    NUM_INT_TILES,
    write_trellis_codes,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_levels import (
    read_trellis_levels,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_trellis_tables import (
    TrellisTables,
    make_trellis_tables,
)
from lmcache.v1.distributed.serde.turboquant.packing import pack, unpack
from lmcache.v1.distributed.serde.turboquant.presets import TRELLIS_PRESETS
from lmcache.v1.distributed.serde.turboquant.slot import KeyField
from tests.v1.distributed.serde.turboquant.helpers import (
    POISONS,
    encode,
    gaussian,
    unskipped,
)

BITS = [2, 3, 4]
DIMS = [8, 24, 64, 128]

SPARE_BYTES = 4
"""A word may be read and written past the last code, as norms follow it."""


@njit
def write(
    tile: np.ndarray,
    scratch: np.ndarray,
    int_tiles: np.ndarray,
    bits: int,
    constants: TrellisTables,
    payload: np.ndarray,
    fields_at: np.ndarray,
) -> None:
    """Write the codes of a tile of directions."""
    scale = np.float32(1)
    write_trellis_codes(
        tile, scale, scratch, int_tiles, bits, constants, payload, fields_at
    )


@njit
def read(
    payload: np.ndarray,
    fields_at: np.ndarray,
    bits: int,
    constants: TrellisTables,
    tile: np.ndarray,
) -> None:
    """Read the levels of a tile."""
    read_trellis_levels(payload, fields_at, bits, constants, tile)


def codes_of(rows: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes that the kernels choose for ``LANES`` directions."""
    dim = rows.shape[-1]
    tile = np.ascontiguousarray(rows.numpy().T)
    width = dim * bits // 8
    payload = np.full((LANES, width + SPARE_BYTES), POISONS[0], np.uint8)
    int_tiles = np.empty((NUM_INT_TILES, dim, LANES), np.int32)
    fields_at = np.arange(LANES) * payload.shape[1]
    constants = make_trellis_tables(dim, bits)
    scratch = np.empty_like(tile)
    write(tile, scratch, int_tiles, bits, constants, payload.ravel(), fields_at)
    assert np.array_equal(tile.T, rows.numpy(), equal_nan=True)
    return unpack(torch.from_numpy(payload[:, :width].copy()), bits)


def levels_of(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Levels that the kernels restore from ``LANES`` rows of codes."""
    dim = codes.shape[-1]
    packed = pack(codes, bits).numpy()
    payload = np.full((LANES, packed.shape[1] + SPARE_BYTES), POISONS[1], np.uint8)
    payload[:, : packed.shape[1]] = packed
    fields_at = np.arange(LANES) * payload.shape[1]
    tile = np.empty((dim, LANES), np.float32)
    read(payload.ravel(), fields_at, bits, make_trellis_tables(dim, bits), tile)
    return torch.from_numpy(tile.T.copy())


def field_of(bits: int, dim: int) -> KeyField:
    """A field of trellis codes."""
    return KeyField(bits=bits, dim=dim, is_trellis=True)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", DIMS)
def test_codes_of_directions(bits: int, dim: int) -> None:
    rows = torch.nn.functional.normalize(gaussian(50 * LANES, dim, seed=dim), dim=-1)
    for some in rows.split(LANES):
        expected = trellis.encode(some, field_of(bits, dim))
        assert torch.equal(codes_of(some, bits), expected)


@given(
    numbers=arrays(np.float32, (LANES, 16), elements=st.floats(width=32)),
    bits=st.sampled_from(BITS),
)
@example(np.zeros((LANES, 16), np.float32), 4)
@example(np.full((LANES, 16), -0.0, np.float32), 3)
@example(np.full((LANES, 16), np.inf, np.float32), 2)
def test_codes_of_any_numbers(numbers: np.ndarray, bits: int) -> None:
    """Infinities and NaN too, of which a rotated vector has all or none."""
    rows = torch.from_numpy(numbers)
    assert torch.equal(codes_of(rows, bits), trellis.encode(rows, field_of(bits, 16)))


@pytest.mark.parametrize("bits", BITS)
def test_windows_at_and_beside_every_level(bits: int) -> None:
    """A first coordinate at the reach, which is above all levels, makes the gain 1."""
    field = field_of(bits, 256)
    levels = tables.trellis_levels(field.dim, bits).numpy()
    beside = [np.nextafter(levels, np.float32(side)) for side in (-9, 9)]
    places = np.resize(np.concatenate([levels, *beside]), LANES * field.dim)
    places = np.random.RandomState(bits).permutation(places)
    rows = torch.from_numpy(places).view(LANES, field.dim)
    rows[:, 0] = trellis.REACH.get(bits, 0.0) * field.dim**-0.5
    assert (trellis.gains(rows, field) == 1).all()
    assert torch.equal(codes_of(rows, bits), trellis.encode(rows, field))


@given(seed=st.integers(0, 10**6), bits=st.sampled_from(BITS))
def test_levels_of_any_codes(seed: int, bits: int) -> None:
    codes = torch.from_numpy(np.random.RandomState(seed).randint(2**bits, size=(8, 24)))
    assert torch.equal(
        levels_of(codes, bits), trellis.decode(codes, field_of(bits, 24))
    )


@pytest.mark.parametrize("preset", TRELLIS_PRESETS)
@pytest.mark.parametrize("tokens", [63, 64])
def test_the_effort_is_ignored(preset: str, tokens: int) -> None:
    tensor = gaussian(2, 2, tokens, 2 * 64).bfloat16()
    configs = [unskipped(preset, 64, framed=True, effort=name) for name in EFFORTS]
    fast, *others = [encode(tensor, config) for config in configs]
    for searched in others:
        assert torch.equal(searched, fast)
