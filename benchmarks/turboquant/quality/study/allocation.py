# SPDX-License-Identifier: Apache-2.0
"""Bits by layer and side at the same total: one more where errors cost most."""

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.study.windows import Window


def costs(window: Window, restored: torch.Tensor) -> torch.Tensor:
    """Measure what it costs to restore one side of one layer alone.

    Args:
        window: What the model reads.
        restored: ``[2, layers, tokens, hidden]``.

    Returns:
        Divergences, ``[2, layers]``.
    """
    kv, caches = window.cache.kv, []
    places = torch.ones(kv.shape[:2]).nonzero().tolist()
    for side, layer in places:
        cache = kv.clone()
        cache[side, layer] = restored[side, layer]
        caches.append(cache)
    return torch.tensor(window.divergences(caches)).view(kv.shape[:2])


def allocate(prices: torch.Tensor, bits: int, errors: list[float]) -> torch.Tensor:
    """Move bits from where errors cost least to where they cost most.

    Args:
        prices: Divergence for an error in one layer and side alone, of any shape.
        bits: Bits on average, which the result keeps.
        errors: Squared errors with ``bits - 1``, ``bits`` and ``bits + 1`` bits.

    Returns:
        Bits of each, int64, of the shape of ``prices``: one fewer, as many or one more.
    """
    fewer, same, more = errors
    order = prices.flatten().argsort()
    ascending = prices.flatten()[order]
    pairs = len(order) // 2
    losses = ascending[:pairs] * (fewer - same)
    gains = ascending.flip(0)[:pairs] * (same - more)
    moved = int((gains > losses).sum())
    widths = torch.full_like(order, bits)
    widths[order[:moved]] -= 1
    widths[order[len(order) - moved :]] += 1
    return widths.view(prices.shape)


def mixed(restored: dict[int, torch.Tensor], widths: torch.Tensor) -> torch.Tensor:
    """Put a cache together from layers and sides of several widths.

    Args:
        restored: ``[2, layers, tokens, hidden]`` by bits.
        widths: Bits, ``[2, layers]``.

    Returns:
        ``[2, layers, tokens, hidden]``.
    """
    places = widths[..., None, None]
    mixture = torch.zeros_like(next(iter(restored.values())))
    for bits, kv in restored.items():
        mixture = torch.where(places == bits, kv, mixture)
    return mixture
