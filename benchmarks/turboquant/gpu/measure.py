# SPDX-License-Identifier: Apache-2.0
"""Time codecs on GPU tensors and on host tensors.

``python -m benchmarks.turboquant.gpu.measure CODEC FILE`` appends a JSON line for
each measurement. It runs with whatever LMCache is on PYTHONPATH.
"""

# Standard
from collections.abc import Callable, Iterator
from pathlib import Path
import json
import statistics
import sys
import time

# Third Party
import torch

# First Party
from benchmarks.turboquant.gpu.codecs import Codec, codecs_of

SHAPES = {
    (2, 4, 512, 1024): torch.float16,
    (2, 32, 256, 1024): torch.bfloat16,
    (2, 80, 256, 1024): torch.bfloat16,
    (2, 32, 2048, 1024): torch.bfloat16,
}
PLACES = ("resident", "pinned", "pageable")

_SECONDS = 0.25
_FEWEST, _MOST = 5, 300


def main(name: str, output: Path) -> None:
    """Measure all cases of one codec.

    Args:
        name: The codec.
        output: File to append to.
    """
    with output.open("a", encoding="utf-8") as lines:
        for shape, dtype in SHAPES.items():
            for codec in codecs_of(name):
                for place in PLACES:
                    for row in _measure(codec, shape, dtype, place):
                        print(json.dumps(row), file=lines, flush=True)
                    print(codec.name, codec.preset, shape, place, flush=True)


def samples(function: Callable[[], object]) -> list[float]:
    """Return seconds that calls of a function take, after a few without a clock."""
    for _ in range(3):
        function()
    times: list[float] = []
    while len(times) < _FEWEST or (sum(times) < _SECONDS and len(times) < _MOST):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return times


def _measure(
    codec: Codec, shape: tuple[int, ...], dtype: torch.dtype, place: str
) -> Iterator[dict[str, object]]:
    """Yield a row for encoding and one for decoding."""
    generator = torch.Generator().manual_seed(1)
    original = torch.randn(shape, generator=generator).to(dtype)
    tensor = _placed(original, place)
    num_bytes = codec.payload_bytes(tensor)
    payload = _placed(torch.zeros(num_bytes, dtype=torch.uint8), place)
    restored = torch.zeros_like(tensor, pin_memory=place == "pinned")
    codec.encode(tensor, payload)
    codec.decode(payload, restored)
    _check(codec, original, restored.cpu())
    operations = {
        "encode": lambda: codec.encode(tensor, payload),
        "decode": lambda: codec.decode(payload, restored),
    }
    for operation, function in operations.items():
        times = samples(function)
        quarters = statistics.quantiles(times, n=4)
        yield {
            "codec": codec.name,
            "preset": codec.preset,
            "shape": "x".join(map(str, shape)),
            "dtype": str(dtype).removeprefix("torch."),
            "place": place,
            "operation": operation,
            "raw_bytes": tensor.nbytes,
            "payload_bytes": num_bytes,
            "rounds": len(times),
            "median_us": quarters[1] * 1e6,
            "spread_us": (quarters[2] - quarters[0]) * 1e6,
            "least_us": min(times) * 1e6,
        }


def _placed(tensor: torch.Tensor, place: str) -> torch.Tensor:
    """Copy a tensor to where it is to be."""
    if place == "resident":
        return tensor.cuda()
    return tensor.pin_memory() if place == "pinned" else tensor.clone()


def _check(codec: Codec, original: torch.Tensor, restored: torch.Tensor) -> None:
    """Raise RuntimeError if a codec does not restore what it was given."""
    exact, found = original.float(), restored.float()
    error = float((found - exact).square().sum() / exact.square().sum())
    if not 0 < error < codec.largest_error:
        raise RuntimeError(
            f"{codec.name} {codec.preset}: relative error {error}, expected less than "
            f"{codec.largest_error}"
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
