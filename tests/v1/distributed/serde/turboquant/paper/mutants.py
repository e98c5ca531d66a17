# SPDX-License-Identifier: Apache-2.0
"""Broken codecs, each with one of the mistakes that have been made in public."""

# Standard
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantSerdeConfig,
    reference,
    tables,
)
from lmcache.v1.distributed.serde.turboquant.kernels import cpu_plan
from lmcache.v1.distributed.serde.turboquant.slot import KeyField
from tests.v1.distributed.serde.turboquant.paper.product_codec import PRODUCT
from tests.v1.distributed.serde.turboquant.paper.sizes import stored_bytes
from tests.v1.distributed.serde.turboquant.paper.subjects import (
    CPU_KERNELS,
    TABLES,
    KeyCodec,
    Tables,
)

Change = Callable[[torch.Tensor], torch.Tensor]


def _before(codec: KeyCodec, change: Change) -> KeyCodec:
    """Change the keys before they are encoded."""
    return replace(codec, encode=lambda keys, field: codec.encode(change(keys), field))


def _after(codec: KeyCodec, change: Change) -> KeyCodec:
    """Change the keys that were decoded."""
    return replace(codec, decode=lambda data, field: change(codec.decode(data, field)))


def _stored(
    codec: KeyCodec, change: Callable[[torch.Tensor, KeyField], torch.Tensor]
) -> KeyCodec:
    """Change the stored bytes."""

    def encode(keys: torch.Tensor, field: KeyField) -> torch.Tensor:
        return change(codec.encode(keys, field).clone(), field)

    return replace(codec, encode=encode)


def _layered(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Change:
    """Make a change of a layer's rows one of ``[layers, rows, dim]``."""
    return lambda keys: torch.stack([change(x, i) for i, x in enumerate(keys)])


def _signed(rows: torch.Tensor, layer: int) -> torch.Tensor:
    return rows * tables.rotation_signs(rows.shape[-1], layer)


def _swap_nibbles(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
    packed = stored[..., : field.norm_offset]
    packed.copy_((packed >> 4) | (packed << 4))
    return stored


def _next_index(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
    packed = stored[..., : field.norm_offset]
    indices = reference.unpack(packed, field.bits) + 1
    packed.copy_(reference.pack(indices.clamp(max=2**field.bits - 1), field.bits))
    return stored


def _unit_norms(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
    one = torch.ones(1, dtype=torch.float16).view(torch.uint8)
    stored[..., field.norm_offset :] = one
    return stored


def _without_correction(codec: KeyCodec) -> KeyCodec:
    def decode(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
        return codec.decode(stored, field) * codec.centroid_norms(stored, field)

    return replace(codec, decode=decode)


def _all_knowing(codec: KeyCodec) -> KeyCodec:
    """Return the very keys: a decoder that has seen more than the stored bits."""
    seen: list[torch.Tensor] = []

    def encode(keys: torch.Tensor, field: KeyField) -> torch.Tensor:
        seen[:] = [keys]
        return codec.encode(keys, field)

    return replace(codec, encode=encode, decode=lambda stored, field: seen[0])


NARROW_TABLES = Tables(
    lambda dim, bits: TABLES.centroids(dim, bits) * 0.61,
    lambda dim, bits: TABLES.boundaries(dim, bits) * 0.61,
)


def _uniform_boundaries(dim: int, bits: int) -> torch.Tensor:
    half = 2 ** (bits - 1)
    return torch.arange(1 - half, half) * 2.5 / half / dim**0.5


def _uniform_centroids(dim: int, bits: int) -> torch.Tensor:
    half = 2 ** (bits - 1)
    return (torch.arange(-half, half) + 0.5) * 2.5 / half / dim**0.5


UNIFORM_TABLES = Tables(_uniform_centroids, _uniform_boundaries)
SHRUNK_CENTROIDS = TABLES._replace(
    centroids=lambda dim, bits: TABLES.centroids(dim, bits) / math.sqrt(2)
)


@contextmanager
def _replaced(wrong: Tables) -> Iterator[None]:
    """Let the package use other tables for a while."""
    cpu_plan.make_constants.cache_clear()
    try:
        with mock.patch.multiple(tables, **wrong._asdict()):
            yield
    finally:
        cpu_plan.make_constants.cache_clear()


def _with_tables(codec: KeyCodec, wrong: Tables) -> KeyCodec:
    """Let a codec use other tables."""

    def wrapped(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(rows: torch.Tensor, field: KeyField) -> torch.Tensor:
            with _replaced(wrong):
                return function(rows, field)

        return call

    return KeyCodec(
        wrapped(codec.encode), wrapped(codec.decode), wrapped(codec.centroid_norms)
    )


_SIGNED = _layered(_signed)

KEY_MUTANTS: dict[str, KeyCodec] = {
    "no rotation": _after(
        _before(CPU_KERNELS, _layered(reference.unrotate)),
        _layered(reference.rotate),
    ),
    "no random signs": _after(_before(CPU_KERNELS, _SIGNED), _SIGNED),
    "signs of layer 0": _after(CPU_KERNELS, lambda x: _SIGNED(x) * _signed(x[0], 0)),
    "halved": _after(CPU_KERNELS, lambda x: x / 2),
    "times sqrt 2": _after(CPU_KERNELS, lambda x: x * math.sqrt(2)),
    "zeros": _after(CPU_KERNELS, torch.zeros_like),
    "swapped nibbles": _stored(CPU_KERNELS, _swap_nibbles),
    "next index": _stored(CPU_KERNELS, _next_index),
    "norm lost": _stored(CPU_KERNELS, _unit_norms),
    "norm not corrected": _without_correction(CPU_KERNELS),
    "narrow table": _with_tables(CPU_KERNELS, NARROW_TABLES),
    "uniform table": _with_tables(CPU_KERNELS, UNIFORM_TABLES),
    "all-knowing": _all_knowing(CPU_KERNELS),
}
"""Codecs of keys, each broken in the one way of its name."""

TABLE_MUTANTS: dict[str, Tables] = {
    "narrow table": NARROW_TABLES,
    "uniform table": UNIFORM_TABLES,
    "centroids over sqrt 2": SHRUNK_CENTROIDS,
}

PRODUCT_MUTANTS = {
    "QJL dropped": replace(PRODUCT, weight=0.0),
    "QJL negated": replace(PRODUCT, weight=-PRODUCT.weight),
    "QJL over pi / 2": replace(PRODUCT, weight=math.sqrt(2 / math.pi)),
    "first part zero": replace(PRODUCT, base=KEY_MUTANTS["zeros"]),
    "first part next index": replace(PRODUCT, base=KEY_MUTANTS["next index"]),
}


def _without_numbers(tensor: torch.Tensor, config: TurboQuantSerdeConfig) -> int:
    """Count the packed indices alone."""
    bits = config.key_quant_bits + config.value_quant_bits
    return tensor.numel() // 2 * bits // 8


def _keys_alone(tensor: torch.Tensor, config: TurboQuantSerdeConfig) -> int:
    """Count half of what is stored."""
    return stored_bytes(tensor, config) // 2


SIZE_MUTANTS = {"indices alone": _without_numbers, "keys alone": _keys_alone}
