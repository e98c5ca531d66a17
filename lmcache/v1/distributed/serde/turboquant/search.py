# SPDX-License-Identifier: Apache-2.0
"""The specification of the searches, in the manner of ``reference``.

The decoder fixes what stored numbers mean, not how they are chosen. The least error
of each vector is not the aim: what counts is what attention makes of the errors of
all tokens together.

Keys: attention is a softmax over tokens, so an error that all keys of a head share
changes nothing, while one that differs between tokens does. Where keys have a large
common part, the plain rule's errors are nearly the same for all tokens; codes that
are closer to the keys one by one make them differ. So the error that the plain rule
makes on average over tokens is estimated first, and a search aims at the key plus
that error.

Values: attention adds values up, so errors that are independent of the values
average out, and errors in their direction do not. A range that is cut, or a scale
fitted by least squares, shortens every value. So the scale and zero point that are
stored are those which leave the mean of the value and its length along itself as
they are, whatever levels were chosen.
"""

# Standard
from functools import partial
from itertools import product

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, tables, values
from lmcache.v1.distributed.serde.turboquant.effort import Effort
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.packing import (
    FP16_MAX,
    saturated,
    to_half,
)
from lmcache.v1.distributed.serde.turboquant.rotation import (
    rotate,
    row_norms,
    row_sums,
)
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
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
    side_table: tuple[SideTablePart, ...] = (),
) -> None:
    """Quantise layers into slots.

    Args:
        views: As in ``reference.encode_layers``.
        slots: As in ``reference.encode_layers``.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        effort: What to try.
        side_table: As in ``reference.encode_layers``.
    """
    encode = partial(encode_field, effort=effort)
    reference.encode_layers(views, slots, slot, first_layer, side_table, encode)


def encode_field(
    rows: torch.Tensor,
    field: Field,
    layer: int,
    statistics: torch.Tensor | None = None,
    *,
    effort: Effort,
) -> torch.Tensor:
    """Quantise the vectors of a layer into one field of their slots.

    Args:
        rows: float32 vectors ``[tokens, heads, field.dim]``.
        field: Byte layout of the field.
        layer: Index of the layer within the tensor.
        statistics: As in ``reference.encode_field``; such fields are not searched.
        effort: What to try.

    Returns:
        uint8 tensor ``[tokens, heads, field.num_bytes]``.
    """
    if not effort.searches(field):
        return reference.encode_field(rows, field, layer, statistics)
    rows = saturated(rows, FP16_MAX)
    if isinstance(field, ValueField):
        return search_values(rows, field, effort)
    directions, norms = directions_of(rows, layer)
    error = common_error(directions, norms, field)
    shares = torch.where(norms > 0, 1 / norms, 0)
    coordinates = search_scale(directions + error * shares, field, effort)
    indices = reference.key_indices(coordinates, field)
    return reference.store_keys(indices, norms, field)


def directions_of(rows: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Split keys into rotated directions, zero for zero keys, and norms.

    Args:
        rows: float32 vectors ``[..., dim]``.
        layer: Index of the layer within the tensor.

    Returns:
        float32 tensors ``[..., dim]`` and ``[..., 1]``.
    """
    norms = row_norms(rows)
    return rotate(rows / torch.where(norms > 0, norms, 1), layer), norms


def sample_step(num_tokens: int) -> int:
    """Return the distance between the tokens of the sample."""
    return max(-(-num_tokens // SAMPLE_TOKENS), 1)


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
    step = sample_step(len(norms))
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
    return saturated(mean * kept, FP16_MAX)


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


def search_values(
    rows: torch.Tensor, field: ValueField, effort: Effort
) -> torch.Tensor:
    """Quantise values with the least squared error that leaves their length alone.

    Args:
        rows: float32 vectors ``[..., field.dim]``.
        field: Byte layout of the field.
        effort: The ranges to try.

    Returns:
        uint8 tensor ``[..., field.num_bytes]``.
    """
    lowest = rows.amin(dim=-1, keepdim=True)
    spans = rows.amax(dim=-1, keepdim=True) - lowest
    dim = torch.full_like(spans, field.dim)
    top_level = torch.full_like(spans, field.top_level)
    means = row_sums(rows) / dim
    energies = row_sums((rows - means) * (rows - means))
    best = values.range_of(rows, field)
    levels = values.value_levels(rows, *best, field)
    least = _squared_error(rows, levels, *best)
    for low, high in product(effort.value_trims, repeat=2):
        margins = spans * (low / 2**field.bits)
        steps = (spans - margins - spans * (high / 2**field.bits)) / top_level
        tried = values.value_levels(rows, steps, lowest + margins, field)
        products = row_sums(tried * (rows - means))
        scales = to_half(torch.where(products > 0, energies / products, 0))
        zeros = to_half(means - scales.float() * (row_sums(tried) / dim))
        errors = _squared_error(rows, tried, scales, zeros)
        is_better = errors < least
        least = torch.where(is_better, errors, least)
        levels = torch.where(is_better, tried, levels)
        best = (
            torch.where(is_better, scales, best[0]),
            torch.where(is_better, zeros, best[1]),
        )
    return values.store_values(levels, *best, field)


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


def _squared_error(
    rows: torch.Tensor, levels: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """Return the squared errors of what the decoder makes of values."""
    errors = rows - (levels * scales.float() + zeros.float())
    return row_sums(errors * errors)
