# SPDX-License-Identifier: Apache-2.0
"""How much a model's work on the default stream slows while the serde runs."""

# Standard
import statistics
import threading

# Third Party
import torch

# First Party
from benchmarks.turboquant.gpu.codecs import FORK, Codec, codecs_of

_SHAPE = (2, 80, 256, 1024)
_PRODUCTS = 200
_REPLAYS = 40


def slowdowns() -> list[dict[str, object]]:
    """Return for each preset how much longer the products take, in per cent."""
    products = _Products()
    rows = []
    for codec in codecs_of(FORK):
        alone = products.milliseconds()
        begun, stop = threading.Event(), threading.Event()
        worker = threading.Thread(target=_run_flat_out, args=(codec, begun, stop))
        worker.start()
        begun.wait(timeout=60)
        beside = products.milliseconds()
        stop.set()
        worker.join()
        alone = (alone + products.milliseconds()) / 2
        rows.append(
            {
                "preset": codec.preset,
                "alone_ms": alone,
                "beside_ms": beside,
                "slowdown_percent": 100 * (beside / alone - 1),
            }
        )
    return rows


class _Products:
    """Matrix products as of a decoding step: few rows, all weights read."""

    def __init__(self) -> None:
        self._rows = torch.randn(64, 8192, dtype=torch.bfloat16, device="cuda")
        self._weights = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
        self._out = torch.empty_like(self._rows)
        self._multiply()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(_PRODUCTS):
                self._multiply()

    def _multiply(self) -> None:
        torch.mm(self._rows, self._weights, out=self._out)

    def milliseconds(self) -> float:
        """Return the median time of all products on the default stream."""
        times = []
        for _ in range(_REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self._graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def _run_flat_out(codec: Codec, begun: threading.Event, stop: threading.Event) -> None:
    """Encode and decode pinned tensors without a pause, once compiled."""
    tensor = torch.randn(_SHAPE).bfloat16().pin_memory()
    payload = torch.zeros(codec.payload_bytes(tensor), dtype=torch.uint8).pin_memory()
    while not stop.is_set():
        codec.encode(tensor, payload)
        codec.decode(payload, tensor)
        begun.set()
