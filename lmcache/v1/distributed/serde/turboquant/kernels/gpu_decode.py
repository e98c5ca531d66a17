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
    SLOT_PAIRS: tl.constexpr,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    WIDTH: tl.constexpr,
    HARTLEY: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    LOOKUPS: tl.constexpr,
    PTX: tl.constexpr,
    FLOAT8: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Restore the rows of one program.

    Args:
        slots_ptr: uint8 slots of the first layer.
        target_ptr: First vectors of the first layer.
        masks_ptr: ``gpu_constants.sign_masks`` of the first layer on.
        matrix_ptr: ``gpu_constants.rotation_matrix``, float16.
        value_offset: Elements from a first vector to its second.
        layer_stride: Elements from one layer to the next.
        row_stride: Elements from one row to the next.
        slots_stride: 16-bit numbers from the slots of one layer to the next's.
        num_rows: Head vectors of a layer.
        HEAD_DIM, SLOT_PAIRS: Elements of a row, and 16-bit numbers of a slot.
        FIRST, SECOND: The fields: ``gpu_plan.codes_kind``, bits,
            ``gpu_plan.field_places``; of indices also
            ``gpu_constants.centroid_terms``, one after the other, and the place in
            ``LOOKUPS`` of the first. ``SECOND`` may be empty.
        WIDTH, HARTLEY: Results of ``gpu_constants.rotation_width`` and
            ``hartley_entries``.
        LOOKUPS: ``gpu_lookup.assembly`` of every term of both fields, or None.
        PTX, FLOAT8: Whether PTX is available, and conversion from float8.
        TILE_ROWS, IS_SHORT: Rows of a tile, and whether a layer has fewer.
    """
    layer = tl.program_id(1).to(tl.int64)
    start, row = gpu_tiles.tile_rows(num_rows, TILE_ROWS, IS_SHORT)
    first_slot = slots_ptr + 2 * (
        layer * slots_stride + start.to(tl.int64) * SLOT_PAIRS
    )
    slot_ptrs = first_slot + row * (2 * SLOT_PAIRS)
    first_row = target_ptr + layer * layer_stride + start.to(tl.int64) * row_stride
    row_ptrs = first_row + (row * row_stride)[:, None]
    rotation = masks_ptr + layer * HEAD_DIM, matrix_ptr
    ROTATION: tl.constexpr = (WIDTH, HARTLEY)
    if len(SECOND) > 0:
        other = _load_field(slot_ptrs, SECOND, HEAD_DIM, WIDTH)
    loaded = _load_field(slot_ptrs, FIRST, HEAD_DIM, WIDTH)
    _restore_field(loaded, row_ptrs, rotation, FIRST, ROTATION, LOOKUPS, FLOAT8, PTX)
    if len(SECOND) > 0:
        row_ptrs += value_offset
        _restore_field(
            other, row_ptrs, rotation, SECOND, ROTATION, LOOKUPS, FLOAT8, PTX
        )


@triton.jit
def _load_field(
    slot_ptrs, FIELD: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """Load a field: a tuple of chunks of codes, and the numbers after them.

    Returns:
        Chunks, uint8 ``[rows, width]`` of float8 and int32 ``[rows, WIDTH / 8]``
        words of others; a tuple of float32 ``[rows]``: the norm of indices, scale
        and zero point of levels.
    """
    pair_ptrs = slot_ptrs.to(tl.pointer_type(tl.uint16))
    after = pair_ptrs + FIELD[3]
    if FIELD[0] == gpu_tiles.FLOAT8:
        CHUNK: tl.constexpr = HEAD_DIM & -HEAD_DIM
        ptrs = (slot_ptrs + 2 * FIELD[2])[:, None]
        return gpu_tiles.load_chunks(ptrs, HEAD_DIM // CHUNK, CHUNK), ()
    else:
        BITS: tl.constexpr = FIELD[1]
        words = load_codes(pair_ptrs + FIELD[2], HEAD_DIM // WIDTH, WIDTH, BITS)
        first = gpu_tiles.load_half(after)
        if FIELD[0] == gpu_tiles.INDICES:
            return words, (first,)
        else:
            return words, (first, gpu_tiles.load_half(after + 1))


@triton.jit
def _restore_field(
    loaded,
    row_ptrs,
    rotation,
    FIELD: tl.constexpr,
    ROTATION: tl.constexpr,
    LOOKUPS: tl.constexpr,
    FLOAT8: tl.constexpr,
    PTX: tl.constexpr,
):
    """Restore rows from the result of :func:`_load_field`, and store them."""
    codes, halves = loaded
    if FIELD[0] == gpu_tiles.INDICES:
        _store_restored(
            codes, halves[0], row_ptrs, rotation, FIELD, ROTATION, LOOKUPS, PTX
        )
    elif FIELD[0] == gpu_tiles.LEVELS:
        BITS: tl.constexpr = FIELD[1]
        _restore_levels(codes, halves[0], halves[1], row_ptrs, BITS)
    else:
        _restore_float8(codes, row_ptrs, FLOAT8)


@triton.jit
def load_codes(
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
def restore_indices(
    words,
    norms,
    matrix,
    FIELD: tl.constexpr,
    ROTATION: tl.constexpr,
    LOOKUPS: tl.constexpr,
    PTX: tl.constexpr,
):
    """Restore rows from codebook indices and norms, but for their signs.

    Args:
        words: Result of :func:`load_codes`.
        norms: float32 ``[rows]``.
        matrix: ``gpu_rotation.load_matrix``.
        FIELD, LOOKUPS, PTX: As ``FIRST``, ``LOOKUPS`` and ``PTX`` of the kernel.
        ROTATION: ``WIDTH`` and ``HARTLEY``.

    Returns:
        Tuple of chunks, float32 ``[rows, WIDTH]``.
    """
    HARTLEY: tl.constexpr = ROTATION[1]
    BITS: tl.constexpr = FIELD[1]
    TERMS: tl.constexpr = FIELD[4]
    LOOKUP: tl.constexpr = FIELD[5]
    products = ()
    for index in tl.static_range(len(words)):
        product = None
        for term in tl.static_range(len(TERMS) // 2**BITS):
            found = gpu_codes.centroids(
                words[index], BITS, term, TERMS, LOOKUPS, LOOKUP
            )
            joined = gpu_codes.join_positions(found)
            chunk = gpu_rotation.to_lane_order(joined, gpu_rotation.JOINED_RUN)
            product = gpu_rotation.multiply(chunk, matrix, product, PTX)
        products = products + (product,)
    rotated = gpu_rotation.mix(products, HARTLEY)
    factors = norms * tl.rsqrt(gpu_rotation.sum_of_squares(rotated))
    rows = ()
    for index in tl.static_range(len(words)):
        chunk = rotated[index] * factors[:, None]
        chunk = gpu_rotation.from_lane_order(chunk, gpu_rotation.FRAGMENT_RUN)
        rows = rows + (chunk,)
    return rows


@triton.jit
def _store_restored(
    codes,
    norms,
    row_ptrs,
    rotation,
    FIELD: tl.constexpr,
    ROTATION: tl.constexpr,
    LOOKUPS: tl.constexpr,
    PTX: tl.constexpr,
):
    """Restore rows from codebook indices and norms, and store them."""
    WIDTH: tl.constexpr = ROTATION[0]
    DTYPE: tl.constexpr = row_ptrs.dtype.element_ty
    masks = gpu_rotation.load_masks(rotation[0], norms.shape[0], len(codes), WIDTH)
    matrix = gpu_rotation.load_matrix(rotation[1], WIDTH)
    rows = restore_indices(codes, norms, matrix, FIELD, ROTATION, LOOKUPS, PTX)
    for index in tl.static_range(len(rows)):
        # Half as many operations as on float32.
        chunk = gpu_rotation.flip_signs(rows[index].to(DTYPE), masks[index], PTX)
        gpu_tiles.store_chunk(row_ptrs, chunk, index * WIDTH)


@triton.jit
def _restore_levels(words, scale, zero, row_ptrs, BITS: tl.constexpr):
    """Restore rows from uniform levels."""
    DTYPE: tl.constexpr = row_ptrs.dtype.element_ty
    for index in tl.static_range(len(words)):
        parts = ()
        numbers = gpu_codes.unpack(words[index], BITS)
        for position in tl.static_range(gpu_codes.CODES_PER_WORD):
            part = gpu_values.restore(
                numbers[position], scale[:, None], zero[:, None], BITS
            )
            parts = parts + (part,)
        chunk = gpu_codes.join_positions(parts)
        chunk = gpu_values.saturated(chunk, scale, zero, DTYPE)
        gpu_tiles.store_chunk(row_ptrs, chunk, index * chunk.shape[1])


@triton.jit
def _restore_float8(codes, row_ptrs, FLOAT8: tl.constexpr):
    """Restore rows from float8."""
    for index in tl.static_range(len(codes)):
        chunk = gpu_float8.decode_e4m3(codes[index], FLOAT8)
        chunk = chunk.to(row_ptrs.dtype.element_ty)
        gpu_tiles.store_chunk(row_ptrs, chunk, index * chunk.shape[1])
