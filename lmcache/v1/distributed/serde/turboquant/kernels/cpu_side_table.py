# SPDX-License-Identifier: Apache-2.0
"""The side table of a calibrated field, written a head at a time."""

# Standard
from typing import NamedTuple

# Third Party
import numpy as np

# First Party
from lmcache.v1.distributed.serde.turboquant.calibration import (
    MIN_SPREAD,
    SPREAD_EXPONENT,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import (
    part,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_doubled import (
    get_floats,
    load_doubled,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_lanes import (
    LANES,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_memory import (
    get,
    write_row_of_halves,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_numbers import (
    to_bfloat16,
)
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_plan import (
    Plan,
)
from lmcache.v1.distributed.serde.turboquant.side_table import (
    SideTablePart,
)


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


@part
def insert_farthest(
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
def keep_rows(
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
def write_statistics(
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
            spread = max((squares[dim] / average) ** SPREAD_EXPONENT, MIN_SPREAD)
        if turned[dim] and 2 * dim < dims:
            spread = -spread
        numbers[dim // LANES, dim % LANES] = np.float32(spread)
    for dim in range(0, dims, LANES):
        codes = to_bfloat16(get(numbers, dim // LANES))
        write_row_of_halves(payload, table_at + 2 * (dims + dim), codes)
