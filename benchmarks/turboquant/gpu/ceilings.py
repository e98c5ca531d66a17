# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at most: copy rates, and kernels without anything else."""

# Standard
from collections.abc import Callable, Sequence
from functools import partial
import statistics

# Third Party
import torch

# First Party
from benchmarks.turboquant.gpu.codecs import CALIBRATED_PRESETS, PRESETS
from benchmarks.turboquant.gpu.measure import SHAPES
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.kernels import gpu
from lmcache.v1.distributed.serde.turboquant.kv_layout import kv_views
from lmcache.v1.distributed.serde.turboquant.layout import layouts_of

_ROUNDS = 30
_CACHE_BYTES = 300 << 20
"""Buffers in turn are more than a GPU's cache can keep."""


def device_microseconds(functions: Sequence[Callable[[], object]]) -> list[float]:
    """Time work on the device alone, replayed from a graph.

    Args:
        functions: The same work on different buffers, so that no cache helps.

    Returns:
        Microseconds that one of them took, in each round.
    """
    for function in functions:
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for function in functions:
            function()
    times = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(functions))
    return times


def ceilings() -> dict[str, float]:
    """Measure copy rates in bytes a second; the device's counts reads and writes."""
    big = torch.zeros(1 << 31, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(big)
    device = 2 * big.numel() / _seconds(lambda: out.copy_(big))
    part = big[: 256 << 20]
    host = torch.zeros(part.numel(), dtype=torch.uint8, pin_memory=True)
    return {
        "device_copy": device,
        "host_to_device": part.numel()
        / _seconds(lambda: part.copy_(host, non_blocking=True)),
        "device_to_host": part.numel()
        / _seconds(lambda: host.copy_(part, non_blocking=True)),
    }


def kernel_rows() -> list[dict[str, object]]:
    """Time the kernels of resident tensors without codec, checksum and launch."""
    rows = []
    for shape, dtype in SHAPES.items():
        for preset in PRESETS + CALIBRATED_PRESETS:
            encoders, decoders, sizes = _kernel_calls(preset, shape, dtype)
            for operation, calls in (("encode", encoders), ("decode", decoders)):
                times = device_microseconds(calls)
                quarters = statistics.quantiles(times, n=4)
                rows.append(
                    {
                        "codec": "turboquant",
                        "preset": preset,
                        "shape": "x".join(map(str, shape)),
                        "dtype": str(dtype).removeprefix("torch."),
                        "place": "kernels",
                        "operation": operation,
                        "raw_bytes": sizes[0],
                        "payload_bytes": sizes[1],
                        "rounds": len(times),
                        "median_us": quarters[1],
                        "spread_us": quarters[2] - quarters[0],
                        "least_us": min(times),
                    }
                )
    return rows


def _kernel_calls(preset: str, shape: tuple[int, ...], dtype: torch.dtype):
    """Return calls that encode and decode different buffers, and their sizes."""
    config = TurboQuantSerdeConfig(
        preset=preset, framed=True, skip_first_layers=0, skip_last_layers=0
    )
    description = MemoryLayoutDesc([torch.Size(shape)], [dtype])
    (layout,) = layouts_of(description, config)
    raw_bytes = layout.raw_layer_bytes * layout.geometry.num_layers
    count = max(2, -(-_CACHE_BYTES // raw_bytes))
    encoders, decoders = [], []
    for _ in range(count):
        tensor = torch.randn(shape, dtype=dtype, device="cuda")
        payload = torch.zeros(layout.payload_bytes, dtype=torch.uint8, device="cuda")
        views = kv_views(tensor, layout.geometry)
        slots = payload[layout.slots_span].view(layout.compressed_shape)
        table = layout.side_table.parts(payload[layout.side_table_span])
        if not gpu.supports(views, slots, layout.slot):
            raise RuntimeError(f"No kernel for {preset} of {shape}")
        rest = (layout.slot, 0, table)
        encoders.append(partial(gpu.encode_layers, views, slots, *rest))
        decoders.append(partial(gpu.decode_layers, slots, views, *rest))
    return encoders, decoders, (raw_bytes, layout.payload_bytes)


def _seconds(function: Callable[[], object]) -> float:
    """Return the median time of work on the current stream."""
    times = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)
