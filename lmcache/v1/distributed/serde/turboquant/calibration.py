# SPDX-License-Identifier: Apache-2.0
"""Statistics of the keys of one object, keys relative to them, and keys that are kept.

An object holds many tokens, so the encoder can see what the keys of a head have in
common: a mean, and dimensions that vary more than others. It stores both, and
quantises what is left. The statistics of one head of one layer are ``2 * dim``
bfloat16 numbers, ``mean | spread``.

Where the field has a ``rope_theta``, the first half of the spread's signs says, for
each pair of dimensions ``i`` and ``i + dim / 2``, whether the pair is turned back by
its rotary angle first (negative) or taken as it is (positive). A mean that the
embedding turns from token to token stands still in turned coordinates. A token's
position is its index within the object: the angle of the first is part of the mean.

Statistics are sums, which backends may add up in any order; they differ by one
bfloat16 step at most, and a pair whose two means are equally long may be turned or
not. Everything else follows from the statistics as they are stored.
"""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from lmcache.v1.distributed.serde.turboquant.rotation import row_norms
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

SPREAD_EXPONENT = 0.2
"""Power of a dimension's relative mean square that its spread is. A quarter makes the
error of rotated coordinates least; predictions of models are closer at less."""

MIN_SPREAD = 0.25
"""Least spread of a dimension; a constant one must not attract all error."""

MIN_SQUARE = 2.0**-100
"""A token whose squared distance from the mean is smaller has no weight."""


def measure(rows: torch.Tensor, field: KeyField) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure what the keys of each head have in common, and how far each is off.

    With ``z`` the keys, turned where that makes the mean longer:

    1. ``m`` = mean of ``z``; ``d = z - m``; ``w = 1 / |d|^2``, the weight of a token.
    2. mean = ``m + sum(w d) / sum(w)``, and ``q = sum(w d^2) / sum(w)`` about it, a
       dimension at a time; spread = ``(q / average of q) **
       SPREAD_EXPONENT``, at least ``MIN_SPREAD``.

    A token far from the others has little weight. Tokens with a NaN or an infinity
    have none.

    The distance of a key is ``|d|^2 / |z|^2``; 0 where it is zero or not finite.

    Args:
        rows: float32 ``[tokens, heads, dim]``, finite numbers within float16.
        field: Byte layout of the field.

    Returns:
        Statistics, bfloat16 ``[heads, 2 * dim]``, and distances, float32
        ``[tokens, heads]``.
    """
    is_finite = rows.isfinite().all(dim=-1, keepdim=True)
    finite = torch.where(is_finite, rows, 0).double()
    num_tokens = is_finite.sum(dim=0).clamp(min=1)
    is_turned = _turned_pairs(finite, field)
    if field.rope_theta:
        finite = _turn(finite, is_turned, field, direction=-1)
    means = finite.sum(dim=0) / num_tokens
    offsets = torch.where(is_finite, finite - means, 0)
    squares = offsets.square().sum(dim=-1, keepdim=True)
    weights = torch.where(squares >= MIN_SQUARE, 1 / squares, 0)
    total = weights.sum(dim=0)
    total = torch.where(total > 0, total, 1)
    shifts = (weights * offsets).sum(dim=0) / total
    powers = (weights * (offsets - shifts).square()).sum(dim=0) / total
    average = powers.mean(dim=-1, keepdim=True)
    relative = powers / torch.where(average > 0, average, 1)
    spreads = torch.where(average > 0, relative**SPREAD_EXPONENT, 1).clamp(
        min=MIN_SPREAD
    )
    half = field.dim // 2
    spreads[..., :half] *= torch.where(is_turned, -1, 1)
    statistics = torch.cat([means + shifts, spreads], dim=-1).bfloat16()
    lengths = finite.square().sum(dim=-1)
    distances = squares.squeeze(-1) / torch.where(lengths > 0, lengths, torch.inf)
    return statistics, distances.float()


def farthest(distances: torch.Tensor, count: int) -> torch.Tensor:
    """Choose the keys that are kept: those of the largest distances.

    Few keys lie far from the mean of their head; the first of a sequence, which
    attention uses as a sink, is one. Their errors cost more than others'.

    Args:
        distances: float32 ``[tokens, heads]`` of :func:`measure`.
        count: Keys of a head.

    Returns:
        Indices of tokens, int64 ``[heads, count]``, ascending. Of equal distances
        the earlier one wins.
    """
    order = distances.argsort(dim=0, descending=True, stable=True)
    return order[:count].sort(dim=0).values.T


def kept_rows(rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Pick the kept keys.

    Args:
        rows: ``[tokens, heads, dim]``.
        positions: Indices of tokens ``[heads, count]``.

    Returns:
        ``[heads, count, dim]``.
    """
    index = positions.T.long().unsqueeze(-1).expand(-1, -1, rows.shape[-1])
    return rows.gather(0, index).transpose(0, 1)


