# SPDX-License-Identifier: Apache-2.0
"""The specification of the searches, in the manner of ``reference``.

The decoder fixes what stored numbers mean, not how they are chosen. For keys, a
search chooses a factor of the direction before its codes are looked up; for values,
the scale and zero point. Codes then follow by the plain rule.

What a search of keys aims at is not the key. Attention is a softmax over tokens: an
error that all keys of a head share moves all logits by the same amount and changes
nothing, while one that differs between tokens does. Where keys have a large common
part, the plain rule's errors are nearly the same for all tokens, and codes that are
closer to the keys one by one would be further from each other. So the error that
the plain rule makes on average over tokens is estimated first, and the search aims
at the key plus that error.
"""

# Standard
from functools import partial

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, tables
from lmcache.v1.distributed.serde.turboquant.effort import Effort
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.rotation import row_norms, row_sums
from lmcache.v1.distributed.serde.turboquant.slot import (
    Field,
    KeyField,
    SlotLayout,
    ValueField,
)

SAMPLE_TOKENS = 64
"""At most so many tokens, equally spaced, are asked for the common error."""


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    effort: Effort,
) -> None:
    """Quantise layers into slots.

    Args:
        views, slots, slot, first_layer: As in ``reference.encode_layers``.
        effort: What to try.
    """
    encode = partial(encode_field, effort=effort)
    reference.encode_layers(views, slots, slot, first_layer, encode)


def encode_field(
    rows: torch.Tensor, field: Field, layer: int, effort: Effort
) -> torch.Tensor:
    """Quantise the vectors of a layer into one field of their slots.

    Args:
        rows: float32 vectors ``[tokens, heads, field.dim]``.
        field: Byte layout of the field.
        layer: Index of the layer within the tensor.
        effort: What to try.

    Returns:
        uint8 tensor ``[tokens, heads, field.num_bytes]``.
    """
    if isinstance(field, ValueField) and effort.value_trims:
        rows = reference.saturated(rows, reference.FP16_MAX)
        scales, zeros = search_range(rows, field, effort)
        return reference.store_values(rows, scales, zeros, field)
    if isinstance(field, KeyField) and not field.is_fp8 and effort.key_scales:
        rows = reference.saturated(rows, reference.FP16_MAX)
        directions, norms = reference.directions_of(rows, layer)
        error = common_error(directions, norms, field)
        shares = torch.where(norms > 0, 1 / norms, 0)
        coordinates = search_scale(directions + error * shares, field, effort)
        return reference.store_keys(coordinates, norms, field)
    return reference.encode_field(rows, field, layer)


