# SPDX-License-Identifier: Apache-2.0
"""Measure how far both sides of an exchange are apart."""

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables
from tests.v1.distributed.serde.turboquant.interchange.bounds import (
    key_row_bound,
    key_row_floor,
    value_bounds,
)
from tests.v1.distributed.serde.turboquant.interchange.cases import Case
from tests.v1.distributed.serde.turboquant.interchange.exchange import (
    Exchange,
)


def heads(tensor: torch.Tensor, case: Case) -> torch.Tensor:
    """View the compressed layers of a KV tensor head by head.

    Args:
        tensor: KV tensor ``[2, layers, tokens, heads * head_dim]``.
        case: The tensor's case.

    Returns:
        float64 tensor ``[2, compressed layers, tokens, heads, head_dim]``.
    """
    layers = case.compressed_layers
    compressed = tensor[:, layers.start : layers.stop]
    return compressed.unflatten(-1, (case.heads, case.head_dim)).double()


def key_misses(
    exchange: Exchange, ours: torch.Tensor, upstream: torch.Tensor
) -> torch.Tensor:
    """Return the distances of restored keys, over their bounds.

    Args:
        exchange: Where the KV tensors come from.
        ours: KV tensor restored by us.
        upstream: KV tensor restored by upstream.

    Returns:
        float64 tensor ``[compressed layers, tokens, heads]``; at most 1 where
        both are right.
    """
    case = exchange.case
    our_keys, keys = heads(ours, case)[0], heads(upstream, case)[0]
    distances = torch.linalg.vector_norm(our_keys - keys, dim=-1)
    relative = 0.0
    if not case.config.key_fp8:
        relative = key_row_bound(case.dtype, table_error(exchange))
    norms = torch.linalg.vector_norm(keys, dim=-1)
    return distances / (relative * norms + key_row_floor(case.head_dim))


def value_misses(
    exchange: Exchange, ours: torch.Tensor, upstream: torch.Tensor
) -> torch.Tensor:
    """Return the differences of restored values, over their bounds.

    Args:
        exchange: Where the KV tensors come from.
        ours: KV tensor restored by us.
        upstream: KV tensor restored by upstream.

    Returns:
        float64 tensor ``[compressed layers, tokens, heads, head_dim]``; at
        most 1 where both are right.
    """
    case = exchange.case
    our_values, values = heads(ours, case)[1], heads(upstream, case)[1]
    return (our_values - values).abs() / value_bounds(values, case.dtype)


def boundaries(exchange: Exchange) -> np.ndarray:
    """Return our boundaries and upstream's, as float64 ``[2, boundaries]``.

    Raises:
        ValueError: If the keys of the exchange are float8.
    """
    if exchange.upstream_boundaries is None:
        raise ValueError(f"{exchange.case.name}: float8 keys have no boundaries")
    config = exchange.case.config
    ours = tables.boundaries(config.head_dim, config.key_quant_bits)
    return torch.stack([ours, exchange.upstream_boundaries]).double().numpy()


def table_error(exchange: Exchange) -> float:
    """Return the largest difference of the codebooks, in standard deviations.

    Raises:
        ValueError: If the keys of the exchange are float8.
    """
    if exchange.upstream_centroids is None:
        raise ValueError(f"{exchange.case.name}: float8 keys have no codebook")
    config = exchange.case.config
    ours = tables.centroids(config.head_dim, config.key_quant_bits)
    differences = (ours.double() - exchange.upstream_centroids.double()).abs()
    return differences.max().item() * config.head_dim**0.5


def ulps_apart(ours: np.ndarray, upstream: np.ndarray) -> int:
    """Return the largest distance of float16 numbers, in units in the last place.

    Args:
        ours: float16 array.
        upstream: float16 array of the same shape.

    Returns:
        The largest number of steps from one float16 to the next between a pair.
    """
    ordered = []
    for numbers in (ours, upstream):
        magnitudes = np.abs(numbers).view(np.int16).astype(np.int64)
        ordered.append(np.where(np.signbit(numbers), -magnitudes, magnitudes))
    return int(np.abs(ordered[0] - ordered[1]).max())


def steps_apart(ours: np.ndarray, upstream: np.ndarray) -> int:
    """Return the largest difference of two arrays of codes."""
    return int(np.abs(ours.astype(np.int64) - upstream.astype(np.int64)).max())
