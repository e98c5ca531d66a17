# SPDX-License-Identifier: Apache-2.0
"""Keys that are kept whole: choosing, copying and putting them back."""

# Third Party
import torch
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_tiles
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart

NO_TOKEN = tl.constexpr(-1.0)
"""Distance of a token that does not exist."""

_CHOSEN = tl.constexpr(-2.0)
"""Distance of a token that was chosen."""


def put_back(rows: torch.Tensor, part: SideTablePart) -> None:
    """Put the kept keys where they were, as ``calibration.put_back`` does.

    Args:
        rows: Keys ``[layers, tokens, heads, dim]``.
        part: What was kept of them.
    """
    num_layers, num_tokens, num_heads, dim = rows.shape
    put_back_kernel[(num_heads, num_layers)](
        part.positions,
        part.rows,
        rows,
        rows.stride(0),
        rows.stride(1),
        rows.stride(2),
        num_tokens,
        num_heads,
        part.positions.shape[2],
        DIM=dim,
        COLUMNS=triton.next_power_of_2(dim),
        num_warps=1,
    )


@triton.jit
def put_back_kernel(
    positions_ptr,
    kept_ptr,
    target_ptr,
    layer_stride,
    token_stride,
    head_stride,
    num_tokens,
    num_heads,
    num_kept,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Put back the keys of one head of one layer; grid: (heads, layers).

    Args:
        positions_ptr: int32 ``[layers, heads, num_kept]``.
        kept_ptr: bfloat16 ``[layers, heads, num_kept, DIM]``.
        target_ptr: Keys of the first layer.
        layer_stride, token_stride, head_stride: Elements from one to the next.
        num_tokens, num_heads, num_kept: Sizes.
        DIM: Dimensions of a key.
        COLUMNS: ``DIM`` rounded up to a power of two.
    """
    head, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    target_ptr += layer * layer_stride + head * head_stride
    first = (layer * num_heads + head) * num_kept
    column = tl.arange(0, COLUMNS)
    for place in range(num_kept):
        position = tl.load(positions_ptr + first + place)
        token = tl.minimum(tl.maximum(position, 0), num_tokens - 1).to(tl.int64)
        key = tl.load(kept_ptr + (first + place) * DIM + column, column < DIM, other=0)
        key = key.to(tl.float32)
        if target_ptr.dtype.element_ty == tl.float16:
            key = gpu_tiles.to_half_range(key)
        key = key.to(target_ptr.dtype.element_ty)
        tl.store(target_ptr + token * token_stride + column, key, column < DIM)


@triton.jit
def choose(distances, positions_ptr, num_kept):
    """Write the positions of the largest distances, ascending.

    Of equal distances the earlier one wins.

    Args:
        distances: float32 ``[tokens]``, none below zero but ``NO_TOKEN``.
        positions_ptr: int32 ``[num_kept]``.
        num_kept: Positions to write.
    """
    token = tl.arange(0, distances.shape[0])
    for _place in range(num_kept):
        best = tl.argmax(distances, axis=0)
        distances = tl.where(token == best, _CHOSEN, distances)
    is_chosen = distances == _CHOSEN
    rank = tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
    tl.store(positions_ptr + rank, token, is_chosen)


@triton.jit
def keep(
    source_ptr,
    token_stride,
    places,
    num_kept,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Copy the keys at the positions that :func:`choose` wrote.

    Args:
        source_ptr: Keys of the head.
        token_stride: Elements from one token to the next.
        places: Pointers to the positions, int32 ``[num_kept]``, and to where the keys
            go, bfloat16 ``[num_kept, DIM]``.
        num_kept: Keys to copy.
        DIM: Dimensions of a key.
        COLUMNS: ``DIM`` rounded up to a power of two.
    """
    column = tl.arange(0, COLUMNS)
    for place in range(num_kept):
        token = tl.load(places[0] + place).to(tl.int64)
        ptrs = source_ptr + token * token_stride + column
        key = gpu_tiles.to_half_range(
            tl.load(ptrs, column < DIM, other=0).to(tl.float32)
        )
        tl.store(places[1] + place * DIM + column, key.to(tl.bfloat16), column < DIM)
