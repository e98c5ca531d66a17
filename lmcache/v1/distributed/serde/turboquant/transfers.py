# SPDX-License-Identifier: Apache-2.0
"""Copies between host and accelerator that the host does not wait for.

Page-locked memory is copied as it is. Other memory goes through a ring of pinned
parts, as a device can only reach it by way of the host.
"""

# Standard
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

# Third Party
import torch

# First Party
from lmcache import torch_dev
from lmcache.v1.distributed.serde.turboquant.accelerators import cuda_runtime

RING_PARTS = 2
"""Parts of a ring: the host works on one while the device works on the other."""

Spans = Sequence[slice]
"""Byte ranges of a host tensor, which lie one after another on the device."""


class Direct:
    """Page-locked memory that the accelerator reaches itself.

    Args:
        seams: Addresses at which one region of it ends and another begins; no copy
            crosses them.
    """

    def __init__(self, seams: Sequence[int] = ()) -> None:
        self._seams = sorted(seams)

    def send(
        self, host: torch.Tensor, spans: Spans, target: torch.Tensor, stream: Any
    ) -> None:
        """Queue a copy of host memory to the device.

        Args:
            host: uint8 host tensor.
            spans: What to copy of it.
            target: uint8 device tensor of as many bytes.
            stream: Stream to queue the copy on.
        """
        for span, place in _pairs(self._unseamed(host, spans)):
            _copy(host, span, target, place, stream)

    def receive(
        self, source: torch.Tensor, host: torch.Tensor, spans: Spans, stream: Any
    ) -> None:
        """Queue a copy of device memory to the host.

        Args:
            source: uint8 device tensor.
            host: uint8 host tensor.
            spans: Where in it the bytes of ``source`` belong.
            stream: Stream to queue the copy on.
        """
        for span, place in _pairs(self._unseamed(host, spans)):
            _copy(source, place, host, span, stream)

    def finish(self) -> None:
        """Do nothing: the stream knows when the bytes are there."""

    def _unseamed(self, host: torch.Tensor, spans: Spans) -> Spans:
        """Divide ranges where a seam lies in them."""
        if not self._seams:
            return spans
        seams = [seam - host.data_ptr() for seam in self._seams]
        parts: list[slice] = []
        for span in spans:
            inside = (seam for seam in seams if span.start < seam < span.stop)
            edges = pairwise((span.start, *inside, span.stop))
            parts += (slice(start, stop) for start, stop in edges)
        return parts


@dataclass
class _Part:
    """Pinned memory, and what has to be done before it can be used again.

    Attributes:
        memory: The memory.
        done: Event recorded after the last copy from or to it.
        host: Pageable memory that waits for the bytes in ``memory``.
        spans: Where in it they belong.
    """

    memory: torch.Tensor
    done: Any
    host: torch.Tensor | None = None
    spans: Spans = ()

    def wait(self) -> None:
        """Wait for the last copy, and pass its bytes on."""
        self.done.synchronize()
        if self.host is not None:
            for span, place in _pairs(self.spans):
                self.host[span] = self.memory[place]
        self.host = None


class Ring:
    """Pinned memory between pageable memory and an accelerator, for one direction.

    Args:
        memory: Pinned uint8 tensor; a transfer takes at most half of it.
    """

    def __init__(self, memory: torch.Tensor) -> None:
        size = memory.numel() // RING_PARTS
        self._parts = [
            _Part(memory[index * size : (index + 1) * size], torch_dev.Event())
            for index in range(RING_PARTS)
        ]
        self._direct = Direct()

    def send(
        self, host: torch.Tensor, spans: Spans, target: torch.Tensor, stream: Any
    ) -> None:
        """Queue a copy of host memory to the device; see :meth:`Direct.send`."""
        part = self._next()
        for span, place in _pairs(spans):
            part.memory[place] = host[span]
        self._direct.send(part.memory, [slice(0, target.numel())], target, stream)
        part.done.record(stream)

    def receive(
        self, source: torch.Tensor, host: torch.Tensor, spans: Spans, stream: Any
    ) -> None:
        """Queue a copy of device memory; the bytes are there after ``finish``."""
        part = self._next()
        self._direct.receive(source, part.memory, [slice(0, source.numel())], stream)
        part.done.record(stream)
        part.host, part.spans = host, spans

    def finish(self) -> None:
        """Wait until everything received is where it belongs."""
        for part in self._parts:
            part.wait()

    def _next(self) -> _Part:
        """Return the part that was used longest ago, free again."""
        part = self._parts.pop(0)
        part.wait()
        self._parts.append(part)
        return part


Path = Ring | Direct
"""How bytes get from host memory to an accelerator, or back."""


def _pairs(spans: Spans) -> Iterator[tuple[slice, slice]]:
    """Pair each range with where its bytes are when all lie one after another."""
    start = 0
    for span in spans:
        stop = start + span.stop - span.start
        yield span, slice(start, stop)
        start = stop


def _copy(
    source: torch.Tensor, span: slice, target: torch.Tensor, place: slice, stream: Any
) -> None:
    """Queue a copy of ``source[span]`` to ``target[place]``, one of them on a device.

    The driver is asked directly where that is possible: to slice both tensors and
    to make the stream the current one takes longer than the call itself.
    """
    if cuda_runtime is None or (source.is_cpu and target.is_cpu):
        with torch_dev.stream(stream):
            target[place].copy_(source[span], non_blocking=True)
        return
    to_device = cuda_runtime.memcpyHostToDevice
    to_host = cuda_runtime.memcpyDeviceToHost
    cuda_runtime.memcpyAsync(
        target.data_ptr() + place.start,
        source.data_ptr() + span.start,
        span.stop - span.start,
        to_device if source.is_cpu else to_host,
        stream.cuda_stream,
    )
