# SPDX-License-Identifier: Apache-2.0
"""Copies between host and accelerator that the host does not wait for.

Page-locked memory is copied as it is. Other memory goes through a ring of pinned
parts, as a device can only reach it by way of the host.
"""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Third Party
import torch

# First Party
from lmcache import torch_dev

RING_PARTS = 2
"""Parts of a ring: the host works on one while the device works on the other."""


@dataclass
class _Part:
    """Pinned memory, and what has to be done before it can be used again.

    Attributes:
        memory: The memory.
        done: Event recorded after the last copy from or to it.
        pending: Pageable memory that waits for the bytes in ``memory``.
    """

    memory: torch.Tensor
    done: Any
    pending: list[torch.Tensor] = field(default_factory=list)

    def wait(self) -> None:
        """Wait for the last copy, and pass its bytes on."""
        self.done.synchronize()
        start = 0
        for piece in self.pending:
            piece.copy_(self.memory[start : start + piece.numel()])
            start += piece.numel()
        self.pending = []


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

    def send(self, pieces: Sequence[torch.Tensor], target: torch.Tensor) -> None:
        """Copy host memory to the device, on the current stream.

        Args:
            pieces: uint8 host tensors.
            target: uint8 device tensor of all their bytes.
        """
        part = self._next()
        source = part.memory[: target.numel()]
        join(pieces, source)
        target.copy_(source, non_blocking=True)
        part.done.record()

    def receive(self, source: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        """Copy device memory to the host, on the current stream.

        Args:
            source: uint8 device tensor.
            pieces: uint8 host tensors of all its bytes, complete after ``finish``.
        """
        part = self._next()
        part.memory[: source.numel()].copy_(source, non_blocking=True)
        part.done.record()
        part.pending = list(pieces)

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


class Direct:
    """Page-locked memory that the accelerator reaches itself."""

    def send(self, pieces: Sequence[torch.Tensor], target: torch.Tensor) -> None:
        """Copy host memory to the device; see :meth:`Ring.send`."""
        join(pieces, target)

    def receive(self, source: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
        """Copy device memory to the host; see :meth:`Ring.receive`."""
        start = 0
        for piece in pieces:
            stop = start + piece.numel()
            piece.copy_(source[start:stop], non_blocking=True)
            start = stop

    def finish(self) -> None:
        """Do nothing: the stream knows when the bytes are there."""


Path = Ring | Direct
"""How bytes get from host memory to an accelerator, or back."""


def join(pieces: Sequence[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Copy pieces into one tensor, one after another.

    Args:
        pieces: uint8 tensors.
        target: uint8 tensor of all their bytes.

    Returns:
        ``target``.
    """
    start = 0
    for piece in pieces:
        stop = start + piece.numel()
        target[start:stop].copy_(piece, non_blocking=True)
        start = stop
    return target
