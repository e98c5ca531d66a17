# SPDX-License-Identifier: Apache-2.0
"""The kernel that measures what the keys of each head have in common.

Grid: (heads, layers). A program reads the tokens of its head twice, block by block:
for the mean, then for the weights of the tokens and the spread. At last it copies
the keys that are farthest from the mean.
"""

# Third Party
import torch
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant import calibration
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_kept, gpu_tiles
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart

BLOCK_TOKENS = 32
NUM_WARPS = 4
NUM_STAGES = tl.constexpr(3)
"""Blocks that are loaded ahead."""

_MIN_SPREAD = tl.constexpr(calibration.MIN_SPREAD)
_SPREAD_EXPONENT = tl.constexpr(calibration.SPREAD_EXPONENT)
_MIN_SQUARE = tl.constexpr(calibration.MIN_SQUARE)


def measure(
    rows: torch.Tensor, part: SideTablePart, rotary: torch.Tensor | None
) -> None:
    """Do as ``calibration.measure``, ``farthest`` and ``kept_rows``, on the device.

    Args:
        rows: Keys ``[layers, tokens, heads, dim]`` with at least one token.
        part: Side table of the field, which is written.
        rotary: float32 ``[tokens, dim]``, cosines then sines of each token, where
            pairs may be turned.
    """
    num_layers, num_tokens, num_heads, dim = rows.shape
    measure_kernel[(num_heads, num_layers)](
        rows,
        part.statistics,
        part.positions,
        part.rows,
        rotary,
        rows.stride(0),
        rows.stride(1),
        rows.stride(2),
        num_tokens,
        num_heads,
        part.positions.shape[2],
        HALF=dim // 2,
        COLUMNS=triton.next_power_of_2(dim // 2),
        BLOCKS=triton.next_power_of_2(triton.cdiv(num_tokens, BLOCK_TOKENS)),
        BLOCK_TOKENS=BLOCK_TOKENS,
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )


@triton.jit
def measure_kernel(
    source_ptr,
    statistics_ptr,
    positions_ptr,
    kept_ptr,
    rotary_ptr,
    layer_stride,
    token_stride,
    head_stride,
    num_tokens,
    num_heads,
    num_kept,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """Measure the head of one program.

    Args:
        source_ptr: Keys of the first layer.
        statistics_ptr: bfloat16 ``[layers, heads, 4 * HALF]``.
        positions_ptr: int32 ``[layers, heads, num_kept]``.
        kept_ptr: bfloat16 ``[layers, heads, num_kept, 2 * HALF]``.
        rotary_ptr: float32 rotary table, or None.
        layer_stride, token_stride, head_stride: Elements from one to the next.
        num_tokens, num_heads, num_kept: Sizes.
        HALF: Pairs of dimensions.
        COLUMNS: ``HALF`` rounded up to a power of two.
        BLOCKS: Blocks of tokens, rounded up to a power of two.
        BLOCK_TOKENS: Tokens of a block.
    """
    head, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    source_ptr += layer * layer_stride + head * head_stride
    index = layer * num_heads + head
    zeros = tl.zeros((BLOCK_TOKENS, COLUMNS), tl.float32)
    sums = (zeros, zeros)
    turned_sums = (zeros, zeros)
    counts = tl.zeros((BLOCK_TOKENS,), tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_TOKENS, num_stages=NUM_STAGES):
        first, second, is_finite = _load_pairs(
            source_ptr, token_stride, start, num_tokens, BLOCK_TOKENS, HALF, COLUMNS
        )
        counts += is_finite.to(tl.float32)
        sums = (sums[0] + first, sums[1] + second)
        if rotary_ptr is not None:
            left, right = _turn_back(first, second, rotary_ptr, start, num_tokens, HALF)
            turned_sums = (turned_sums[0] + left, turned_sums[1] + right)
    mean = _column_sums(sums)
    is_turned = tl.zeros((COLUMNS,), tl.int1)
    if rotary_ptr is not None:
        turned = _column_sums(turned_sums)
        is_turned = _lengths(turned) > _lengths(mean)
        mean = _where(is_turned, turned, mean)
    count = tl.maximum(tl.sum(counts, axis=0), 1.0)
    mean = (mean[0] / count, mean[1] / count)
    shifts = (zeros, zeros)
    squares = (zeros, zeros)
    weights = tl.zeros((BLOCK_TOKENS,), tl.float32)
    block = tl.arange(0, BLOCKS)[:, None]
    distances = tl.full((BLOCKS, BLOCK_TOKENS), gpu_kept.NO_TOKEN, tl.float32)
    for start in tl.range(0, num_tokens, BLOCK_TOKENS, num_stages=NUM_STAGES):
        first, second, is_finite = _load_pairs(
            source_ptr, token_stride, start, num_tokens, BLOCK_TOKENS, HALF, COLUMNS
        )
        if rotary_ptr is not None:
            back = _turn_back(first, second, rotary_ptr, start, num_tokens, HALF)
            first, second = _where(is_turned[None, :], back, (first, second))
        energy = tl.sum(_lengths((first, second)), axis=1)
        first -= mean[0][None, :]
        second -= mean[1][None, :]
        length = tl.sum(_lengths((first, second)), axis=1)
        distance = tl.where(energy > 0.0, length / energy, 0.0)
        exists = start + tl.arange(0, BLOCK_TOKENS) < num_tokens
        is_here = (block == start // BLOCK_TOKENS) & exists[None, :]
        distances = tl.where(is_here, distance[None, :], distances)
        weight = tl.where(is_finite & (length >= _MIN_SQUARE), 1.0 / length, 0.0)
        weights += weight
        left, right = first * weight[:, None], second * weight[:, None]
        shifts = (shifts[0] + left, shifts[1] + right)
        squares = (squares[0] + left * first, squares[1] + right * second)
    total = tl.sum(weights, axis=0)
    total = tl.where(total > 0.0, total, 1.0)
    _store(
        statistics_ptr + index * (4 * HALF),
        mean,
        _column_sums(shifts),
        _column_sums(squares),
        total,
        is_turned,
        HALF,
    )
    places = positions_ptr + index * num_kept, kept_ptr + index * num_kept * (2 * HALF)
    distances = tl.reshape(distances, (BLOCKS * BLOCK_TOKENS,))
    gpu_kept.choose(distances, places[0], num_kept)
    tl.debug_barrier()
    gpu_kept.keep(source_ptr, token_stride, places, num_kept, 2 * HALF, 2 * COLUMNS)


@triton.jit
def _load_pairs(
    source_ptr,
    token_stride,
    start,
    num_tokens,
    BLOCK_TOKENS: tl.constexpr,
    HALF: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Load a block of tokens, both halves, and which of them are finite.

    Returns:
        Two float32 ``[tokens, columns]``, within float16, zero for tokens that are
        not finite or do not exist; int1 ``[tokens]``.
    """
    token, column = start + tl.arange(0, BLOCK_TOKENS), tl.arange(0, COLUMNS)
    ptrs = source_ptr + token.to(tl.int64)[:, None] * token_stride + column[None, :]
    exists = (token < num_tokens)[:, None] & (column < HALF)[None, :]
    first = tl.load(ptrs, exists, other=0).to(tl.float32)
    second = tl.load(ptrs + HALF, exists, other=0).to(tl.float32)
    # Zero times a number that is not finite is NaN.
    is_finite = tl.sum(first * 0.0 + second * 0.0, axis=1) == 0.0
    is_finite = is_finite & (token < num_tokens)
    first = tl.where(is_finite[:, None], gpu_tiles.to_half_range(first), 0.0)
    second = tl.where(is_finite[:, None], gpu_tiles.to_half_range(second), 0.0)
    return first, second, is_finite


@triton.jit
def _turn_back(first, second, rotary_ptr, start, num_tokens, HALF: tl.constexpr):
    """Turn both halves of a block of tokens back by their rotary angles."""
    token = start + tl.arange(0, first.shape[0])
    column = tl.arange(0, first.shape[1])
    ptrs = rotary_ptr + token[:, None] * (2 * HALF) + column[None, :]
    exists = (token < num_tokens)[:, None] & (column < HALF)[None, :]
    cosines = tl.load(ptrs, exists, other=0)
    sines = tl.load(ptrs + HALF, exists, other=0)
    return first * cosines + second * sines, second * cosines - first * sines


@triton.jit
def _store(statistics_ptr, mean, shifts, squares, total, is_turned, HALF: tl.constexpr):
    """Store mean and spread of both halves, ``[columns]`` each."""
    column = tl.arange(0, mean[0].shape[0])
    exists = column < HALF
    left, right = shifts[0] / total, shifts[1] / total
    first = tl.maximum(squares[0] / total - left * left, 0.0)
    second = tl.maximum(squares[1] / total - right * right, 0.0)
    average = tl.sum(tl.where(exists, first + second, 0.0), axis=0) / (2 * HALF)
    tl.store(statistics_ptr + column, (mean[0] + left).to(tl.bfloat16), exists)
    ptrs = statistics_ptr + HALF + column
    tl.store(ptrs, (mean[1] + right).to(tl.bfloat16), exists)
    spread = _spread(first, average)
    spread = tl.where(is_turned, -spread, spread).to(tl.bfloat16)
    tl.store(ptrs + HALF, spread, exists)
    tl.store(ptrs + 2 * HALF, _spread(second, average).to(tl.bfloat16), exists)


@triton.jit
def _spread(power, average):
    """Return spreads ``[columns]`` from mean squares and their average."""
    relative = power / tl.where(average > 0.0, average, 1.0)
    power = tl.exp2(tl.log2(relative) * _SPREAD_EXPONENT)
    spread = tl.maximum(power, _MIN_SPREAD)
    return tl.where(average > 0.0, spread, 1.0)


@triton.jit
def _column_sums(pair):
    """Return the sums over tokens of both halves."""
    return tl.sum(pair[0], axis=0), tl.sum(pair[1], axis=0)


@triton.jit
def _lengths(pair):
    """Return the squared lengths of pairs of dimensions."""
    return pair[0] * pair[0] + pair[1] * pair[1]


@triton.jit
def _where(condition, pair, other):
    """Choose both halves alike."""
    first = tl.where(condition, pair[0], other[0])
    return first, tl.where(condition, pair[1], other[1])
