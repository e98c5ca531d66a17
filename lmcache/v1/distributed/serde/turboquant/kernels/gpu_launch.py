# SPDX-License-Identifier: Apache-2.0
"""What the kernels are launched with: fixed for a plan, a dtype and a GPU.

The same on every GPU, and nothing is tuned at run time, so that bytes never
depend on a measurement. Needs no Triton.
"""

# Standard
from functools import lru_cache

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_constants, gpu_lookup
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_plan import (
    INDICES,
    Plan,
    codes_kind,
    field_places,
)
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

FLOAT8_CAPABILITY = (8, 9)
"""The first GPUs that convert to and from float8."""

TILE_ROWS = 16
"""Rows of a tile: those of one tensor core instruction."""

NUM_WARPS = 1
"""One warp holds whole rows, so that no step waits for another warp."""

MAX_WARP_DIM = 256
"""Widest vector of which a warp holds a tile."""

WIDE_NUM_WARPS = 4
"""Warps that share a tile of wider vectors."""

MAX_REGISTERS = 128
"""Registers a thread: sixteen warps then share a multiprocessor. On an H200 up to
five percent faster than what the compiler takes, at the cost of a few spills."""

MAX_ROW_BYTES = 256
"""Bytes of a row up to which that many registers do."""

Options = dict[str, object]

Coding = tuple[object, ...]
"""What a kernel knows of a field."""


@lru_cache(maxsize=64)
def encode_options(
    plan: Plan, dtype: torch.dtype, capability: tuple[int, int] | None
) -> Options:
    """Return the constants and launch options of ``encode_kernel``.

    Args:
        plan: What the launch works on.
        dtype: Element type of the source.
        capability: Compute capability of the GPU; None for the interpreter,
            which has neither PTX nor float8.
    """
    codings: list[Coding] = []
    for field, start in plan.fields:
        coding: Coding = (codes_kind(field), field.bits, *field_places(field, start))
        if codes_kind(field) == INDICES:
            factor = gpu_constants.index_factor(field.dim, field.bits)
            coding += (factor, gpu_constants.index_polynomial(field.bits))
            averaging: tuple[float, ...] = ()
            if isinstance(field, KeyField) and field.is_averaged:
                averaging = gpu_constants.centroid_polynomial(field.bits)
            coding += (averaging,)
        codings.append(coding)
    return _shared_options(plan, dtype, capability, codings) | {
        "ENERGY_UNIT": gpu_constants.energy_unit(plan.head_dim),
        "PTX": capability is not None,
    }


@lru_cache(maxsize=64)
def decode_options(
    plan: Plan, dtype: torch.dtype, capability: tuple[int, int] | None
) -> Options:
    """Return the constants and launch options of ``decode_kernel``.

    Args:
        plan: What the launch works on.
        dtype: Element type of the target.
        capability: As for :func:`encode_options`.
    """
    # One term is exact to the rounding of 16-bit floats.
    num_terms = 2 if dtype == torch.float32 else 1
    codings: list[Coding] = []
    lookups: list[str] = []
    for field, start in plan.fields:
        coding: Coding = (codes_kind(field), field.bits, *field_places(field, start))
        if codes_kind(field) == INDICES:
            terms = gpu_constants.centroid_terms(field.bits)[:num_terms]
            coding += (sum(terms, ()), len(lookups))
            lookups += [gpu_lookup.assembly(field.bits, term) for term in terms]
        codings.append(coding)
    return _shared_options(plan, dtype, capability, codings) | {
        "LOOKUPS": tuple(lookups) if capability else None,
        "PTX": capability is not None,
    }


def of_one_field(options: Options) -> Options:
    """Return the options of kernels that work on one relative field."""
    return {
        name: option
        for name, option in options.items()
        if name not in ("SECOND", "FLOAT8")
    }


def _shared_options(
    plan: Plan,
    dtype: torch.dtype,
    capability: tuple[int, int] | None,
    codings: list[Coding],
) -> Options:
    """Return what both kernels take."""
    head_dim = plan.head_dim
    fits = plan.relative_key is None and head_dim * dtype.itemsize <= MAX_ROW_BYTES
    return {
        "HEAD_DIM": head_dim,
        "SLOT_PAIRS": plan.slot_bytes // 2,
        "FIRST": codings[0],
        "SECOND": codings[1] if len(codings) > 1 else (),
        "WIDTH": gpu_constants.rotation_width(head_dim),
        "HARTLEY": gpu_constants.hartley_entries(head_dim),
        "TILE_ROWS": TILE_ROWS,
        "FLOAT8": capability is not None and capability >= FLOAT8_CAPABILITY,
        "num_warps": NUM_WARPS if head_dim <= MAX_WARP_DIM else WIDE_NUM_WARPS,
        "maxnreg": MAX_REGISTERS if fits else None,
        "enable_fp_fusion": False,
    }
