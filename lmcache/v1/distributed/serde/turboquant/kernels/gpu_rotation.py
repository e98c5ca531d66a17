# SPDX-License-Identifier: Apache-2.0
"""Device functions of the rotation, on tiles of rows split into chunks.

A head vector of ``head_dim = odd * 2**k * width`` dimensions is a tuple of
``odd * 2**k`` chunks, each a tensor ``[rows, width]``. Within chunks a matrix
product applies the Hadamard matrix, between chunks butterflies and the Hartley
matrix of the odd factor do. Each of them is its own inverse.
"""

# Tuples of tensors grow in unrolled loops.
# mypy: disable-error-code="assignment"

# Third Party
import triton
import triton.language as tl

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_constants

FRAGMENT_RUN = tl.constexpr(gpu_constants.FRAGMENT_RUN)
JOINED_RUN = tl.constexpr(gpu_constants.JOINED_RUN)


@triton.jit
def to_lane_order(chunk, RUN: tl.constexpr):
    """Put dimensions ``[rows, width]`` in the order of ``gpu_constants.lane_order``."""
    ROWS: tl.constexpr = chunk.shape[0]
    WIDTH: tl.constexpr = chunk.shape[1]
    split = chunk.reshape(ROWS, 4, WIDTH // (4 * RUN), RUN)
    return split.permute(0, 2, 1, 3).reshape(ROWS, WIDTH)


@triton.jit
def from_lane_order(chunk, RUN: tl.constexpr):
    """Undo :func:`to_lane_order`."""
    ROWS: tl.constexpr = chunk.shape[0]
    WIDTH: tl.constexpr = chunk.shape[1]
    split = chunk.reshape(ROWS, WIDTH // (4 * RUN), 4, RUN)
    return split.permute(0, 2, 1, 3).reshape(ROWS, WIDTH)


@triton.jit
def load_matrix(matrix_ptr, WIDTH: tl.constexpr):
    """Load ``gpu_constants.rotation_matrix``, ``[WIDTH, WIDTH]``."""
    lanes = tl.arange(0, WIDTH)
    return tl.load(matrix_ptr + lanes[:, None] * WIDTH + lanes[None, :])


@triton.jit
def load_masks(
    masks_ptr, ROWS: tl.constexpr, NUM_CHUNKS: tl.constexpr, WIDTH: tl.constexpr
):
    """Load a layer's row of ``gpu_constants.sign_masks``.

    Args:
        masks_ptr: The row.
        ROWS: Rows to repeat it for, a multiple of 8.
        NUM_CHUNKS: Chunks of a row.
        WIDTH: Elements of a chunk.

    Returns:
        Tuple of ``NUM_CHUNKS`` int16 tensors ``[ROWS, WIDTH]``.
    """
    # Eight equal rows are loaded to where a warp needs them, then repeated.
    column = tl.arange(0, WIDTH)[None, :] + tl.zeros((8, 1), tl.int32)
    masks = ()
    for index in tl.static_range(NUM_CHUNKS):
        mask = tl.load(masks_ptr + (index * WIDTH + column))[None, :, :]
        repeated = tl.broadcast_to(mask, (ROWS // 8, 8, WIDTH))
        masks = masks + (repeated.reshape(ROWS, WIDTH),)
    return masks


@triton.jit
def flip_signs(chunk, masks, PTX: tl.constexpr):
    """Negate elements.

    Args:
        chunk: Tensor ``[rows, width]``.
        masks: int16 ``[rows, width]``: the sign bit where to negate, else 0.
        PTX: Whether PTX instructions are available: two elements at a time.
    """
    if chunk.dtype == tl.float32:
        bits = chunk.to(tl.int32, bitcast=True) ^ (masks.to(tl.int32) << 16)
        return bits.to(tl.float32, bitcast=True)
    elif PTX:
        return tl.inline_asm_elementwise(
            "xor.b32 $0, $1, $2;",
            "=r,r,r",
            [chunk, masks],
            dtype=chunk.dtype,
            is_pure=True,
            pack=2,
        )
    else:
        bits = chunk.to(tl.int16, bitcast=True) ^ masks
        return bits.to(chunk.dtype, bitcast=True)


@triton.jit
def multiply(chunk, matrix, product, PTX: tl.constexpr):
    """Multiply ``[rows, width]`` by a matrix of powers of two; exact products.

    Args:
        chunk: Rows in lane order, of the matrix's dtype or float32.
        matrix: ``gpu_constants.rotation_matrix``, float16 or bfloat16.
        product: What to add to the product, or None.
        PTX: Whether tensor cores are available; the interpreter has no bfloat16.

    Returns:
        float32 ``[rows, width]`` in lane order.
    """
    if not PTX:
        wide = matrix.to(tl.float32)
        return tl.dot(chunk.to(tl.float32), wide, product, input_precision="ieee")
    elif chunk.dtype == tl.float32:
        tl.static_assert(matrix.dtype == tl.bfloat16, "float32 is split into bfloat16")
        high = chunk.to(tl.bfloat16)
        rest = chunk - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        product = tl.dot(low, matrix, product)
        product = tl.dot(middle, matrix, product)
        return tl.dot(high, matrix, product)
    else:
        return tl.dot(chunk, matrix, product)


@triton.jit
def mix(chunks, HARTLEY: tl.constexpr):
    """Combine chunks by butterflies, then by the Hartley matrix.

    Args:
        chunks: Tuple of ``2**k`` float32 tensors for each row of the matrix.
        HARTLEY: Entries of ``tables.hartley``, row by row.

    Returns:
        Tuple of as many tensors, ``2**(k / 2)`` times longer.
    """
    NUM_CHUNKS: tl.constexpr = len(chunks)
    POWER: tl.constexpr = NUM_CHUNKS & -NUM_CHUNKS
    ODD: tl.constexpr = NUM_CHUNKS // POWER
    tl.static_assert(len(HARTLEY) == ODD * ODD, "the matrix is of the odd factor")
    for level in tl.static_range(4):
        if 1 << level < POWER:
            chunks = _butterflies(chunks, 1 << level)
    if ODD == 1:
        return chunks
    mixed = ()
    for target in tl.static_range(NUM_CHUNKS):
        total = chunks[target % POWER] * HARTLEY[target // POWER * ODD]
        for source in tl.static_range(1, ODD):
            weight = HARTLEY[target // POWER * ODD + source]
            total = tl.fma(chunks[target % POWER + source * POWER], weight, total)
        mixed = mixed + (total,)
    return mixed


@triton.jit
def _butterflies(chunks, SPAN: tl.constexpr):
    """Replace chunks ``SPAN`` apart by their sum and difference."""
    NUM_CHUNKS: tl.constexpr = len(chunks)
    paired = ()
    for index in tl.static_range(NUM_CHUNKS):
        if index & SPAN:
            paired = paired + (chunks[index ^ SPAN] - chunks[index],)
        else:
            paired = paired + (chunks[index] + chunks[index ^ SPAN],)
    return paired


@triton.jit
def sum_of_squares(chunks):
    """Return float32 ``[rows]``: the squared lengths of a tuple of chunks."""
    NUM_CHUNKS: tl.constexpr = len(chunks)
    squares = chunks[0] * chunks[0]
    for index in tl.static_range(1, NUM_CHUNKS):
        squares = tl.fma(chunks[index], chunks[index], squares)
    return tl.sum(squares, axis=1)


@triton.jit
def rotate(chunks, masks, matrix, HARTLEY: tl.constexpr, PTX: tl.constexpr):
    """Rotate a tile of rows, up to a common factor.

    Args:
        chunks: Tuple of tensors ``[rows, width]``.
        masks: :func:`load_masks`.
        matrix: ``gpu_constants.rotation_matrix``.
        HARTLEY: Entries of ``tables.hartley``, row by row.
        PTX: Whether PTX instructions are available.

    Returns:
        Tuple of as many float32 tensors ``[rows, width]``.
    """
    products = ()
    for index in tl.static_range(len(chunks)):
        signed = flip_signs(chunks[index], masks[index], PTX)
        ordered = to_lane_order(signed, FRAGMENT_RUN)
        products = products + (multiply(ordered, matrix, None, PTX),)
    rotated = ()
    mixed = mix(products, HARTLEY)
    for index in tl.static_range(len(chunks)):
        rotated = rotated + (from_lane_order(mixed[index], FRAGMENT_RUN),)
    return rotated
