# SPDX-License-Identifier: Apache-2.0
"""The decoding kernel.

Grid: (tiles, layers). A program restores one tile of ``TILE_ROWS`` rows, and
requests all that it reads before it waits for any of it, as in
:mod:`gpu_encode`.
"""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import (
    gpu_codes,
    gpu_float8,
    gpu_rotation,
    gpu_tiles,
    gpu_values,
)


@triton.jit
def decode_kernel(
    slots_ptr,
    target_ptr,
    masks_ptr,
    matrix_ptr,
    value_offset,
    layer_stride,
    row_stride,
    slots_stride,
    num_rows,
    HEAD_DIM: tl.constexpr,
    KEY_BITS: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    SLOT: tl.constexpr,
    WIDTH: tl.constexpr,
    HARTLEY: tl.constexpr,
    TERMS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    FLOAT8: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Restore the rows of one program.

    Args:
        slots_ptr: uint8 slots of the first layer.
        target_ptr: Keys of the first layer.
        masks_ptr: ``gpu_constants.sign_masks`` of the first layer on.
        matrix_ptr: ``gpu_constants.rotation_matrix``, float16.
        value_offset: Elements from a key to its value.
        layer_stride: Elements from one layer to the next.
        row_stride: Elements from one row to the next.
        slots_stride: 16-bit numbers from the slots of one layer to the next's.
        num_rows: Head vectors of a layer.
        HEAD_DIM: Elements of a row.
        KEY_BITS: Bits a key code; 8 for float8 keys.
        VALUE_BITS: Bits a value code.
        SLOT, WIDTH, HARTLEY: Results of ``gpu_constants.slot_offsets``,
            ``rotation_width`` and ``hartley_entries``.
        TERMS: ``gpu_constants.centroid_terms``, one after the other.
        TILE_ROWS: Rows of a tile.
        LOOKUPS: ``gpu_lookup.assembly`` of each term, or None.
        FLOAT8: Whether the GPU converts from float8.
        IS_SHORT: Whether a layer has fewer rows than a tile.
    """
    NUM_CHUNKS: tl.constexpr = HEAD_DIM // WIDTH
    DTYPE: tl.constexpr = target_ptr.dtype.element_ty
    layer = tl.program_id(1).to(tl.int64)
    start, row = gpu_tiles.tile_rows(num_rows, TILE_ROWS, IS_SHORT)
    first_slot = layer * slots_stride + start.to(tl.int64) * SLOT[0]
    slot_ptrs = slots_ptr.to(tl.pointer_type(tl.uint16)) + first_slot + row * SLOT[0]
    first_key = target_ptr + layer * layer_stride + start.to(tl.int64) * row_stride
    key_ptrs = first_key + (row * row_stride)[:, None]
    value_ptrs = key_ptrs + value_offset
    levels = _load_codes(slot_ptrs + SLOT[2], NUM_CHUNKS, WIDTH, VALUE_BITS)
    scale = gpu_tiles.load_half(slot_ptrs + SLOT[3])
    zero = gpu_tiles.load_half(slot_ptrs + SLOT[3] + 1)
    if KEY_BITS < 8:
        words = _load_codes(slot_ptrs, NUM_CHUNKS, WIDTH, KEY_BITS)
        norms = gpu_tiles.load_half(slot_ptrs + SLOT[1])
        masks_ptr += layer * HEAD_DIM
        masks = gpu_rotation.load_masks(masks_ptr, TILE_ROWS, NUM_CHUNKS, WIDTH)
        matrix = gpu_rotation.load_matrix(matrix_ptr, WIDTH)
        keys = _restore_keys(words, norms, matrix, HARTLEY, KEY_BITS, TERMS, LOOKUPS)
        for index in tl.static_range(NUM_CHUNKS):
            chunk = keys[index].to(DTYPE)
            chunk = gpu_rotation.flip_signs(chunk, masks[index], LOOKUPS is not None)
            gpu_tiles.store_chunk(key_ptrs, chunk, index * WIDTH)
    else:
        byte_ptrs = slots_ptr + 2 * first_slot + row * (2 * SLOT[0])
        _restore_float8(byte_ptrs, key_ptrs, HEAD_DIM, FLOAT8)
    for index in tl.static_range(NUM_CHUNKS):
        chunk = _restore_values(levels[index], scale, zero, VALUE_BITS)
        chunk = gpu_values.saturated(chunk, scale, zero, DTYPE)
        gpu_tiles.store_chunk(value_ptrs, chunk, index * WIDTH)


@triton.jit
def _load_codes(
    pair_ptrs, NUM_CHUNKS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr
):
    """Load packed codes as a tuple of chunks, int32 ``[rows, WIDTH / 8]``."""
    COUNT: tl.constexpr = WIDTH // gpu_codes.CODES_PER_WORD
    words = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunk = gpu_tiles.load_words(pair_ptrs, index * COUNT, COUNT, BITS)
        words = words + (chunk,)
    return words


@triton.jit
def _restore_keys(
    words,
    norms,
    matrix,
    HARTLEY: tl.constexpr,
    BITS: tl.constexpr,
    TERMS: tl.constexpr,
    LOOKUPS: tl.constexpr,
):
    """Restore rows from codebook indices and norms, but for the signs."""
    products = ()
    for index in tl.static_range(len(words)):
        product = None
        for term in tl.static_range(len(TERMS) // 2**BITS):
            found = gpu_codes.centroids(words[index], BITS, term, TERMS, LOOKUPS)
            joined = gpu_codes.join_positions(found)
            chunk = gpu_rotation.to_lane_order(joined, gpu_rotation.JOINED_RUN)
            product = gpu_rotation.multiply(chunk, matrix, product, LOOKUPS is not None)
        products = products + (product,)
    rotated = gpu_rotation.mix(products, HARTLEY)
    factors = norms * tl.rsqrt(gpu_rotation.sum_of_squares(rotated))
    keys = ()
    for index in tl.static_range(len(words)):
        key = rotated[index] * factors[:, None]
        keys = keys + (gpu_rotation.from_lane_order(key, gpu_rotation.FRAGMENT_RUN),)
    return keys


@triton.jit
def _restore_values(words, scale, zero, BITS: tl.constexpr):
    """Restore a chunk of rows, float32 ``[rows, width]``, from uniform levels."""
    parts = ()
    numbers = gpu_codes.unpack(words, BITS)
    for position in tl.static_range(gpu_codes.CODES_PER_WORD):
        part = gpu_values.restore(
            numbers[position], scale[:, None], zero[:, None], BITS
        )
        parts = parts + (part,)
    return gpu_codes.join_positions(parts)


@triton.jit
def _restore_float8(byte_ptrs, key_ptrs, HEAD_DIM: tl.constexpr, FLOAT8: tl.constexpr):
    """Convert rows from float8."""
    WIDTH: tl.constexpr = HEAD_DIM & -HEAD_DIM
    rows = gpu_tiles.load_chunks(byte_ptrs[:, None], HEAD_DIM // WIDTH, WIDTH)
    for index in tl.static_range(len(rows)):
        numbers = gpu_float8.decode_e4m3(rows[index], FLOAT8)
        numbers = numbers.to(key_ptrs.dtype.element_ty)
        gpu_tiles.store_chunk(key_ptrs, numbers, index * WIDTH)
