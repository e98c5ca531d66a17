# SPDX-License-Identifier: Apache-2.0
"""What is checked: the package's codecs of keys, and its tables."""

# Standard
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import reference, tables
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.slot import (
    KeyField,
    SlotLayout,
    ValueField,
)


@dataclass(frozen=True)
class KeyCodec:
    """A codec of keys; all rows of a layer are rotated alike.

    Attributes:
        encode: Quantises float32 ``[layers, rows, dim]`` to uint8
            ``[layers, rows, field.num_bytes]``.
        decode: Restores what ``encode`` returned.
        centroid_norms: Norms ``[layers, rows, 1]`` of the centroid vectors, which
            norm correction divides by.
    """

    encode: Callable[[torch.Tensor, KeyField], torch.Tensor]
    decode: Callable[[torch.Tensor, KeyField], torch.Tensor]
    centroid_norms: Callable[[torch.Tensor, KeyField], torch.Tensor]

    def restore(self, keys: torch.Tensor, bits: int) -> torch.Tensor:
        """Encode and decode keys ``[layers, rows, dim]``."""
        field = KeyField(bits=bits, dim=keys.shape[-1])
        return self.decode(self.encode(keys, field), field)

    def restore_uncorrected(self, keys: torch.Tensor, bits: int) -> torch.Tensor:
        """Do the paper's Algorithm 1, which does not correct norms."""
        field = KeyField(bits=bits, dim=keys.shape[-1])
        stored = self.encode(keys, field)
        return self.decode(stored, field) * self.centroid_norms(stored, field)


def _reference_encode(keys: torch.Tensor, field: KeyField) -> torch.Tensor:
    layers = enumerate(keys)
    return torch.stack([reference.encode_field(x, field, i) for i, x in layers])


def _reference_decode(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
    layers = enumerate(stored)
    return torch.stack([reference.decode_field(x, field, i) for i, x in layers])


def _centroid_norms(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
    indices = reference.unpack(stored[..., : field.norm_offset], field.bits)
    return reference.row_norms(tables.centroids(field.dim, field.bits)[indices])


REFERENCE = KeyCodec(_reference_encode, _reference_decode, _centroid_norms)


def _slot(field: KeyField) -> SlotLayout:
    """The CPU kernels want a value beside each key."""
    return SlotLayout(key=field, value=ValueField(bits=4, dim=field.dim))


def _cpu_encode(keys: torch.Tensor, field: KeyField) -> torch.Tensor:
    slot, views = _slot(field), (keys[:, :, None], keys[:, :, None])
    slots = torch.empty(*keys.shape[:2], 1, slot.slot_bytes, dtype=torch.uint8)
    cpu.encode_layers(views, slots, slot, first_layer=0, threads=1)
    return slots[:, :, 0, : field.num_bytes]


def _cpu_decode(stored: torch.Tensor, field: KeyField) -> torch.Tensor:
    slot = _slot(field)
    slots = torch.zeros(*stored.shape[:2], 1, slot.slot_bytes, dtype=torch.uint8)
    slots[:, :, 0, : field.num_bytes] = stored
    keys, values = torch.empty(2, *stored.shape[:2], 1, field.dim)
    cpu.decode_layers(slots, (keys, values), slot, first_layer=0, threads=1)
    return keys[:, :, 0]


CPU_KERNELS = KeyCodec(_cpu_encode, _cpu_decode, _centroid_norms)


class Tables(NamedTuple):
    """Codebooks; both functions take dimensions and bits."""

    centroids: Callable[[int, int], torch.Tensor]
    boundaries: Callable[[int, int], torch.Tensor]


TABLES = Tables(tables.centroids, tables.boundaries)


@lru_cache(maxsize=32)
def unit_vectors(*shape: int, seed: int) -> torch.Tensor:
    """Draw uniform unit vectors along the last dimension; not to be written to."""
    numbers = np.random.RandomState(seed).standard_normal(shape)
    numbers /= np.linalg.norm(numbers, axis=-1, keepdims=True)
    return torch.from_numpy(numbers.astype(np.float32))