def put_back(
    rows: torch.Tensor, kept: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Put the kept keys where they were.

    Args:
        rows: float32 ``[tokens, heads, dim]``.
        kept: ``[heads, count, dim]``.
        positions: Indices of tokens ``[heads, count]``; one that is out of range
            means the nearest that is in it.

    Returns:
        The rows with those of ``positions`` replaced.
    """
    index = positions.T.long().clamp(0, rows.shape[0] - 1).unsqueeze(-1)
    source = kept.transpose(0, 1).to(rows.dtype)
    return rows.scatter(0, index.expand(-1, -1, rows.shape[-1]), source)


def to_relative(
    rows: torch.Tensor, statistics: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Express keys relative to their statistics: ``(z - mean) * (1 / spread)``.

    Args:
        rows: float32 ``[tokens, heads, dim]``.
        statistics: bfloat16 ``[heads, 2 * dim]`` of :func:`measure`.
        field: Byte layout of the field.

    Returns:
        float32 ``[tokens, heads, dim]``.
    """
    means, spreads, is_turned = _parts(statistics, field)
    if field.rope_theta:
        rows = _turn(rows, is_turned, field, direction=-1)
    return (rows - means) * (1 / spreads)


def from_relative(
    rows: torch.Tensor, statistics: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Undo :func:`to_relative`: ``z = rows * spread + mean``, turned forth.

    Args:
        rows: float32 ``[tokens, heads, dim]``.
        statistics: As in :func:`to_relative`.
        field: Byte layout of the field.

    Returns:
        float32 ``[tokens, heads, dim]``.
    """
    means, spreads, is_turned = _parts(statistics, field)
    rows = rows * spreads + means
    if field.rope_theta:
        rows = _turn(rows, is_turned, field, direction=1)
    return rows


def error_gain(statistics: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Return how much an error of relative coordinates grows on the way back.

    The rotation spreads an error evenly over the dimensions, so it grows by the
    root mean square of their spreads.

    Args:
        statistics: bfloat16 ``[heads, 2 * dim]`` of :func:`measure`.
        field: Byte layout of the field.

    Returns:
        float32 ``[heads, 1]``.
    """
    _, spreads, _ = _parts(statistics, field)
    return row_norms(spreads) * field.dim**-0.5


def _parts(
    statistics: torch.Tensor, field: KeyField
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return float32 means and spreads ``[heads, dim]``, and what is turned."""
    means, spreads = statistics.float().split(field.dim, dim=-1)
    return means, spreads.abs(), spreads[..., : field.dim // 2].signbit()


def _turned_pairs(rows: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Return which pairs ``[heads, dim / 2]`` have a longer mean when turned."""
    heads, half = rows.shape[1], field.dim // 2
    every_pair = torch.ones(heads, half, dtype=torch.bool, device=rows.device)
    if not field.rope_theta:
        return ~every_pair
    turned = _turn(rows, every_pair, field, direction=-1)
    lengths = [
        x.sum(dim=0).unflatten(-1, (2, half)).square().sum(dim=-2)
        for x in (turned, rows)
    ]
    return lengths[0] > lengths[1]


def _turn(
    rows: torch.Tensor, is_turned: torch.Tensor, field: KeyField, *, direction: int
) -> torch.Tensor:
    """Turn pairs by their rotary angle, forth (1) or back (-1).

    Args:
        rows: ``[tokens, heads, dim]``.
        is_turned: bool ``[heads, dim / 2]``; the other pairs are left as they are.
        field: Byte layout of the field.
        direction: 1 or -1.

    Returns:
        The rows, in the same precision.
    """
    tokens, _, dim = rows.shape
    cosines, sines = (
        table.to(rows).unsqueeze(1)
        for table in tables.rotary(dim, field.rope_theta, tokens)
    )
    cosines = torch.where(is_turned, cosines, 1)
    sines = torch.where(is_turned, sines, 0) * direction
    first, second = rows.chunk(2, dim=-1)
    return torch.cat(
        [first * cosines - second * sines, second * cosines + first * sines], dim=-1
    )
