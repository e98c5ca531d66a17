# SPDX-License-Identifier: Apache-2.0
"""Rows of the study's tables."""

# Standard
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.conditions import biased
from benchmarks.turboquant.quality.study import spreads
from benchmarks.turboquant.quality.study.allocation import allocate, costs, mixed
from benchmarks.turboquant.quality.study.codes import (
    Code,
    distortion,
    lloyd_max,
    searched,
    trellis,
)
from benchmarks.turboquant.quality.study.simulation import (
    float8,
    plain_preset,
    restored,
)
from benchmarks.turboquant.quality.study.windows import Window
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

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

RIVALS: tuple[tuple[str, str, Callable[[torch.Tensor, int], torch.Tensor]], ...] = (
    ("fp8", "8", float8),
    ("`turboquant_4bit_nc`", "4", partial(plain_preset, 4)),
    ("`turboquant_3bit_nc`", "3", partial(plain_preset, 3)),
)

STRENGTHS = (20,)
NUM_BIASED = 2
"""Of the key biases, and windows that are measured under them."""


def errors(*_: object) -> Iterator[list[str]]:
    """Yield bits, Lloyd-Max's error on Gaussian rows, and the shares others leave."""
    for bits in BITS:
        plain = distortion(lloyd_max(bits))
        codes = [CODES["Lloyd-Max, searched"](bits)]
        codes += [trellis(bits, states) for states in (4, 8, 64, 256)]
        codes += [CODES["trellis, searched"](bits)]
        shares = [*map(distortion, codes), 4.0**-bits]
        yield [f"{bits}", f"{plain:.5f}", *(f"{x / plain:.2f}" for x in shares)]


def codes(windows: Sequence[Window], field: KeyField) -> Iterator[list[str]]:
    """Yield divergences of each code: of keys, values, both, and both allocated.

    Bits are allocated by the costs that the other windows show.

    Args:
        windows: What the model reads.
        field: A calibrated field.

    Yields:
        Cells of a row; first those of what the presets are compared with.
    """
    for name, width, restore in RIVALS:
        whole = [
            window.divergences([restore(window.cache.kv, field.dim)])[0]
            for window in windows
        ]
        yield [width, name, "", "", *_numbers(whole), "", ""]
    prices = _prices(windows, field)
    for name, make in CODES.items():
        widths = range(min(BITS) - 1, max(BITS) + 2)
        left = {bits: distortion(make(bits)) for bits in widths}
        caches = [
            {bits: restored(x.cache.kv, field, make(bits)) for bits in widths}
            for x in windows
        ]
        for bits in BITS:
            near = [left[bits + change] for change in (-1, 0, 1)]
            found = []
            for at, window in enumerate(windows):
                others = torch.cat([prices[:at], prices[at + 1 :]])
                allocated = allocate(others.mean(dim=0), bits, near)
                moved = mixed(caches[at], allocated)
                found.append(_halves_and_whole(window, caches[at][bits], moved))
            keys, values, both, better = zip(*found, strict=True)
            sides = [f"{fmean(side):.5f}" for side in (keys, values)]
            yield [f"{bits}", name, *sides, *_numbers(both), *_numbers(better)]


def layers(windows: Sequence[Window], field: KeyField) -> Iterator[list[str]]:
    """Yield by layer what errors of two bits cost there alone: of keys, of values.

    Args:
        windows: What the model reads.
        field: A calibrated field.

    Yields:
        Cells of a row.
    """
    keys, values = _prices(windows, field).permute(1, 2, 0).tolist()
    for layer, found in enumerate(zip(keys, values, strict=True)):
        yield [f"{layer}", *_numbers(found[0]), *_numbers(found[1])]


def biases(windows: Sequence[Window], field: KeyField) -> Iterator[list[str]]:
    """Yield divergences of each code where the keys that are stored have a bias.

    Args:
        windows: What the model reads; the first sets the size of the biases.
        field: A calibrated field.

    Yields:
        Cells of a row.
    """
    keys = windows[0].cache.kv[0]
    for name, make in CODES.items():
        for bits in BITS:
            cells = []
            for condition in biased(STRENGTHS):
                found = []
                for window in windows[:NUM_BIASED]:
                    bias = torch.zeros_like(window.cache.kv[:, :, :1])
                    bias[0] = condition.bias(keys, field.dim)
                    stored = (window.cache.kv + bias).half().float()
                    cache = restored(stored, field, make(bits)) - bias
                    found += window.divergences([cache])
                cells += _numbers(found)
            yield [f"{bits}", name, *cells]


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


def _prices(windows: Sequence[Window], field: KeyField) -> torch.Tensor:
    """Return costs of layers and sides, ``[windows, 2, layers]``."""
    coarse = lloyd_max(COST_BITS)
    return torch.stack([costs(x, restored(x.cache.kv, field, coarse)) for x in windows])


def _halves_and_whole(
    window: Window, kv: torch.Tensor, allocated: torch.Tensor
) -> list[float]:
    """Return divergences of keys alone, values alone, both, and both allocated."""
    keys = torch.stack([kv[0], window.cache.kv[1]])
    values = torch.stack([window.cache.kv[0], kv[1]])
    return window.divergences([keys, values, kv, allocated])


def _numbers(found: Sequence[float]) -> list[str]:
    """Return the mean, and the numbers it is of."""
    return [f"{fmean(found):.5f}", " ".join(f"{x:.5f}" for x in found)]
