# SPDX-License-Identifier: Apache-2.0
"""Number formats on lanes against torch: every code, and numbers near every code."""

# Standard
from collections.abc import Callable

# Third Party
from numba import njit
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import LANES
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import get, put
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    from_bfloat16,
    from_e4m3,
    from_float16,
    to_bfloat16,
    to_e4m3,
    to_float16,
)

ALL_HALVES = np.arange(2**16, dtype=np.int32)
ALL_BYTES = np.arange(2**8, dtype=np.int32)


def on_lanes(
    convert: Callable, numbers: np.ndarray, dtype: np.typing.DTypeLike
) -> np.ndarray:
    """Apply a lane function to a multiple of ``LANES`` numbers."""

    @njit
    def run(source: np.ndarray, target: np.ndarray) -> None:
        for row in range(source.shape[0]):
            put(target, row, convert(get(source, row)))

    target: np.ndarray = np.empty((numbers.size // LANES, LANES), dtype=dtype)
    run(numbers.reshape(-1, LANES), target)
    return target.reshape(-1)


def torch_numbers(codes: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Widen codes with torch."""
    integers = {1: np.uint8, 2: np.uint16}[dtype.itemsize]
    return torch.from_numpy(codes.astype(integers)).view(dtype).float().numpy()


def torch_codes(numbers: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Round numbers with torch after bounding the finite ones."""
    exact, limit = torch.from_numpy(numbers), torch.finfo(dtype).max
    saturates = exact.isfinite() | (dtype == torch.float8_e4m3fn)
    bounded = torch.where(saturates, exact.clamp(-limit, limit), exact).to(dtype)
    integers = {1: torch.uint8, 2: torch.uint16}[dtype.itemsize]
    return bounded.view(integers).numpy().astype(np.int32)


def numbers_near_codes(codes: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """Every code's number, the ties between neighbours, and both sides of all."""
    exact = torch_numbers(codes, dtype)
    finite = exact[np.isfinite(exact)].astype(np.float64)
    ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    bits = np.concatenate([exact, ties]).view(np.int32)
    bits = np.concatenate([bits - 1, bits, bits + 1])
    return bits[: bits.size // LANES * LANES].view(np.float32)


@pytest.mark.parametrize(
    "convert,codes,dtype",
    [
        (from_float16, ALL_HALVES, torch.float16),
        (from_bfloat16, ALL_HALVES, torch.bfloat16),
        (from_e4m3, ALL_BYTES, torch.float8_e4m3fn),
    ],
)
def test_every_code_widens_exactly(
    convert: Callable, codes: np.ndarray, dtype: torch.dtype
) -> None:
    numbers, expected = (
        on_lanes(convert, codes, np.float32),
        torch_numbers(codes, dtype),
    )
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(numbers), nan)
    assert np.array_equal(numbers.view(np.int32)[~nan], expected.view(np.int32)[~nan])


@pytest.mark.parametrize(
    "convert,codes,dtype,nan_codes",
    [
        (to_float16, ALL_HALVES, torch.float16, {0x7E00}),
        (to_bfloat16, ALL_HALVES, torch.bfloat16, {0x7FC0}),
        (to_e4m3, ALL_BYTES, torch.float8_e4m3fn, {0x7F, 0xFF}),
    ],
)
def test_rounding_is_to_nearest_even(
    convert: Callable, codes: np.ndarray, dtype: torch.dtype, nan_codes: set[int]
) -> None:
    noise = np.random.RandomState(0).randint(0, 2**32, 2**20, dtype=np.uint32)
    numbers = np.concatenate([numbers_near_codes(codes, dtype), noise.view(np.float32)])
    if dtype == torch.bfloat16:
        # Nothing that is decoded comes near the end of bfloat16's range.
        numbers = np.where(np.isfinite(numbers) & (abs(numbers) > 3e38), 0, numbers)
        numbers = numbers.astype(np.float32)
    rounded, nan = on_lanes(convert, numbers, np.int32), np.isnan(numbers)
    assert np.array_equal(rounded[~nan], torch_codes(numbers, dtype)[~nan])
    assert set(rounded[nan]) == nan_codes
