# SPDX-License-Identifier: Apache-2.0
"""The kernels of fields that are relative to statistics.

Grid: (tiles, layers), as in :mod:`gpu_encode` and :mod:`gpu_decode`. Whether a row is
relative is told by the sign of its norm.
"""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import (
    gpu_rotation,
    gpu_statistics,
    gpu_tiles,
)
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_decode import (
    load_codes,
    restore_indices,
)
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_encode import encode_indices

_SIGN_BIT = tl.constexpr(0x8000)


@triton.jit
def encode_relative_kernel(
    source_ptr,
    slots_ptr,
    masks_ptr,
    matrix_ptr,
    statistics_ptr,
    rotary_ptr,
    layer_stride,
    row_stride,
    slots_stride,
    statistics_layer_stride,
    statistics_stride,
    num_rows,
    num_heads,
    HEAD_DIM: tl.constexpr,
    SLOT_PAIRS: tl.constexpr,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    HARTLEY: tl.constexpr,
    ENERGY_UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PTX: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Encode the rows of one program.

    Args:
        statistics_ptr: bfloat16 statistics of the first layer.
        rotary_ptr: ``gpu_constants.rotary``, or None where no pair is turned.
        statistics_layer_stride: Numbers from the statistics of one layer to the
            next's.
        statistics_stride: The same of heads.
        num_heads: Heads, which are neighbouring rows.
        FIRST: The field.
        source_ptr, slots_ptr, masks_ptr, matrix_ptr, layer_stride, row_stride,
        slots_stride, num_rows, HEAD_DIM, SLOT_PAIRS, WIDTH, HARTLEY, ENERGY_UNIT,
        TILE_ROWS, PTX, IS_SHORT: As in ``gpu_encode.encode_kernel``.
    """
    NUM_CHUNKS: tl.constexpr = HEAD_DIM // WIDTH
    ROTATION: tl.constexpr = (WIDTH, HARTLEY, ENERGY_UNIT, NUM_CHUNKS)
    layer = tl.program_id(1).to(tl.int64)
    start, row = gpu_tiles.tile_rows(num_rows, TILE_ROWS, IS_SHORT)
    first_row = source_ptr + layer * layer_stride + start.to(tl.int64) * row_stride
    row_ptrs = first_row + (row * row_stride)[:, None]
    first_slot = layer * slots_stride + start.to(tl.int64) * SLOT_PAIRS
    pair_ptrs = slots_ptr.to(tl.pointer_type(tl.uint16)) + first_slot + row * SLOT_PAIRS
    statistics_ptr += layer * statistics_layer_stride
    common = gpu_statistics.locate(
        statistics_ptr, rotary_ptr, start + row, num_heads, statistics_stride, HEAD_DIM
    )
    rows = gpu_tiles.saturated(gpu_tiles.load_chunks(row_ptrs, NUM_CHUNKS, WIDTH))
    rows, is_relative = gpu_statistics.to_relative(rows, common, PTX)
    sign_bits = tl.where(is_relative, _SIGN_BIT, 0).to(tl.uint16)
    rotation = masks_ptr + layer * HEAD_DIM, matrix_ptr
    encode_indices(rows, sign_bits, pair_ptrs, rotation, FIRST, ROTATION, PTX)


@triton.jit
def decode_relative_kernel(
    slots_ptr,
    target_ptr,
    masks_ptr,
    matrix_ptr,
    statistics_ptr,
    rotary_ptr,
    layer_stride,
    row_stride,
    slots_stride,
    statistics_layer_stride,
    statistics_stride,
    num_rows,
    num_heads,
    HEAD_DIM: tl.constexpr,
    SLOT_PAIRS: tl.constexpr,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    HARTLEY: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    PTX: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Restore the rows of one program.

    Args:
        statistics_ptr, rotary_ptr, statistics_layer_stride, statistics_stride,
        num_heads: As in :func:`encode_relative_kernel`.
        FIRST: The field.
        slots_ptr, target_ptr, masks_ptr, matrix_ptr, layer_stride, row_stride,
        slots_stride, num_rows, HEAD_DIM, SLOT_PAIRS, WIDTH, HARTLEY, TILE_ROWS,
        LOOKUPS, PTX, IS_SHORT: As in ``gpu_decode.decode_kernel``.
    """
    NUM_CHUNKS: tl.constexpr = HEAD_DIM // WIDTH
    ROTATION: tl.constexpr = (WIDTH, HARTLEY)
    BITS: tl.constexpr = FIRST[1]
    DTYPE: tl.constexpr = target_ptr.dtype.element_ty
    layer = tl.program_id(1).to(tl.int64)
    start, row = gpu_tiles.tile_rows(num_rows, TILE_ROWS, IS_SHORT)
    first_slot = layer * slots_stride + start.to(tl.int64) * SLOT_PAIRS
    pair_ptrs = slots_ptr.to(tl.pointer_type(tl.uint16)) + first_slot + row * SLOT_PAIRS
    first_row = target_ptr + layer * layer_stride + start.to(tl.int64) * row_stride
    row_ptrs = first_row + (row * row_stride)[:, None]
    statistics_ptr += layer * statistics_layer_stride
    common = gpu_statistics.locate(
        statistics_ptr, rotary_ptr, start + row, num_heads, statistics_stride, HEAD_DIM
    )
    words = load_codes(pair_ptrs + FIRST[2], NUM_CHUNKS, WIDTH, BITS)
    norms = gpu_tiles.load_half(pair_ptrs + FIRST[3])
    masks_ptr += layer * HEAD_DIM
    masks = gpu_rotation.load_masks(masks_ptr, TILE_ROWS, NUM_CHUNKS, WIDTH)
    matrix = gpu_rotation.load_matrix(matrix_ptr, WIDTH)
    lengths = tl.abs(norms)
    rotated = restore_indices(words, lengths, matrix, FIRST, ROTATION, LOOKUPS, PTX)
    rows = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunk = gpu_rotation.flip_signs(rotated[index], masks[index], PTX)
        rows = rows + (chunk,)
    is_relative = norms.to(tl.int32, bitcast=True) < 0
    rows = gpu_statistics.from_relative(rows, is_relative, common)
    for index in tl.static_range(NUM_CHUNKS):
        chunk = rows[index]
        if DTYPE == tl.float16:
            chunk = gpu_tiles.to_half_range(chunk)
        gpu_tiles.store_chunk(row_ptrs, chunk.to(DTYPE), index * WIDTH)
