# SPDX-License-Identifier: Apache-2.0
"""Device functions that restore rows from packed indices and norms."""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import (
    gpu_codes,
    gpu_rotation,
    gpu_tiles,
    gpu_trellis,
)


@triton.jit
def load_codes(
    pair_ptrs, FIELD: tl.constexpr, NUM_CHUNKS: tl.constexpr, WIDTH: tl.constexpr
):
    """Load packed codes.

    Args:
        pair_ptrs: uint16 pointers to the slots, ``[rows]``.
        FIELD: As ``FIRST`` of the kernel.
        NUM_CHUNKS, WIDTH: Chunks of a row, and elements of a chunk.

    Returns:
        Tuple of chunks, int32 ``[rows, WIDTH / 8]``; of a trellis code each with the
        result of ``gpu_trellis.load_before``.
    """
    BITS: tl.constexpr = FIELD[1]
    COUNT: tl.constexpr = WIDTH // gpu_codes.CODES_PER_WORD
    pair_ptrs += FIELD[2]
    words = ()
    for index in tl.static_range(NUM_CHUNKS):
        chunk = gpu_tiles.load_words(pair_ptrs, index * COUNT, COUNT, BITS)
        if FIELD[0] == gpu_tiles.TRELLIS:
            before = gpu_trellis.load_before(pair_ptrs, index * COUNT, COUNT, BITS)
            words = words + ((chunk, before),)
        else:
            words = words + (chunk,)
    return words


@triton.jit
def restore_indices(
    words,
    norms,
    matrix,
    terms_ptr,
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
        terms_ptr: ``gpu_trellis_tables.level_terms``.
        FIELD, LOOKUPS, PTX: As ``FIRST``, ``LOOKUPS`` and ``PTX`` of
            ``gpu_decode.decode_kernel``.
        ROTATION: ``WIDTH`` and ``HARTLEY``.

    Returns:
        Tuple of chunks, float32 ``[rows, WIDTH]``.
    """
    HARTLEY: tl.constexpr = ROTATION[1]
    IS_TRELLIS: tl.constexpr = FIELD[0] == gpu_tiles.TRELLIS
    BITS: tl.constexpr = FIELD[1]
    TERMS: tl.constexpr = FIELD[4]
    LOOKUP: tl.constexpr = None if IS_TRELLIS else FIELD[5]
    NUM_TERMS: tl.constexpr = TERMS if IS_TRELLIS else len(TERMS) // 2**BITS
    products = ()
    for index in tl.static_range(len(words)):
        product = None
        if IS_TRELLIS:
            chunk, before = words[index]
            entries = gpu_trellis.level_terms(chunk, before, terms_ptr, BITS, PTX)
        for term in tl.static_range(NUM_TERMS):
            if IS_TRELLIS:
                found = gpu_trellis.halves(entries, term)
            else:
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
