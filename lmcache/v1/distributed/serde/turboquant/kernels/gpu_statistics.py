# SPDX-License-Identifier: Apache-2.0
"""Device functions of keys relative to the statistics of their head.

``to_relative`` and ``from_relative`` are an inverse pair, and so are the two
directions of ``turn``. Statistics are ``mean | spread`` of bfloat16; a token's row of
the rotary table is ``cosines | sines`` of float32.
"""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_rotation, gpu_tiles


@triton.jit
def locate(statistics_ptr, rotary_ptr, row, num_heads, stride, HEAD_DIM: tl.constexpr):
    """Return where rows find their statistics and their rotary angles.

    Args:
        statistics_ptr: Statistics of the layer.
        rotary_ptr: Rotary table, or None.
        row: Rows, ``[rows]``: the heads of the first token, and so on.
        num_heads: Heads.
        stride: Numbers from the statistics of one head to the next's.
        HEAD_DIM: Elements of a row.

    Returns:
        Pointers ``[rows]`` to the statistics, and to the rotary table if there is
        one.
    """
    statistics_ptrs = statistics_ptr + (row % num_heads) * stride
    if rotary_ptr is None:
        return (statistics_ptrs,)
    else:
        return statistics_ptrs, rotary_ptr + (row // num_heads) * HEAD_DIM


@triton.jit
def to_relative(rows, common, PTX: tl.constexpr):
    """Express rows relative to their statistics where that makes the error less.

    Args:
        rows: Tuple of float32 chunks ``[rows, width]``.
        common: Result of :func:`locate`.
        PTX: Whether PTX instructions are available.

    Returns:
        Tuple of as many chunks, and int1 ``[rows]``: which rows are relative.
    """
    NUM_CHUNKS: tl.constexpr = len(rows)
    means, spreads = _load_statistics(common[0], NUM_CHUNKS, rows[0].shape[1])
    turned = rows
    if len(common) > 1:
        turned = turn(rows, spreads, common[1], -1)
    relative = ()
    for index in tl.static_range(NUM_CHUNKS):
        inverse = _reciprocal(tl.abs(spreads[index]), PTX)
        relative = relative + ((turned[index] - means[index]) * inverse,)
    gain = gpu_rotation.sum_of_squares(spreads) / (NUM_CHUNKS * rows[0].shape[1])
    error = gpu_rotation.sum_of_squares(relative) * gain
    is_relative = error < gpu_rotation.sum_of_squares(rows)
    chosen = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunk = tl.where(is_relative[:, None], relative[index], rows[index])
        chosen = chosen + (chunk,)
    return chosen, is_relative


@triton.jit
def from_relative(rows, is_relative, common):
    """Undo :func:`to_relative`.

    Args:
        rows: Tuple of float32 chunks ``[rows, width]``.
        is_relative: int1 ``[rows]``.
        common: As in :func:`to_relative`.

    Returns:
        Tuple of as many chunks.
    """
    NUM_CHUNKS: tl.constexpr = len(rows)
    means, spreads = _load_statistics(common[0], NUM_CHUNKS, rows[0].shape[1])
    absolute = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunk = tl.fma(rows[index], tl.abs(spreads[index]), means[index])
        absolute = absolute + (chunk,)
    if len(common) > 1:
        absolute = turn(absolute, spreads, common[1], 1)
    restored = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunk = tl.where(is_relative[:, None], absolute[index], rows[index])
        restored = restored + (chunk,)
    return restored


@triton.jit
def turn(rows, spreads, rotary_ptrs, DIRECTION: tl.constexpr):
    """Turn pairs of dimensions whose spread is negative by their rotary angle.

    Args:
        rows: Tuple of an even number of float32 chunks ``[rows, width]``.
        spreads: Tuple of as many chunks.
        rotary_ptrs: Pointers to the tokens' rows of the rotary table, ``[rows]``.
        DIRECTION: 1 turns forth, -1 back.

    Returns:
        Tuple of as many chunks.
    """
    WIDTH: tl.constexpr = rows[0].shape[1]
    HALF: tl.constexpr = len(rows) // 2
    columns = rotary_ptrs[:, None] + tl.arange(0, WIDTH)[None, :]
    left = ()
    right = ()
    for index in tl.static_range(HALF):
        first, second = rows[index], rows[index + HALF]
        is_turned = spreads[index] < 0.0
        cosines = tl.load(columns + index * WIDTH)
        sines = tl.load(columns + (index + HALF) * WIDTH) * DIRECTION
        forth = first * cosines - second * sines
        left = left + (tl.where(is_turned, forth, first),)
        forth = second * cosines + first * sines
        right = right + (tl.where(is_turned, forth, second),)
    return left + right


@triton.jit
def _load_statistics(statistics_ptrs, NUM_CHUNKS: tl.constexpr, WIDTH: tl.constexpr):
    """Load means and spreads, a tuple of float32 chunks ``[rows, WIDTH]`` of each."""
    ptrs = statistics_ptrs[:, None]
    spread_ptrs = ptrs + NUM_CHUNKS * WIDTH
    means = gpu_tiles.load_chunks(ptrs, NUM_CHUNKS, WIDTH)
    spreads = gpu_tiles.load_chunks(spread_ptrs, NUM_CHUNKS, WIDTH)
    return gpu_tiles.to_float32(means), gpu_tiles.to_float32(spreads)


@triton.jit
def _reciprocal(numbers, PTX: tl.constexpr):
    """Return ``1 / numbers``, to one unit in the last place."""
    if PTX:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;",
            "=f,f",
            [numbers],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    else:
        return 1.0 / numbers
