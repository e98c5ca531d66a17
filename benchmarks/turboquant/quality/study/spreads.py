# SPDX-License-Identifier: Apache-2.0
"""What two widths within a head, and prediction between tokens, could gain at most."""

# Third Party
import torch

# First Party
from comparison import CHUNK_TOKENS
from lmcache.v1.distributed.serde.turboquant import calibration
from lmcache.v1.distributed.serde.turboquant.slot import KeyField


def in_chunks(side: torch.Tensor, dim: int) -> torch.Tensor:
    """``[windows, tokens, hidden]`` to ``[all chunks, tokens, heads, dim]``."""
    return side.unflatten(-1, (-1, dim)).unflatten(1, (-1, CHUNK_TOKENS)).flatten(0, 1)


def turned_back(chunks: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Take mean and rotary angles off keys, and leave their spread.

    Args:
        chunks: float32 ``[chunks, tokens, heads, field.dim]``.
        field: A calibrated field.

    Returns:
        float32 of the same shape.
    """
    rows = []
    for chunk in chunks:
        statistics, _ = calibration.measure(chunk, field)
        spreads = statistics[:, field.dim :].float().abs()
        rows.append(calibration.to_relative(chunk, statistics, field) * spreads)
    return torch.stack(rows)


def error_shares(rows: torch.Tensor, errors: list[float]) -> tuple[float, ...]:
    """Compare codes of a head by their error; one width and a rotation have 1.

    Args:
        rows: float32 ``[chunks, tokens, heads, dim]``.
        errors: Squared errors with one bit fewer, as many and one more.

    Returns:
        Means over heads and chunks of: the spread taken out by its square root, as
        calibrated keys do; two widths for the halves of weak and strong channels, each
        rotated on its own; both; and the bound of any such code, the geometric mean of
        the channels' powers over their mean.
    """
    fewer, same, more = errors
    powers = rows.square().mean(dim=1).sort(dim=-1).values
    deviations = powers.sqrt()
    widths = torch.tensor([fewer, more]) / same
    halves = powers.unflatten(-1, (2, -1)).mean(dim=-1)
    even_halves = deviations.unflatten(-1, (2, -1)).mean(dim=-1).square()
    shares = (
        deviations.mean(dim=-1).square(),
        (halves * widths).mean(dim=-1),
        (even_halves * widths).mean(dim=-1),
        powers.log().mean(dim=-1).exp(),
    )
    means = powers.mean(dim=-1)
    return tuple(float((share / means).mean()) for share in shares)


def prediction_shares(rows: torch.Tensor) -> tuple[float, float]:
    """Compare what a token's predecessor does not tell of it with the whole.

    Args:
        rows: float32 ``[chunks, tokens, heads, dim]``.

    Returns:
        Power of the difference over power; and after the best factor of each channel,
        which no prediction from one token alone falls below.
    """
    earlier, later = rows[:, :-1], rows[:, 1:]
    powers = later.square().sum(dim=1)
    explained = (earlier * later).sum(dim=1).square() / earlier.square().sum(dim=1)
    differences = (later - earlier).square().sum()
    whole = powers.sum()
    return float(differences / whole), float(1 - explained.sum() / whole)
