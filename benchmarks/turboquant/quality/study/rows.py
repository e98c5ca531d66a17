# SPDX-License-Identifier: Apache-2.0
"""Rows of the study's tables."""

# Standard
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.study import spreads
from benchmarks.turboquant.quality.study.allocation import allocate, costs, mixed
from benchmarks.turboquant.quality.study.codes import (
    Code,
    distortion,
    lloyd_max,
    searched,
    trellis,
)
from benchmarks.turboquant.quality.study.simulation import restored
from benchmarks.turboquant.quality.study.windows import Window
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.reference import (
    FP8_DTYPE,
    decode_field,
    encode_field,
)
from lmcache.v1.distributed.serde.turboquant.slot import Field, KeyField, ValueField

BITS = (4, 3, 2)
COST_BITS = 2
"""Errors large enough to be seen where one layer and side alone has them."""

CODES: dict[str, Callable[[int], Code]] = {
    "Lloyd-Max": lloyd_max,
    "Lloyd-Max, searched": lambda bits: searched(
        lloyd_max(bits), EFFORTS["best"].key_scales
    ),
    "trellis": lambda bits: trellis(bits, 8),
    "trellis, searched": lambda bits: searched(
        trellis(bits, 8), EFFORTS["balanced"].key_scales
    ),
}


def errors_by_states() -> Iterator[list[str]]:
    """Yield bits, Lloyd-Max's error, and its share that other codes and 4**-b leave."""
    for bits in BITS:
        plain = distortion(lloyd_max(bits))
        codes = [CODES["Lloyd-Max, searched"](bits)]
        codes += [trellis(bits, states) for states in (4, 8, 64, 256)]
        codes += [CODES["trellis, searched"](bits)]
        shares = [*map(distortion, codes), 4.0**-bits]
        yield [f"{bits}", f"{plain:.5f}", *(f"{x / plain:.2f}" for x in shares)]


def rivals(windows: Sequence[Window]) -> Iterator[list[str]]:
    """Yield the divergences of fp8 and of the plain presets."""
    found = [x.divergences([x.cache.kv.to(FP8_DTYPE).float()])[0] for x in windows]
    yield ["fp8", *_numbers(found)]
    for bits in (4, 3):
        fields = [
            kind(bits=bits, dim=windows[0].cache.head_dim)
            for kind in (KeyField, ValueField)
        ]
        found = [x.divergences([_plain(x, fields)])[0] for x in windows]
        yield [f"`turboquant_{bits}bit_nc`", *_numbers(found)]


def codes(windows: Sequence[Window], field: KeyField) -> Iterator[list[str]]:
    """Yield divergences of each code: of keys, values, both, and both allocated.

    Bits are allocated by the costs that the other windows show.

    Args:
        windows: What the model reads.
        field: A calibrated field.

    Yields:
        Cells of a row.
    """
    coarse = lloyd_max(COST_BITS)
    prices = [costs(x, restored(x.cache.kv, field, coarse)) for x in windows]
    for name, make in CODES.items():
        widths = range(min(BITS) - 1, max(BITS) + 2)
        errors = {bits: distortion(make(bits)) for bits in widths}
        caches = [
            {bits: restored(x.cache.kv, field, make(bits)) for bits in widths}
            for x in windows
        ]
        for bits in BITS:
            near = [errors[bits + change] for change in (-1, 0, 1)]
            found = []
            for index, window in enumerate(windows):
                others = [x for at, x in enumerate(prices) if at != index]
                allocated = allocate(torch.stack(others).mean(dim=0), bits, near)
                both, exact = caches[index][bits], window.cache.kv
                tried = [
                    torch.stack([both[0], exact[1]]),
                    torch.stack([exact[0], both[1]]),
                    both,
                    mixed(caches[index], allocated),
                ]
                found.append(window.divergences(tried))
            keys, values, plain, moved = zip(*found, strict=True)
            sides = [f"{fmean(side):.5f}" for side in (keys, values)]
            yield [f"{bits}", name, *sides, *_numbers(plain), *_numbers(moved)]


def heads(windows: Sequence[Window], field: KeyField) -> Iterator[list[str]]:
    """Yield what is known of a head's channels and of a token's predecessor, by layer.

    Args:
        windows: What the model reads.
        field: A calibrated field.

    Yields:
        Layer, then :func:`spreads.error_shares` at 3 bits and
        :func:`spreads.prediction_shares`, of keys and then of values.
    """
    errors = [distortion(lloyd_max(bits)) for bits in (2, 3, 4)]
    kv = torch.stack([x.cache.kv for x in windows], dim=2)
    for layer in range(kv.shape[1]):
        keys, values = (spreads.in_chunks(side[layer], field.dim) for side in kv)
        numbers: list[float] = []
        for chunks in (spreads.turned_back(keys, field), values):
            numbers += spreads.error_shares(chunks, errors)
            numbers += spreads.prediction_shares(chunks)
        yield [f"{layer}", *(f"{number:.2f}" for number in numbers)]


def _plain(window: Window, fields: Sequence[Field]) -> torch.Tensor:
    """Send a cache through fields that are not calibrated."""
    sides = []
    for side, field in zip(window.cache.kv, fields, strict=True):
        layers = side.unflatten(-1, (-1, field.dim))
        coded = [encode_field(rows, field, at) for at, rows in enumerate(layers)]
        rows = [decode_field(stored, field, at) for at, stored in enumerate(coded)]
        sides.append(torch.stack(rows).flatten(-2))
    return torch.stack(sides)


def _numbers(found: Sequence[float]) -> list[str]:
    """Return the mean, and the numbers it is of."""
    return [f"{fmean(found):.5f}", " ".join(f"{x:.5f}" for x in found)]
