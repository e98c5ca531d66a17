# SPDX-License-Identifier: Apache-2.0
"""What the paper predicts, by quadrature: no table or code of the package.

A coordinate of a uniform unit vector has a density proportional to
``(1 - t^2)^((d - 3) / 2)`` (Lemma 1): ``(t + 1) / 2`` is Beta distributed.
"""

# Standard
from functools import lru_cache
import math

# Third Party
from scipy import integrate, optimize, special, stats
import numpy as np


def mse_upper_bound(bits: int) -> float:
    """Theorem 1: no unit vector's distortion exceeds ``sqrt(3) pi / 2 * 4^-b``."""
    return math.sqrt(3) * math.pi / 2 * 4.0**-bits


def product_upper_bound(bits: int) -> float:
    """Theorem 2, times d: ``sqrt(3) pi^2 4^-b`` for a unit query."""
    return math.sqrt(3) * math.pi**2 * 4.0**-bits


def lower_bound(bits: int) -> float:
    """Theorem 3, either distortion (the inner product's times d): ``4^-b``."""
    return 4.0**-bits


def coordinate_law(dim: int) -> stats.rv_continuous:
    """Distribution of a coordinate of a uniform unit vector."""
    shape = (dim - 1) / 2
    return stats.beta(shape, shape, loc=-1, scale=2)


@lru_cache(maxsize=64)
def optimal_codebook(dim: int, bits: int) -> np.ndarray:
    """Solve the Lloyd-Max conditions (equation 4) of ``coordinate_law``.

    Args:
        dim: Dimensions of the unit vector.
        bits: Bits a coordinate.

    Returns:
        ``2 ** bits`` ascending centroids.
    """
    law = coordinate_law(dim)
    area = special.beta(0.5, (dim - 1) / 2)

    def residual(codebook: np.ndarray) -> np.ndarray:
        edges = np.r_[-1.0, (codebook[1:] + codebook[:-1]) / 2, 1.0]
        moments = -np.diff((1 - edges**2) ** ((dim - 1) / 2)) / (dim - 1) / area
        return moments / np.diff(law.cdf(edges)) - codebook

    start = law.ppf((np.arange(2**bits) + 0.5) / 2**bits)
    solution = optimize.root(residual, start, tol=1e-14)
    if np.abs(residual(solution.x)).max() > 1e-12:
        raise ArithmeticError(f"No codebook of {bits} bits, {dim} dimensions found")
    return solution.x


def gaussian_codebook(dim: int, bits: int) -> np.ndarray:
    """Scale the codebook of very many dimensions: that of N(0, 1 / dim)."""
    many = 10**6
    return optimal_codebook(many, bits) * math.sqrt(many / dim)


def distortion(codebook: np.ndarray, boundaries: np.ndarray, dim: int) -> float:
    """Integrate a quantiser's expected squared error on a uniform unit vector.

    Args:
        codebook: Ascending centroids.
        boundaries: Where one cell ends and the next begins.
        dim: Dimensions of the vector.

    Returns:
        The error of all coordinates together.
    """
    edges = np.r_[-1.0, boundaries, 1.0]
    area = special.beta(0.5, (dim - 1) / 2)

    def cell_error(t: float, centroid: float) -> float:
        return (t - centroid) ** 2 * (1 - t * t) ** ((dim - 3) / 2) / area

    cells = zip(edges[:-1], edges[1:], codebook, strict=True)
    return dim * sum(
        integrate.quad(cell_error, low, high, args=(centroid,), epsabs=1e-12)[0]
        for low, high, centroid in cells
    )


@lru_cache(maxsize=64)
def mse_distortion(dim: int, bits: int) -> float:
    """Least distortion D(b) of any scalar quantiser; all of it without a bit."""
    if bits == 0:
        return 1.0
    codebook = optimal_codebook(dim, bits)
    return distortion(codebook, (codebook[1:] + codebook[:-1]) / 2, dim)


def cosine(dim: int, bits: int) -> float:
    """Cosine of a unit vector and its restored self, to the first order in 1/d.

    ``<x, c> = |c|^2 = 1 - D`` on average, as centroids are means of their cells.
    """
    return math.sqrt(1 - mse_distortion(dim, bits))


def corrected_distortion(dim: int, bits: int) -> float:
    """Squared error after norm correction: two unit vectors at that cosine."""
    return 2 - 2 * cosine(dim, bits)


