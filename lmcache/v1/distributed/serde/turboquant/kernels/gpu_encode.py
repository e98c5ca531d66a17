# SPDX-License-Identifier: Apache-2.0
"""The encoding kernel.

Grid: (tiles, layers). A program encodes one tile of ``TILE_ROWS`` rows: keys and
values, ``[rows, head_dim]`` each, to slots, ``[rows, slot_bytes]``. It requests
all that it reads before it waits for any of it.

Hardly any tile holds numbers beyond float16, or values beyond the levels that
scale and zero point leave once they are rounded. So every tile is encoded as if
it did not, and one that does is encoded again with the clamps that it needs.
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

_ENERGY_LIMIT = tl.constexpr(65000.0**2)
"""A row of no more than this has no element beyond float16, rounding included."""


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
    KEY_BITS: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    SLOT: tl.constexpr,
    WIDTH: tl.constexpr,
    HARTLEY: tl.constexpr,
    INDEXING: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    PTX: tl.constexpr,
    FLOAT8: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """Encode the rows of one program.

    Args:
        source_ptr: Keys of the first layer.
        slots_ptr: uint8 slots of the first layer.
        masks_ptr: ``gpu_constants.sign_masks`` of the first layer on.
        matrix_ptr: ``gpu_constants.rotation_matrix``.
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
        INDEXING: Results of ``gpu_constants.energy_unit``, ``index_factor`` and
            ``index_polynomial``; empty for float8 keys.
        TILE_ROWS: Rows of a tile.
        PTX: Whether PTX instructions are available.
        FLOAT8: Whether the GPU converts to float8.
        IS_SHORT: Whether a layer has fewer rows than a tile.
    """
    NUM_CHUNKS: tl.constexpr = HEAD_DIM // WIDTH
    layer = tl.program_id(1).to(tl.int64)
    start, row = gpu_tiles.tile_rows(num_rows, TILE_ROWS, IS_SHORT)
    first_key = source_ptr + layer * layer_stride + start.to(tl.int64) * row_stride
    key_ptrs = first_key + (row * row_stride)[:, None]
    value_ptrs = key_ptrs + value_offset
    first_slot = layer * slots_stride + start.to(tl.int64) * SLOT[0]
    slot_ptrs = slots_ptr.to(tl.pointer_type(tl.uint16)) + first_slot + row * SLOT[0]
    if KEY_BITS < 8:
        keys = gpu_tiles.load_chunks(key_ptrs, NUM_CHUNKS, WIDTH)
    values = gpu_tiles.load_chunks(value_ptrs, NUM_CHUNKS, WIDTH)
    if KEY_BITS < 8:
        rotation = masks_ptr + layer * HEAD_DIM, matrix_ptr
        energy = _encode_keys(
            keys, rotation, slot_ptrs, KEY_BITS, SLOT, HARTLEY, INDEXING, PTX
        )
    else:
        byte_ptrs = slots_ptr + 2 * first_slot + row * (2 * SLOT[0])
        _encode_float8(key_ptrs, byte_ptrs, HEAD_DIM, FLOAT8)
    _encode_values(values, slot_ptrs, VALUE_BITS, SLOT, PTX)
    HAS_LARGE: tl.constexpr = source_ptr.dtype.element_ty != tl.float16
    if KEY_BITS < 8 and HAS_LARGE and gpu_tiles.any_row(~(energy <= _ENERGY_LIMIT)):
        tl.debug_barrier()
        again = gpu_tiles.load_chunks(key_ptrs, NUM_CHUNKS, WIDTH)
        bounded = gpu_tiles.saturated(again)
        _encode_keys(
            bounded, rotation, slot_ptrs, KEY_BITS, SLOT, HARTLEY, INDEXING, PTX
        )


@triton.jit
def _encode_keys(
    keys,
    rotation,
    slot_ptrs,
    BITS: tl.constexpr,
    SLOT: tl.constexpr,
    HARTLEY: tl.constexpr,
    INDEXING: tl.constexpr,
    PTX: tl.constexpr,
):
    """Store rows as codebook indices and norm; return the squared norms."""
    ROWS: tl.constexpr = keys[0].shape[0]
    WIDTH: tl.constexpr = keys[0].shape[1]
    ENERGY_UNIT: tl.constexpr = INDEXING[0]
    INDEX_FACTOR: tl.constexpr = INDEXING[1]
    POLYNOMIAL: tl.constexpr = INDEXING[2]
    masks = gpu_rotation.load_masks(rotation[0], ROWS, len(keys), WIDTH)
    matrix = gpu_rotation.load_matrix(rotation[1], WIDTH)
    rotated = gpu_rotation.rotate(keys, masks, matrix, HARTLEY, PTX)
    energy = gpu_rotation.sum_of_squares(rotated)
    # A zero row stays zero; NaN and infinity carry over.
    factors = tl.where(energy == 0.0, 0.0, tl.rsqrt(energy)) * INDEX_FACTOR
    LOWEST_BITS: tl.constexpr = gpu_codes.INTEGER_STEP_BITS
    words = ()
    for index in tl.static_range(len(rotated)):
        stepped = gpu_codes.bucketise(rotated[index], factors, BITS, POLYNOMIAL, PTX)
        words = words + (gpu_codes.pack(stepped, BITS, LOWEST_BITS),)
    _store_codes(words, slot_ptrs, BITS)
    energy = energy * ENERGY_UNIT
    norms = gpu_tiles.to_half(tl.sqrt(energy)).to(tl.uint16, bitcast=True)
    tl.store(slot_ptrs + SLOT[1], norms)
    return energy


@triton.jit
def _encode_values(
    values,
    slot_ptrs,
    BITS: tl.constexpr,
    SLOT: tl.constexpr,
    PTX: tl.constexpr,
):
    """Store rows as uniform levels, scale and zero point."""
    least, greatest = gpu_values.extremes(values, PTX)
    scale, zero = gpu_values.scale_and_zero(least, greatest, BITS)
    factors = gpu_values.level_factors(scale, zero)
    LOWEST_BITS: tl.constexpr = gpu_values.lowest_level_bits(BITS)
    words = ()
    for index in tl.static_range(len(values)):
        stepped = gpu_values.levels(values[index], factors, BITS, PTX)
        words = words + (gpu_codes.pack(stepped, BITS, LOWEST_BITS),)
    _store_codes(words, slot_ptrs + SLOT[2], BITS)
    halves = tl.join(scale, zero).to(tl.uint16, bitcast=True)
    ptrs = (slot_ptrs + SLOT[3])[:, None] + tl.arange(0, 2)[None, :]
    tl.store(ptrs, halves)


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
        gpu_tiles.store_words(ptrs, joined[index], NUM_CHUNKS, CHUNK_PAIRS)


@triton.jit
def _encode_float8(key_ptrs, byte_ptrs, HEAD_DIM: tl.constexpr, FLOAT8: tl.constexpr):
    """Store rows as float8."""
    WIDTH: tl.constexpr = HEAD_DIM & -HEAD_DIM
    rows = gpu_tiles.load_chunks(key_ptrs, HEAD_DIM // WIDTH, WIDTH)
    for index in tl.static_range(len(rows)):
        code = gpu_float8.encode_e4m3(rows[index].to(tl.float32), FLOAT8)
        gpu_tiles.store_chunk(byte_ptrs[:, None], code, index * WIDTH)
