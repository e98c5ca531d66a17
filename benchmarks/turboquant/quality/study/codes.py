# SPDX-License-Identifier: Apache-2.0
"""Codes of a fixed size for rotated directions: Lloyd-Max levels, and trellises.

A code maps coordinates of about N(0, 1), ``[rows, dim]``, to what it restores of them.
Only the direction of a restored row counts: its length is stored next to it.
"""

# Standard
from collections.abc import Callable
from functools import lru_cache

# Third Party
import torch

Code = Callable[[torch.Tensor], torch.Tensor]
"""From coordinates ``[rows, dim]`` to restored ones."""

CHECKS = {4: (0o5, 0o2), 8: (0o13, 0o4), 64: (0o103, 0o24), 256: (0o515, 0o362)}
"""Parity checks of Ungerboeck's codes for amplitude modulation, by states (1982)."""

_LLOYD_ROUNDS = 2000
_GAUSSIAN_ROWS = 1024
_GAUSSIAN_DIM = 64
_TRAINING_ROUNDS = 12
_BATCH_STEPS = 2**25
"""Path costs that are held at a time."""


@lru_cache(maxsize=8)
def lloyd_max(bits: int) -> Code:
    """Return the nearest of the ``2**bits`` levels that suit N(0, 1) best."""
    count = 2**bits
    normal = torch.distributions.Normal(0.0, 1.0)
    levels = torch.special.ndtri((torch.arange(count).double() + 0.5) / count)
    for _ in range(_LLOYD_ROUNDS):
        edges = (levels[1:] + levels[:-1]) / 2
        ends = torch.tensor([torch.inf], dtype=edges.dtype)
        edges = torch.cat([-ends, edges, ends])
        density = normal.log_prob(edges).exp()
        levels = density.diff().neg() / torch.special.ndtr(edges).diff()
    edges = ((levels[1:] + levels[:-1]) / 2).float()
    return lambda rows: levels.float()[torch.bucketize(rows, edges, right=True)]


def searched(code: Code, gains: tuple[float, ...]) -> Code:
    """Scale each row before a code, so that its direction comes back best.

    Args:
        code: What quantises.
        gains: Factors to try besides 1.

    Returns:
        A code of the same size and decoder.
    """

    def search(rows: torch.Tensor) -> torch.Tensor:
        best = code(rows)
        cosines = _cosines(rows, best)
        for gain in gains:
            tried = code(rows * gain)
            found = _cosines(rows, tried)
            is_better = found > cosines
            cosines = torch.where(is_better, found, cosines)
            best = torch.where(is_better[:, None], tried, best)
        return best

    return search


def trellis(bits: int, states: int) -> Code:
    """Return a trellis code (Marcellin and Fischer, 1990) with levels fitted to it.

    A row's path is ``dim`` bits, which start from zero; each sees the last bits of the
    path and chooses one of four subsets of ``2 ** (bits + 1)`` levels; the other
    ``bits - 1`` bits choose within the subset. A decoder looks at a sliding window of
    the path, so all coordinates can be decoded at once.

    Args:
        bits: Bits a coordinate.
        states: Of the trellis, one of ``CHECKS``.

    Returns:
        The code.
    """
    levels = trellis_levels(bits, states)
    return lambda rows: levels[best_paths(rows, levels, states)]


@lru_cache(maxsize=16)
def trellis_levels(bits: int, states: int) -> torch.Tensor:
    """Return the fixed point of Lloyd's rule on Gaussian rows.

    Args:
        bits: Bits a coordinate.
        states: Of the trellis.

    Returns:
        Ascending levels, ``[2 ** (bits + 1)]``; level ``i`` is in subset ``i % 4``.
    """
    count = 2 ** (bits + 1)
    rows = _gaussian_rows(bits)
    quantiles = (torch.arange(count) + 0.5) / count
    levels = 1.3 * torch.special.ndtri(quantiles)
    for _ in range(_TRAINING_ROUNDS):
        chosen = best_paths(rows, levels, states).flatten()
        sums = torch.zeros(count).index_add_(0, chosen, rows.flatten())
        counts = torch.bincount(chosen, minlength=count)
        levels = torch.where(counts > 0, sums / counts.clamp(min=1), levels)
        levels = (levels - levels.flip(0)) / 2
    return levels


def distortion(code: Code) -> float:
    """Return the squared error of unit vectors that are restored to their length.

    That is ``1 - cosine**2`` on average over Gaussian rows; a norm is free.
    """
    rows = _gaussian_rows(seed=0)
    return float(1 - _cosines(rows, code(rows)).square().mean())


def best_paths(rows: torch.Tensor, levels: torch.Tensor, states: int) -> torch.Tensor:
    """Choose the levels of least squared error that a path allows.

    Args:
        rows: Coordinates ``[rows, dim]``.
        levels: As of :func:`trellis_levels`.
        states: Of the trellis.

    Returns:
        Indices of levels, int64 ``[rows, dim]``.
    """
    batch = max(_BATCH_STEPS // (2 * states * rows.shape[1]), 1)
    return torch.cat([_viterbi(part, levels, states) for part in rows.split(batch)])


def _gaussian_rows(seed: int) -> torch.Tensor:
    """Draw rows of N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(_GAUSSIAN_ROWS, _GAUSSIAN_DIM, generator=generator)


def _viterbi(rows: torch.Tensor, levels: torch.Tensor, states: int) -> torch.Tensor:
    """Do the work of :func:`best_paths` for one batch.

    A window is a path bit above the state, which is the bits before it; the next state
    is the upper part of the window.
    """
    first, second = CHECKS[states]
    windows = torch.arange(2 * states)
    subsets = 2 * _parity(windows & first) + _parity(windows & second)
    # [rows, dim, levels of a subset, subsets].
    errors = (rows[..., None] - levels).square().unflatten(-1, (-1, 4))
    errors, members = errors.min(dim=-2)
    costs = torch.full((len(rows), states), torch.inf)
    costs[:, 0] = 0
    choices = []
    for error in errors.unbind(dim=1):
        branches = error[:, subsets] + costs.repeat(1, 2)
        costs, choice = branches.unflatten(-1, (states, 2)).min(dim=-1)
        choices.append(choice.to(torch.uint8))
    state = costs.argmin(dim=-1, keepdim=True)
    path = []
    for choice in reversed(choices):
        window = 2 * state + choice.gather(1, state).long()
        path.append(subsets[window])
        state = window % states
    chosen = torch.cat(path[::-1], dim=-1)
    return 4 * members.gather(-1, chosen[..., None]).squeeze(-1) + chosen


def _parity(numbers: torch.Tensor) -> torch.Tensor:
    """Return the parity of the bits of numbers below 2**16."""
    for shift in (8, 4, 2, 1):
        numbers = numbers ^ (numbers >> shift)
    return numbers & 1


def _cosines(rows: torch.Tensor, restored: torch.Tensor) -> torch.Tensor:
    """Return the cosines ``[rows]`` of rows and what is restored of them."""
    return torch.cosine_similarity(rows, restored, dim=-1)