def product_distortion(dim: int, bits: int) -> float:
    """Squared error of Algorithm 2's inner products, times d, for a random query.

    Lemma 4's variance is ``(pi / 2 |r|^2 |y|^2 - <r, y>^2) / d`` for a residual r of
    squared norm D(b - 1), and ``<r, y>^2`` is ``|r|^2 / d`` on average.
    """
    return (math.pi / 2 - 1 / dim) * mse_distortion(dim, bits - 1)


def rank_correlation(dim: int, bits: int) -> float:
    """Spearman's correlation of two Gaussians that correlate like the scores."""
    return 6 / math.pi * math.asin(cosine(dim, bits) / 2)


@lru_cache(maxsize=8)
def recall(dim: int, bits: int, num_keys: int, count: int) -> float:
    """Share of the best ``count`` keys that restored keys have among theirs.

    Exact and restored scores are two Gaussians of one correlation, independent
    between keys. For a key of scores (a, b), the numbers of keys that beat it in
    both, in the exact and in the restored score alone are Poisson distributed.
    """
    correlation = cosine(dim, bits)
    step = 0.02
    grid = np.arange(1.0, 6.0, step)
    exact, restored = np.meshgrid(grid, grid, indexing="ij")
    law = stats.multivariate_normal(cov=[[1, correlation], [correlation, 1]])
    mass = law.pdf(np.stack([exact, restored], axis=-1)) * step**2
    both = mass
    for axis in (0, 1):
        beyond = np.flip(np.cumsum(np.flip(both, axis), axis), axis)
        both = beyond - both / 2
    alone = [np.maximum(stats.norm.sf(x) - both, 0) for x in (exact, restored)]
    is_best = sum(
        stats.poisson.pmf(shared, num_keys * both)
        * stats.poisson.cdf(count - 1 - shared, num_keys * alone[0])
        * stats.poisson.cdf(count - 1 - shared, num_keys * alone[1])
        for shared in range(count)
    )
    return float((mass * is_best).sum() * num_keys / count)


@lru_cache(maxsize=8)
def needle_found(dim: int, bits: int, num_keys: int, similarity: float) -> float:
    """Probability that the restored needle scores best among random keys.

    Args:
        dim: Dimensions of a key.
        bits: Bits a coordinate.
        num_keys: Keys, the needle among them.
        similarity: Cosine of the query and the needle.

    Returns:
        The probability, for a random query of that similarity.
    """
    mean = similarity * cosine(dim, bits)
    error = math.sqrt((1 - cosine(dim, bits) ** 2) * (1 - similarity**2) / (dim - 1))
    noise = np.linspace(-6, 6, 601)
    wins = coordinate_law(dim).cdf(mean + error * noise) ** (num_keys - 1)
    return float(integrate.trapezoid(wins * stats.norm.pdf(noise), noise))


def sparse_distortion(dim: int, bits: int, ones: int) -> float:
    """Distortion of ``ones`` equal entries after one Hadamard round, norms corrected.

    A coordinate is a sum of that many signs, so it takes few values, which the
    paper's rotation would not give. Codes are those of N(0, 1 / dim).
    """
    return _few_valued_distortion(dim, bits, ones, np.arange(ones + 1))


def constant_distortion(dim: int, bits: int) -> float:
    """The same of ``dim`` equal entries.

    Rows of a Hadamard matrix differ in an even number of places, so the numbers of
    positive signs of all coordinates of a key are even, or all are odd.
    """
    counts = np.arange(dim + 1)
    classes = [counts[parity::2] for parity in (0, 1)]
    return sum(_few_valued_distortion(dim, bits, dim, x) for x in classes) / 2


def _few_valued_distortion(
    dim: int, bits: int, ones: int, positive: np.ndarray
) -> float:
    """Distortion of coordinates that are sums of signs.

    Args:
        dim: Dimensions of a key.
        bits: Bits a coordinate.
        ones: Signs in a sum.
        positive: How many of them can be positive.

    Returns:
        The distortion, norms corrected.
    """
    share = stats.binom.pmf(positive, ones, 0.5)
    share = share / share.sum()
    values = np.abs(2 * positive - ones) / math.sqrt(ones * dim)
    codebook = gaussian_codebook(dim, bits)
    nearest = codebook[np.abs(values[:, None] - codebook).argmin(axis=1)]
    length = math.sqrt(dim * (share * nearest**2).sum())
    return 2 - 2 * dim * float((share * values * nearest).sum()) / length
