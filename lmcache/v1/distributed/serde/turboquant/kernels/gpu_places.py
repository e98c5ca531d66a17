# SPDX-License-Identifier: Apache-2.0
"""Where kernels find rows, slots and statistics, as their arguments say it."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_launch import (
    TILE_ROWS,
    Options,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews


def grid(rows: torch.Tensor) -> tuple[int, int]:
    """Return the numbers of tiles and of layers."""
    num_layers, num_tokens, num_heads, _ = rows.shape
    return -(-num_tokens * num_heads // TILE_ROWS), num_layers


def of_rows(rows: torch.Tensor, slots: torch.Tensor) -> Options:
    """Return where the kernels find rows and slots."""
    num_rows = rows.shape[1] * rows.shape[2]
    return {
        "layer_stride": rows.stride(0),
        "row_stride": rows.stride(2),
        "slots_stride": slots.stride(0) // 2,
        "num_rows": num_rows,
        "IS_SHORT": num_rows < TILE_ROWS,
    }


def of_values(views: KVViews, rows: torch.Tensor) -> Options:
    """Return how far values are from keys."""
    keys, values = views
    other = keys if values is None else values
    return {"value_offset": (other.data_ptr() - rows.data_ptr()) // rows.itemsize}


def of_statistics(rows: torch.Tensor, statistics: torch.Tensor) -> Options:
    """Return where the kernels find the statistics of rows."""
    return {
        "statistics_layer_stride": statistics.stride(0),
        "statistics_stride": statistics.stride(1),
        "num_heads": rows.shape[2],
    }
