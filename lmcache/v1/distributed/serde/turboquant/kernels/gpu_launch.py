# SPDX-License-Identifier: Apache-2.0
"""What the kernels are launched with: fixed for a slot, a dtype and a GPU.

The same on every GPU, and nothing is tuned at run time, so that bytes never
depend on a measurement. Needs no Triton.
"""

# Standard
from functools import lru_cache

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_constants, gpu_lookup
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout, ValueField

FLOAT8_CAPABILITY = (8, 9)
"""The first GPUs that convert to and from float8."""

TILE_ROWS = 16
"""Rows of a tile: those of one tensor core instruction."""

NUM_WARPS = 1
"""One warp holds whole rows, so that no step waits for another warp."""

MAX_REGISTERS = 128
"""Registers a thread: sixteen warps then share a multiprocessor. On an H200 up to
five percent faster than what the compiler takes, at the cost of a few spills."""

MAX_ROW_BYTES = 256
"""Bytes of a row up to which that many registers do."""

Options = dict[str, object]


@lru_cache(maxsize=64)
def encode_options(
    slot: SlotLayout, dtype: torch.dtype, capability: tuple[int, int] | None
) -> Options:
    """Return the constants and launch options of ``encode_kernel``.

    Args:
        slot: Byte layout of a slot that ``gpu.supports``.
        dtype: Element type of the source.
        capability: Compute capability of the GPU; None for the interpreter,
            which has neither PTX nor float8.
    """
    bits, head_dim = slot.key.bits, slot.key.dim
    options = _shared_options(slot, dtype, capability) | {"PTX": capability is not None}
    if slot.key.is_fp8:
        return options | {"INDEXING": ()}
    return options | {
        "INDEXING": (
            gpu_constants.energy_unit(head_dim),
            gpu_constants.index_factor(head_dim, bits),
            gpu_constants.index_polynomial(bits),
        )
    }


@lru_cache(maxsize=64)
def decode_options(
    slot: SlotLayout, dtype: torch.dtype, capability: tuple[int, int] | None
) -> Options:
    """Return the constants and launch options of ``decode_kernel``.

    Args:
        slot: Byte layout of a slot that ``gpu.supports``.
        dtype: Element type of the target.
        capability: As for :func:`encode_options`.
    """
    options = _shared_options(slot, dtype, capability)
    if slot.key.is_fp8:
        return options | {"TERMS": (), "LOOKUPS": None}
    bits = slot.key.bits
    # One term is exact to the rounding of 16-bit floats.
    num_terms = 2 if dtype == torch.float32 else 1
    terms = gpu_constants.centroid_terms(bits)[:num_terms]
    lookups = tuple(gpu_lookup.assembly(bits, term) for term in terms)
    return options | {
        "TERMS": sum(terms, ()),
        "LOOKUPS": lookups if capability else None,
    }


def _shared_options(
    slot: SlotLayout, dtype: torch.dtype, capability: tuple[int, int] | None
) -> Options:
    """Return what both kernels take."""
    assert isinstance(slot.value, ValueField)
    head_dim = slot.key.dim
    fits = head_dim * dtype.itemsize <= MAX_ROW_BYTES
    return {
        "HEAD_DIM": head_dim,
        "KEY_BITS": slot.key.bits,
        "VALUE_BITS": slot.value.bits,
        "SLOT": gpu_constants.slot_offsets(slot),
        "WIDTH": gpu_constants.rotation_width(head_dim),
        "HARTLEY": gpu_constants.hartley_entries(head_dim),
        "TILE_ROWS": TILE_ROWS,
        "FLOAT8": capability is not None and capability >= FLOAT8_CAPABILITY,
        "num_warps": NUM_WARPS,
        "maxnreg": MAX_REGISTERS if fits else None,
        "enable_fp_fusion": False,
    }
