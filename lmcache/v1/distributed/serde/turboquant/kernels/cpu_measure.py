# SPDX-License-Identifier: Apache-2.0
"""Statistics of calibrated keys on the CPU: ``calibration.measure``.

A group of heads of a layer is measured at a time, by one thread and in the order of
tokens, so that the sums do not depend on the number of threads.
"""

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.calibration import (
    MIN_SQUARE,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_doubled import (
    get_floats,
    is_turned,
    lane_sum,
    load_doubled,
    new_doubled_row,
    turn_back,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
    floats,
    select,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    add_to,
    get,
    put,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_side_table import (
    TablePlan,
    insert_farthest,
    keep_rows,
    write_statistics,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    Rotary,
)

HEADS_PER_GROUP = 8
"""Their sums stay in cache, and their keys of a token are often side by side."""


@Kernel
def measure_groups(
    source: np.ndarray,
    payload: np.ndarray,
    plan: Plan,
    rotary: Rotary,
    table: TablePlan,
    first_group: int,
    last_group: int,
    revision: int = SOURCE_REVISION,
) -> None:
    """Measure the groups of heads from ``first_group`` to before ``last_group``.

    Args:
        source: Bytes of the keys.
        payload: Bytes of the payload.
        plan: Where keys are.
        rotary: Their angles.
        table: Where the side table is.
        first_group: First group, counted over all compressed layers.
        last_group: Group after the last one.
        revision: See ``Kernel``.
    """
    shape = (HEADS_PER_GROUP, plan.dim)
    first_sums = np.empty(shape, dtype=np.float32)
    second_sums = np.empty_like(first_sums)
    totals = np.empty(HEADS_PER_GROUP)
    means = np.empty_like(first_sums)
    turned = np.empty(shape, dtype=np.int32)
    distances = np.empty((HEADS_PER_GROUP, table.kept), dtype=np.float32)
    positions = np.empty(distances.shape, dtype=np.int64)
    row = new_doubled_row(plan.dim)
    offsets = np.empty((plan.dim // LANES, LANES), dtype=np.float32)
    groups = (plan.num_heads + HEADS_PER_GROUP - 1) // HEADS_PER_GROUP
    for group in range(first_group, last_group):
        layer, first_head = group // groups, group % groups * HEADS_PER_GROUP
        heads = min(HEADS_PER_GROUP, plan.num_heads - first_head)
        at = plan.rows_offset + layer * plan.layer_stride
        at += first_head * plan.head_stride
        _clear(first_sums, second_sums, totals)
        _add_keys(source, at, heads, plan, rotary, row, first_sums, second_sums, totals)
        _choose_centers(first_sums, second_sums, totals, plan, means, turned)
        _clear(first_sums, second_sums, totals)
        distances[:] = -1.0
        _add_offsets(
            *(source, at, heads, plan, rotary, _bytes_of(means), _bytes_of(turned)),
            *(row, offsets, first_sums, second_sums, totals, distances, positions),
        )
        first_head += layer * plan.num_heads
        for head in range(heads):
            write_statistics(
                *(means[head], turned[head], first_sums[head], second_sums[head]),
                *(totals[head], offsets, payload),
                table.statistics_offset + (first_head + head) * 4 * plan.dim,
            )
            keep_rows(
                *(source, at + head * plan.head_stride, plan, row, payload, table),
                *(first_head + head, positions[head]),
            )


@part
def _bytes_of(numbers: np.ndarray) -> np.ndarray:
    """View numbers as bytes."""
    return numbers.reshape(-1).view(np.uint8)


@part
def _clear(first: np.ndarray, second: np.ndarray, totals: np.ndarray) -> None:
    """Set sums to zero."""
    first[:] = 0.0
    second[:] = 0.0
    totals[:] = 0.0


@part
def _add_keys(
    source: np.ndarray,
    first_at: int,
    heads: int,
    plan: Plan,
    rotary: Rotary,
    row: np.ndarray,
    plain_sums: np.ndarray,
    turned_sums: np.ndarray,
    totals: np.ndarray,
) -> None:
    """Add up the finite keys of each head, as they are and turned back."""
    chunks, half = plan.dim // LANES, plan.dim // 2
    cosines, sines = rotary.cosines, rotary.sines
    for token in range(plan.num_tokens):
        at, angle = first_at + token * plan.token_stride, token * plan.dim
        for head in range(heads):
            if not load_doubled(source, at + head * plan.head_stride, plan, row):
                continue
            totals[head] += 1.0
            for chunk in range(chunks):
                dim = chunk * LANES
                add_to(plain_sums, head * chunks + chunk, get_floats(row, dim))
                if plan.has_rotary:
                    numbers = turn_back(row, dim, half, cosines, sines, angle)
                    add_to(turned_sums, head * chunks + chunk, numbers)


@part
def _choose_centers(
    plain_sums: np.ndarray,
    turned_sums: np.ndarray,
    totals: np.ndarray,
    plan: Plan,
    means: np.ndarray,
    turned: np.ndarray,
) -> None:
    """Decide which pairs are turned, and divide the sums of what was chosen."""
    half = plan.dim // 2
    for head in range(means.shape[0]):
        total = max(totals[head], 1.0)
        for i in range(half):
            pair = (i, i + half)
            plain = turned_back = 0.0
            for dim in pair:
                plain += plain_sums[head, dim] ** 2
                turned_back += turned_sums[head, dim] ** 2
            is_turned = plan.has_rotary and turned_back > plain
            for dim in pair:
                chosen = plain_sums[head, dim]
                if is_turned:
                    chosen = turned_sums[head, dim]
                means[head, dim] = np.float32(chosen / total)
                turned[head, dim] = -1 if is_turned else 0


@part
def _add_offsets(
    source: np.ndarray,
    first_at: int,
    heads: int,
    plan: Plan,
    rotary: Rotary,
    means: np.ndarray,
    turned: np.ndarray,
    row: np.ndarray,
    offsets: np.ndarray,
    sums: np.ndarray,
    squares: np.ndarray,
    totals: np.ndarray,
    distances: np.ndarray,
    positions: np.ndarray,
) -> None:
    """Add up the finite keys' offsets from the means and their squares, weighted.

    The weight of a key is one over the square of its offset's norm. Positions
    receives the tokens whose offsets are longest, compared with the keys.
    """
    chunks, half = plan.dim // LANES, plan.dim // 2
    cosines, sines = rotary.cosines, rotary.sines
    for token in range(plan.num_tokens):
        at, angle = first_at + token * plan.token_stride, token * plan.dim
        for head in range(heads):
            if not load_doubled(source, at + head * plan.head_stride, plan, row):
                insert_farthest(np.float32(0), token, distances[head], positions[head])
                continue
            total = squares_of_keys = floats(0.0)
            for chunk in range(chunks):
                dim = chunk * LANES
                numbers = get_floats(row, dim)
                if plan.has_rotary:
                    back = turn_back(row, dim, half, cosines, sines, angle)
                    numbers = select(
                        is_turned(turned, head * plan.dim + dim), back, numbers
                    )
                squares_of_keys = squares_of_keys + numbers * numbers
                numbers = numbers - get_floats(means, head * plan.dim + dim)
                put(offsets, chunk, numbers)
                total = total + numbers * numbers
            square, length = lane_sum(total), lane_sum(squares_of_keys)
            distance = square / length if length > 0 else np.float32(0)
            insert_farthest(distance, token, distances[head], positions[head])
            if square < MIN_SQUARE:
                continue
            weight = np.float32(1.0) / square
            totals[head] += weight
            for chunk in range(chunks):
                numbers = get(offsets, chunk)
                weighted = numbers * weight
                add_to(sums, head * chunks + chunk, weighted)
                add_to(squares, head * chunks + chunk, weighted * numbers)
