# SPDX-License-Identifier: Apache-2.0
"""Tables against independent oracles: scipy, and torch's generator."""

# Third Party
from scipy import optimize, stats
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from tests.v1.distributed.serde.turboquant.helpers import HEAD_DIMS

LLOYD_MAX_DISTORTION = {1: 0.36338, 2: 0.11748, 3: 0.03455, 4: 0.00950}
"""Max (1960), table I."""


def lloyd_max(bits: int) -> np.ndarray:
    """Solve the Lloyd-Max conditions of N(0, 1) by Newton's method."""
    levels = 2**bits

    def residual(codebook: np.ndarray) -> np.ndarray:
        edges = np.r_[-np.inf, (codebook[1:] + codebook[:-1]) / 2, np.inf]
        mass = np.diff(stats.norm.cdf(edges))
        return -np.diff(stats.norm.pdf(edges)) / mass - codebook

    start = stats.norm.ppf((np.arange(levels) + 0.5) / levels)
    solution = optimize.root(residual, start, tol=1e-14)
    assert np.abs(residual(solution.x)).max() < 1e-12
    return solution.x


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_codebook_is_the_exact_lloyd_max_one(head_dim: int, bits: int) -> None:
    exact = lloyd_max(bits) / np.sqrt(head_dim)
    assert np.allclose(tables.centroids(head_dim, bits), exact, rtol=1e-7, atol=0)
    midpoints = (exact[1:] + exact[:-1]) / 2
    assert np.allclose(
        tables.boundaries(head_dim, bits), midpoints, rtol=1e-7, atol=1e-12
    )


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_codebook_has_the_published_distortion(bits: int) -> None:
    codebook = tables.centroids(1, bits).double().numpy()
    edges = np.r_[-np.inf, tables.boundaries(1, bits).double().numpy(), np.inf]
    mass = np.diff(stats.norm.cdf(edges))
    moment = -np.diff(stats.norm.pdf(edges))
    distortion = 1 - 2 * (codebook * moment).sum() + (codebook**2 * mass).sum()
    assert distortion == pytest.approx(LLOYD_MAX_DISTORTION[bits], abs=6e-6)


def test_codebook_is_antisymmetric_bit_for_bit() -> None:
    codebook = tables.centroids(128, 4)
    assert torch.equal(codebook, -codebook.flip(0))
    assert tables.boundaries(128, 4)[7] == 0


@pytest.mark.parametrize("bits", [0, 5, 8])
def test_other_bit_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match=f"No codebook of {bits} bits"):
        tables.centroids(128, bits)


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("layer", [0, 1, 2, 31, 79, 1000])
def test_signs_are_those_of_torchs_cpu_generator(head_dim: int, layer: int) -> None:
    generator = torch.Generator().manual_seed(42 + 1337 * layer)
    drawn = torch.randint(0, 2, (head_dim,), generator=generator) * 2 - 1
    assert torch.equal(tables.rotation_signs(head_dim, layer), drawn.float())


@pytest.mark.parametrize("order", [1, 3, 5, 7, 9, 127])
def test_hartley_is_symmetric_and_orthonormal(order: int) -> None:
    matrix = np.array(tables.hartley(order))
    assert np.allclose(matrix, matrix.T, atol=1e-14)
    assert np.allclose(matrix @ matrix, np.eye(order), atol=1e-13)
