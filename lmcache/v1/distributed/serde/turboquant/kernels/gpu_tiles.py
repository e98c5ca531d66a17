# SPDX-License-Identifier: Apache-2.0
"""Device functions that move tiles of rows between memory and registers.

A row is one head vector of one token; a tile is a few consecutive rows. Slots
are only 2-byte aligned, so packed words are moved as pairs of 16-bit numbers.
"""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_plan

INDICES = tl.constexpr(gpu_plan.INDICES)
LEVELS = tl.constexpr(gpu_plan.LEVELS)
FLOAT8 = tl.constexpr(gpu_plan.FLOAT8)

FP16_MAX = tl.constexpr(65504.0)

ENERGY_LIMIT = tl.constexpr(65000.0**2)
"""A row of no more than this has no element beyond float16, rounding included."""


@triton.jit
def tile_rows(num_rows, ROWS: tl.constexpr, IS_SHORT: tl.constexpr):
    """Return a program's first row, and its rows counted from there.

    Nothing needs a mask: the last tile overlaps the one before it, and where there
    are fewer rows than a tile has, the tile repeats the last one. Rows that are
    written twice get the same bytes.

    Args:
        num_rows: Rows that there are.
        ROWS: Rows of a tile.
        IS_SHORT: Whether ``num_rows < ROWS``.

    Returns:
        An int32 number, and int32 ``[ROWS]``.
    """
    row = tl.arange(0, ROWS)
    if IS_SHORT:
        return num_rows * 0, tl.minimum(row, num_rows - 1)
    else:
        return tl.minimum(tl.program_id(0) * ROWS, num_rows - ROWS), row


@triton.jit
def load_chunks(row_ptrs, NUM_CHUNKS: tl.constexpr, WIDTH: tl.constexpr):
    """Load rows as a tuple of ``NUM_CHUNKS`` tensors ``[rows, WIDTH]``.

    Args:
        row_ptrs: Pointers to the rows' first elements, ``[rows, 1]``.
        NUM_CHUNKS: Chunks of a row.
        WIDTH: Elements of a chunk.
    """
    columns = tl.arange(0, WIDTH)[None, :]
    chunks = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunks = chunks + (tl.load(row_ptrs + (index * WIDTH + columns)),)
    return chunks


@triton.jit
def store_chunk(row_ptrs, chunk, FIRST: tl.constexpr):
    """Store a chunk ``[rows, width]`` from column ``FIRST`` of its rows on.

    Args:
        row_ptrs: Pointers to the rows' first elements, ``[rows, 1]``.
        chunk: The elements.
        FIRST: First column.
    """
    columns = FIRST + tl.arange(0, chunk.shape[1])[None, :]
    tl.store(row_ptrs + columns, chunk)


@triton.jit
def load_words(pair_ptrs, FIRST: tl.constexpr, COUNT: tl.constexpr, BITS: tl.constexpr):
    """Load words of packed codes.

    Args:
        pair_ptrs: uint16 pointers to the first word of each row, ``[rows]``.
        FIRST: First word to load.
        COUNT: Words to load.
        BITS: Bits a code, so bytes a word.

    Returns:
        int32 ``[rows, COUNT]``; bits beyond the word's are undefined.
    """
    # Words come first in these tensors, so that neighbours in a row are loaded
    # by neighbouring threads.
    word = FIRST + tl.arange(0, COUNT)
    ptrs = pair_ptrs[None, :] + (word * BITS // 2)[:, None]
    both = tl.load(ptrs).to(tl.uint32)
    if BITS > 2:
        both |= tl.load(ptrs + 1).to(tl.uint32) << 16
    if BITS % 2:
        both = both >> ((word % 2) * 8).to(tl.uint32)[:, None]
    return both.to(tl.int32, bitcast=True).permute(1, 0)


@triton.jit
def store_words(
    pair_ptrs,
    words,
    NUM_CHUNKS: tl.constexpr,
    CHUNK_PAIRS: tl.constexpr,
    BITS: tl.constexpr,
):
    """Store words as 16-bit numbers.

    Args:
        pair_ptrs: uint16 pointers to where each row's first word goes, ``[rows]``.
        words: int32 ``[rows, count]``, as many a chunk.
        NUM_CHUNKS: Chunks that the words belong to.
        CHUNK_PAIRS: 16-bit numbers of a chunk to store.
        BITS: Bits a code.
    """
    if BITS == 2:
        pairs = words.to(tl.uint16)
    else:
        both = tl.join(words, words >> 16).to(tl.uint16)
        pairs = both.reshape(words.shape[0], 2 * words.shape[1])
    COUNT: tl.constexpr = pairs.shape[1]
    column = tl.arange(0, COUNT)
    if CHUNK_PAIRS == COUNT // NUM_CHUNKS:
        tl.store(pair_ptrs[:, None] + column[None, :], pairs)
    else:
        place = column % (COUNT // NUM_CHUNKS)
        column = column // (COUNT // NUM_CHUNKS) * CHUNK_PAIRS + place
        keep = (place < CHUNK_PAIRS)[None, :]
        tl.store(pair_ptrs[:, None] + column[None, :], pairs, keep)


@triton.jit
def join_words(chunks):
    """Join the words of neighbouring chunks, as far as their number allows.

    Args:
        chunks: Tuple of tensors ``[rows, count]``.

    Returns:
        Tuple of as few tensors as an odd factor leaves.
    """
    for _level in tl.static_range(4):
        if len(chunks) % 2 == 0:
            chunks = _join_pairs(chunks)
    return chunks


@triton.jit
def _join_pairs(chunks):
    """Join chunks two by two."""
    ROWS: tl.constexpr = chunks[0].shape[0]
    COUNT: tl.constexpr = chunks[0].shape[1]
    joined = ()
    for index in tl.static_range(len(chunks) // 2):
        pair = tl.join(chunks[2 * index], chunks[2 * index + 1])
        joined = joined + (pair.permute(0, 2, 1).reshape(ROWS, 2 * COUNT),)
    return joined


@triton.jit
def saturated(chunks):
    """Convert a tuple of chunks to float32, finite elements to float16's range."""
    bounded = ()
    for index in tl.static_range(len(chunks)):
        chunk = chunks[index].to(tl.float32)
        if chunks[index].dtype != tl.float16:
            chunk = to_half_range(chunk)
        bounded = bounded + (chunk,)
    return bounded


@triton.jit
def to_float32(chunks):
    """Convert a tuple of chunks to float32."""
    wide = ()
    for index in tl.static_range(len(chunks)):
        wide = wide + (chunks[index].to(tl.float32),)
    return wide


@triton.jit
def any_row(condition):
    """Return whether a condition, ``[rows]``, holds for any row."""
    return tl.max(condition.to(tl.int32), axis=0) > 0


@triton.jit
def to_half(numbers):
    """Round float32 to float16; finite numbers saturate."""
    return to_half_range(numbers).to(tl.float16)


@triton.jit
def load_half(ptrs):
    """Load float16 from uint16 pointers as float32 ``[rows]``."""
    return tl.load(ptrs).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def to_half_range(numbers):
    """Clamp finite float32 numbers to the range of float16."""
    clamped = tl.clamp(numbers, -FP16_MAX, FP16_MAX)
    return tl.where(numbers - numbers == 0.0, clamped, numbers)