def common_error(
    directions: torch.Tensor, norms: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Estimate the error of the plain rule that the keys of a head share.

    That is the sample's mean error, less what chance alone would leave of it
    (James and Stein's estimator): nothing for keys without a common part.

    Args:
        directions: Rotated directions, float32 ``[tokens, heads, field.dim]``.
        norms: Norms, float32 ``[tokens, heads, 1]``; keys whose norm is not finite
            do not count.
        field: Byte layout of the field.

    Returns:
        Rotated errors, float32 ``[heads, field.dim]``.
    """
    step = max(-(-len(norms) // SAMPLE_TOKENS), 1)
    directions, norms = directions[::step].contiguous(), norms[::step]
    is_finite = norms.isfinite()
    restored = _nearest_centroids(directions, field)
    errors = restored / row_norms(restored) - directions
    errors = torch.where(is_finite, errors * norms, 0)
    total = torch.zeros_like(directions[:1].sum(dim=0))
    count = energy = torch.zeros_like(total[..., :1])
    for error, counts in zip(errors, is_finite.float(), strict=True):
        total, count = total + error, count + counts
        energy = energy + row_sums(error * error)
    mean = total / count.clamp(min=1)
    square = row_sums(mean * mean)
    chance = (energy / count.clamp(min=1) - square) / (count - 1).clamp(min=1)
    kept = (1 - chance / square).clamp(0, 1)
    kept = torch.where((square > 0) & (count > 1), kept, 0)
    return reference.saturated(mean * kept, reference.FP16_MAX)


def search_scale(
    targets: torch.Tensor, field: KeyField, effort: Effort
) -> torch.Tensor:
    """Scale vectors so that their codes restore their directions best.

    Args:
        targets: Rotated vectors of any length, float32 ``[..., field.dim]``.
        field: Byte layout of the field.
        effort: The factors to try.

    Returns:
        The coordinates to look codes up for, of the same shape.
    """
    lengths = row_norms(targets)
    units = targets / torch.where(lengths > 0, lengths, 1)
    best = torch.ones_like(lengths)
    cosines = _cosines(units, units, field)
    for factor in effort.key_scales:
        found = _cosines(units, units * factor, field)
        is_better = found > cosines
        cosines = torch.where(is_better, found, cosines)
        best = torch.where(is_better, factor, best)
    return units * best


def search_range(
    rows: torch.Tensor, field: ValueField, effort: Effort
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the scale and zero point of the least squared error.

    Args:
        rows: float32 vectors ``[..., field.dim]``.
        field: Byte layout of the field.
        effort: The ranges and the number of fits to try.

    Returns:
        Scales and zero points, float16 ``[..., 1]``.
    """
    lowest = rows.amin(dim=-1, keepdim=True)
    spans = rows.amax(dim=-1, keepdim=True) - lowest
    top_level = torch.full_like(spans, field.top_level)
    scales, zeros = reference.range_of(rows, field)
    best, least = (scales, zeros), torch.full_like(spans, torch.inf)
    for trim in (None, *effort.value_trims):
        if trim is not None:
            margins = spans * trim
            scales = _to_half((spans - margins * 2) / top_level)
            zeros = _to_half(lowest + margins)
        for is_last in (False,) * effort.value_fits + (True,):
            errors, fitted = _measure(rows, scales, zeros, field)
            is_better = errors < least
            least = torch.where(is_better, errors, least)
            both = zip((scales, zeros), best, strict=True)
            best = tuple(torch.where(is_better, *pair) for pair in both)
            if not is_last:
                scales, zeros = fitted
    return best


def _nearest_centroids(coordinates: torch.Tensor, field: KeyField) -> torch.Tensor:
    """Return the centroids of the codes of coordinates."""
    codebook = tables.centroids(field.dim, field.bits).to(coordinates.device)
    return codebook[reference.key_indices(coordinates, field)]


def _cosines(
    units: torch.Tensor, coordinates: torch.Tensor, field: KeyField
) -> torch.Tensor:
    """Return the cosines of directions and of what codes of coordinates restore."""
    restored = _nearest_centroids(coordinates, field)
    return row_sums(restored * units) / row_norms(restored)


def _measure(
    rows: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, field: ValueField
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Return the squared errors of values, and the numbers that fit their levels.

    The fit is a line through the errors over the levels: small numbers, however
    far from zero the values lie.
    """
    levels = reference.value_levels(rows, scales, zeros, field)
    steps, bases = scales.float(), zeros.float()
    errors = rows - (levels * steps + bases)
    dim = torch.full_like(steps, field.dim)
    sum_levels, sum_errors = row_sums(levels), row_sums(errors)
    variance = row_sums(levels * levels) - sum_levels * sum_levels / dim
    slope = row_sums(levels * errors) - sum_levels * sum_errors / dim
    slope = torch.where(variance > 0, slope / variance, 0)
    shift = (sum_errors - slope * sum_levels) / dim
    fitted = _to_half(steps + slope), _to_half(bases + shift)
    return row_sums(errors * errors), fitted


def _to_half(numbers: torch.Tensor) -> torch.Tensor:
    """Round to float16; finite numbers saturate."""
    return reference.saturated(numbers, reference.FP16_MAX).to(torch.float16)
