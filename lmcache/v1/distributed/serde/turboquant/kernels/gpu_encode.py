# SPDX-License-Identifier: Apache-2.0
"""The encoding kernel.

Grid: (tiles, layers). A program encodes one tile of ``TILE_ROWS`` rows: one or two
vectors each, ``[rows, head_dim]``, to fields of slots, ``[rows, slot_bytes]``. It
requests all that it reads before it waits for any of it.

Hardly any tile holds numbers beyond float16. So every tile is rotated as if it did
not, and one that does is encoded again with the clamps that it needs.
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
def encode_kernel(
    source_ptr,
    slots_ptr,
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
    ENERGY_UNIT: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PTX: tl.constexpr,
    FLOAT8: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Encode the rows of one program.

    Args:
        source_ptr: First vectors of the first layer.
        slots_ptr: uint8 slots of the first layer.
        masks_ptr: ``gpu_constants.sign_masks`` of the first layer on.
        matrix_ptr: ``gpu_constants.rotation_matrix``.
        value_offset: Elements from a first vector to its second.
        layer_stride: Elements from one layer to the next.
        row_stride: Elements from one row to the next.
        slots_stride: 16-bit numbers from the slots of one layer to the next's.
        num_rows: Head vectors of a layer.
        HEAD_DIM: Elements of a row.
        SLOT_PAIRS: 16-bit numbers of a slot.
        FIRST, SECOND: The fields: ``gpu_plan.codes_kind``, bits,
            ``gpu_plan.field_places``; of indices also ``gpu_constants.index_factor``
            and ``index_polynomial``, and where vectors are averaged
            ``centroid_polynomial``. ``SECOND`` may be empty.
        WIDTH, HARTLEY, ENERGY_UNIT: Results of ``gpu_constants.rotation_width``,
            ``hartley_entries`` and ``energy_unit``.
        TILE_ROWS: Rows of a tile.
        PTX: Whether PTX instructions are available.
        FLOAT8: Whether the GPU converts to float8.
        IS_SHORT: Whether a layer has fewer rows than a tile.
    """
    layer = tl.program_id(1).to(tl.int64)
    start, row = gpu_tiles.tile_rows(num_rows, TILE_ROWS, IS_SHORT)
    first_row = source_ptr + layer * layer_stride + start.to(tl.int64) * row_stride
    row_ptrs = first_row + (row * row_stride)[:, None]
    first_slot = slots_ptr + 2 * (
        layer * slots_stride + start.to(tl.int64) * SLOT_PAIRS
    )
    slot_ptrs = first_slot + row * (2 * SLOT_PAIRS)
    rotation = masks_ptr + layer * HEAD_DIM, matrix_ptr
    first = _load_rows(row_ptrs, FIRST[0], HEAD_DIM, WIDTH)
    if len(SECOND) > 0:
        second = _load_rows(row_ptrs + value_offset, SECOND[0], HEAD_DIM, WIDTH)
    ROTATION: tl.constexpr = (WIDTH, HARTLEY, ENERGY_UNIT, HEAD_DIM // WIDTH)
    energy = _encode_field(first, slot_ptrs, rotation, FIRST, ROTATION, FLOAT8, PTX)
    if len(SECOND) > 0:
        other = _encode_field(
            second, slot_ptrs, rotation, SECOND, ROTATION, FLOAT8, PTX
        )
    if source_ptr.dtype.element_ty != tl.float16:
        if FIRST[0] == gpu_tiles.INDICES:
            _encode_large(row_ptrs, energy, slot_ptrs, rotation, FIRST, ROTATION, PTX)
        if len(SECOND) > 0 and SECOND[0] == gpu_tiles.INDICES:
            row_ptrs += value_offset
            _encode_large(row_ptrs, other, slot_ptrs, rotation, SECOND, ROTATION, PTX)


@triton.jit
def _load_rows(
    row_ptrs, KIND: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr
):
    """Load rows as a tuple of chunks; wider ones where nothing rotates them."""
    CHUNK: tl.constexpr = HEAD_DIM & -HEAD_DIM if KIND == gpu_tiles.FLOAT8 else WIDTH
    return gpu_tiles.load_chunks(row_ptrs, HEAD_DIM // CHUNK, CHUNK)


@triton.jit
def _encode_field(
    rows,
    slot_ptrs,
    rotation,
    FIELD: tl.constexpr,
    ROTATION: tl.constexpr,
    FLOAT8: tl.constexpr,
    PTX: tl.constexpr,
):
    """Store rows as a field of their slots; return the result of the indices'."""
    pair_ptrs = slot_ptrs.to(tl.pointer_type(tl.uint16))
    if FIELD[0] == gpu_tiles.INDICES:
        return encode_indices(rows, 0, pair_ptrs, rotation, FIELD, ROTATION, PTX)
    elif FIELD[0] == gpu_tiles.LEVELS:
        _encode_levels(rows, pair_ptrs, FIELD, PTX)
    else:
        _encode_float8(rows, slot_ptrs + 2 * FIELD[2], FLOAT8)


@triton.jit
def _encode_large(
    row_ptrs,
    energy,
    slot_ptrs,
    rotation,
    FIELD: tl.constexpr,
    ROTATION: tl.constexpr,
    PTX: tl.constexpr,
):
    """Encode rows to indices again if any has a number beyond float16."""
    if gpu_tiles.any_row(~(energy <= gpu_tiles.ENERGY_LIMIT)):
        tl.debug_barrier()
        rows = gpu_tiles.load_chunks(row_ptrs, ROTATION[3], ROTATION[0])
        rows = gpu_tiles.saturated(rows)
        pair_ptrs = slot_ptrs.to(tl.pointer_type(tl.uint16))
        encode_indices(rows, 0, pair_ptrs, rotation, FIELD, ROTATION, PTX)


@triton.jit
def encode_indices(
    rows,
    sign_bits,
    pair_ptrs,
    rotation,
    FIELD: tl.constexpr,
    ROTATION: tl.constexpr,
    PTX: tl.constexpr,
):
    """Store rows as codebook indices and norm.

    Args:
        rows: Tuple of chunks ``[rows, width]``.
        sign_bits: uint16 ``[rows]``, what to set in the norms, or 0.
        pair_ptrs: uint16 pointers to the slots, ``[rows]``.
        rotation: Pointers to the layer's sign masks and the rotation matrix.
        FIELD: As ``FIRST`` of the kernel.
        ROTATION: ``WIDTH``, ``HARTLEY``, ``ENERGY_UNIT`` and the number of chunks.
        PTX: Whether PTX instructions are available.

    Returns:
        float32 ``[rows]``: squared norms.
    """
    ROWS: tl.constexpr = rows[0].shape[0]
    BITS: tl.constexpr = FIELD[1]
    INDEX_FACTOR: tl.constexpr = FIELD[4]
    POLYNOMIAL: tl.constexpr = FIELD[5]
    CENTROIDS: tl.constexpr = FIELD[6]
    WIDTH: tl.constexpr = ROTATION[0]
    HARTLEY: tl.constexpr = ROTATION[1]
    masks = gpu_rotation.load_masks(rotation[0], ROWS, len(rows), WIDTH)
    matrix = gpu_rotation.load_matrix(rotation[1], WIDTH)
    rotated = gpu_rotation.rotate(rows, masks, matrix, HARTLEY, PTX)
    energy = gpu_rotation.sum_of_squares(rotated)
    # A zero row stays zero; NaN and infinity carry over.
    factors = tl.where(energy == 0.0, 0.0, tl.rsqrt(energy)) * INDEX_FACTOR
    LOWEST_BITS: tl.constexpr = gpu_codes.INTEGER_STEP_BITS
    words = ()
    codes = ()
    for index in tl.static_range(len(rotated)):
        stepped = gpu_codes.bucketise(rotated[index], factors, BITS, POLYNOMIAL, PTX)
        words = words + (gpu_codes.pack(stepped, BITS, LOWEST_BITS),)
        if len(CENTROIDS) > 0:
            codes = codes + (gpu_codes.stepped_centroids(stepped, BITS, CENTROIDS),)
    _store_codes(words, pair_ptrs + FIELD[2], BITS)
    lengths = tl.sqrt(energy * ROTATION[2])
    if len(CENTROIDS) > 0:
        lengths = lengths / _overlaps(rotated, codes, energy)
    energy = energy * ROTATION[2]
    norms = gpu_tiles.to_half(lengths).to(tl.uint16, bitcast=True)
    tl.store(pair_ptrs + FIELD[3], norms | sign_bits)
    return energy


@triton.jit
def _overlaps(rotated, codes, energy):
    """Return the cosines of rotated rows and their codes; 1 where there is none."""
    products = rotated[0] * codes[0]
    for index in tl.static_range(1, len(codes)):
        products = tl.fma(rotated[index], codes[index], products)
    squares = gpu_rotation.sum_of_squares(codes)
    cosines = tl.sum(products, axis=1) * tl.rsqrt(energy * squares)
    return tl.where(cosines > 0, cosines, 1.0)


@triton.jit
def _encode_levels(rows, pair_ptrs, FIELD: tl.constexpr, PTX: tl.constexpr):
    """Store rows as uniform levels, scale and zero point."""
    BITS: tl.constexpr = FIELD[1]
    least, greatest = gpu_values.extremes(rows, PTX)
    scale, zero = gpu_values.scale_and_zero(least, greatest, BITS)
    factors = gpu_values.level_factors(scale, zero)
    LOWEST_BITS: tl.constexpr = gpu_values.lowest_level_bits(BITS)
    words = ()
    for index in tl.static_range(len(rows)):
        stepped = gpu_values.levels(rows[index], factors, BITS, PTX)
        words = words + (gpu_codes.pack(stepped, BITS, LOWEST_BITS),)
    _store_codes(words, pair_ptrs + FIELD[2], BITS)
    halves = tl.join(scale, zero).to(tl.uint16, bitcast=True)
    ptrs = (pair_ptrs + FIELD[3])[:, None] + tl.arange(0, 2)[None, :]
    tl.store(ptrs, halves)


@triton.jit
def _encode_float8(rows, byte_ptrs, FLOAT8: tl.constexpr):
    """Store rows as float8."""
    for index in tl.static_range(len(rows)):
        code = gpu_float8.encode_e4m3(rows[index].to(tl.float32), FLOAT8)
        gpu_tiles.store_chunk(byte_ptrs[:, None], code, index * code.shape[1])


@triton.jit
def _store_codes(words, pair_ptrs, BITS: tl.constexpr):
    """Store the words of a tuple of chunks."""
    CHUNK_PAIRS: tl.constexpr = words[0].shape[1] * BITS // 2
    closed = ()
    for index in tl.static_range(len(words)):
        closed = closed + (gpu_codes.close_gaps(words[index], BITS),)
    joined = gpu_tiles.join_words(closed)
    NUM_CHUNKS: tl.constexpr = len(words) // len(joined)
    for index in tl.static_range(len(joined)):
        ptrs = pair_ptrs + index * NUM_CHUNKS * CHUNK_PAIRS
        gpu_tiles.store_words(ptrs, joined[index], NUM_CHUNKS, CHUNK_PAIRS, BITS)
