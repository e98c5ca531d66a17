# SPDX-License-Identifier: Apache-2.0
"""Statistics of calibrated keys on the CPU: ``calibration.measure``.

A group of heads of a layer is measured at a time, by one thread and in the order of
tokens, so that the sums do not depend on the number of threads.
"""

# Standard
from typing import NamedTuple

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.calibration import (
    MIN_SPREAD,
    MIN_SQUARE,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    SOURCE_REVISION,
    Kernel,
    part,
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
    write_row_of_halves,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import to_bfloat16
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import Plan
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_relative import (
    get_floats,
    is_turned,
    lane_sum,
    load_doubled,
    new_doubled_row,
    turn_back,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_statistics import (
    Rotary,
)
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart

HEADS_PER_GROUP = 8
"""Their sums stay in cache, and their keys of a token are often side by side."""


class TablePlan(NamedTuple):
    """Where the side table of a field is; offsets count bytes.

    Attributes:
        statistics_offset: First head's statistics.
        rows_offset: First head's kept keys.
        positions_offset: First head's positions.
        kept: Keys that are kept of a head.
    """

    statistics_offset: int
    rows_offset: int
    positions_offset: int
    kept: int


def make_table_plan(table: SideTablePart) -> TablePlan:
    """Write down where the kernel finds a side table of contiguous tensors.

    Args:
        table: Views of one payload.

    Returns:
        The plan.
    """
    statistics, rows, positions = (
        int(x.storage_offset()) * x.element_size()
        for x in (table.statistics, table.rows, table.positions)
    )
    return TablePlan(statistics, rows, positions, table.positions.shape[-1])


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
            _finish(
                *(means[head], turned[head], first_sums[head], second_sums[head]),
                *(totals[head], offsets, payload),
                table.statistics_offset + (first_head + head) * 4 * plan.dim,
            )
            _keep(
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
                _insert(np.float32(0), token, distances[head], positions[head])
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
            _insert(distance, token, distances[head], positions[head])
            if square < MIN_SQUARE:
                continue
            weight = np.float32(1.0) / square
            totals[head] += weight
            for chunk in range(chunks):
                numbers = get(offsets, chunk)
                weighted = numbers * weight
                add_to(sums, head * chunks + chunk, weighted)
                add_to(squares, head * chunks + chunk, weighted * numbers)


@part
def _insert(
    distance: float, token: int, distances: np.ndarray, positions: np.ndarray
) -> None:
    """Put a token into a list of the largest distances, in descending order."""
    last = len(distances) - 1
    if not distance > distances[last]:
        return
    while last > 0 and distance > distances[last - 1]:
        distances[last], positions[last] = distances[last - 1], positions[last - 1]
        last -= 1
    distances[last], positions[last] = distance, token


@part
def _keep(
    source: np.ndarray,
    first_at: int,
    plan: Plan,
    row: np.ndarray,
    payload: np.ndarray,
    table: TablePlan,
    head: int,
    positions: np.ndarray,
) -> None:
    """Write the keys at some positions of one head, in ascending order.

    Args:
        source: Bytes of the keys.
        first_at: The head's first key.
        plan: Where keys are.
        row: A doubled row, overwritten.
        payload: Bytes of the payload.
        table: Where the side table is.
        head: Which head, counted over all compressed layers.
        positions: Tokens, which are sorted.
    """
    positions.sort()
    for i in range(table.kept):
        index = head * table.kept + i
        load_doubled(source, first_at + positions[i] * plan.token_stride, plan, row)
        for dim in range(0, plan.dim, LANES):
            at = table.rows_offset + 2 * (index * plan.dim + dim)
            write_row_of_halves(payload, at, to_bfloat16(get_floats(row, dim)))
        at = table.positions_offset + 4 * index
        for byte in range(4):
            payload[at + byte] = (positions[i] >> (8 * byte)) & 0xFF


@part
def _finish(
    means: np.ndarray,
    turned: np.ndarray,
    sums: np.ndarray,
    squares: np.ndarray,
    total: float,
    numbers: np.ndarray,
    payload: np.ndarray,
    table_at: int,
) -> None:
    """Write the mean and the spread of one head.

    Args:
        means: ``[dim]``, what offsets count from.
        turned: ``[dim]``, -1 where the dimension is turned.
        sums: Weighted sums of the offsets.
        squares: Weighted sums of their squares; overwritten.
        total: Sum of the weights.
        numbers: ``[dim / LANES, LANES]`` float32, overwritten.
        payload: Bytes of the payload.
        table_at: Where the head's statistics go.
    """
    dims = means.shape[0]
    total = total if total > 0.0 else 1.0
    average = 0.0
    for dim in range(dims):
        shift = sums[dim] / total
        numbers[dim // LANES, dim % LANES] = np.float32(means[dim] + shift)
        squares[dim] = max(squares[dim] / total - shift * shift, 0.0)
        average += squares[dim]
    average /= dims
    for dim in range(0, dims, LANES):
        codes = to_bfloat16(get(numbers, dim // LANES))
        write_row_of_halves(payload, table_at + 2 * dim, codes)
    for dim in range(dims):
        spread = 1.0
        if average > 0.0:
            spread = max(np.sqrt(np.sqrt(squares[dim] / average)), MIN_SPREAD)
        if turned[dim] and 2 * dim < dims:
            spread = -spread
        numbers[dim // LANES, dim % LANES] = np.float32(spread)
    for dim in range(0, dims, LANES):
        codes = to_bfloat16(get(numbers, dim // LANES))
        write_row_of_halves(payload, table_at + 2 * (dims + dim), codes)
