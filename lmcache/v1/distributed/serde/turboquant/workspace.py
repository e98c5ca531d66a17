# SPDX-License-Identifier: Apache-2.0
"""What one worker thread keeps on an accelerator: memory, streams, pinned memory."""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Third Party
import torch

# First Party
from lmcache import torch_dev
from lmcache.v1.distributed.serde.turboquant.accelerators import MemoryShortage
from lmcache.v1.distributed.serde.turboquant.chunks import Chunk
from lmcache.v1.distributed.serde.turboquant.page_locked import seams

ALIGNMENT_BYTES = 256
"""Regions of device memory start at multiples of it, as whole allocations do."""


@dataclass(frozen=True)
class Region:
    """A part of device memory that chunks pass through, one after another.

    Attributes:
        tensor: uint8 device memory of a chunk's layers.
        payload: uint8 device memory of its payload.
        filled: Event recorded when a chunk has come in.
        emptied: Event recorded when its result has left.
    """

    tensor: torch.Tensor
    payload: torch.Tensor
    filled: Any
    emptied: Any

    def tensor_of(self, chunk: Chunk) -> torch.Tensor:
        """Return a chunk's layers as the tensor that its layout describes."""
        layout = chunk.layout
        return self.tensor[: chunk.tensor_bytes].view(layout.dtype).view(layout.shape)


class Workspace:
    """Device memory and streams of one thread.

    Attributes:
        device: The accelerator.
        inward: Stream of what comes in.
        outward: Stream of what goes out.
        total: int64 number on the device, for the checksum of the object at work.

    Args:
        device: The accelerator.
        num_bytes: Device memory to ask for, and most pinned memory to use.

    Raises:
        MemoryShortage: If the accelerator has not even a sixteenth of it left.
    """

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        self.device = device
        self._memory = _allocate(device, num_bytes)
        self._pinned = torch.empty(0, dtype=torch.uint8)
        self.total = torch.zeros((), dtype=torch.int64, device=device)
        self._number = torch.zeros((), dtype=torch.int64, pin_memory=_is_real(device))
        self._number_is_here = torch_dev.Event()
        self._events: list[Any] = []
        with torch_dev.device(device):
            self.inward = torch_dev.Stream(device)
            self.outward = torch_dev.Stream(device)

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory."""
        return self._memory.numel()

    def memory(self, start: int, num_bytes: int) -> torch.Tensor:
        """Return ``num_bytes`` of device memory from ``start`` on."""
        return self._memory[start : start + num_bytes]

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return page-locked host memory, the same at every call.

        Args:
            num_bytes: Bytes wanted; more than ever before are allocated anew.

        Returns:
            uint8 tensor.
        """
        if self._pinned.numel() < num_bytes:
            self._pinned = torch.empty(
                num_bytes, dtype=torch.uint8, pin_memory=_is_real(self.device)
            )
        return self._pinned[:num_bytes]

    def regions(
        self, start: int, tensor_bytes: int, payload_bytes: int, limit: int
    ) -> list[Region]:
        """Divide device memory into regions.

        Args:
            start: Offset of the first one.
            tensor_bytes: Bytes of the largest chunk.
            payload_bytes: Bytes of the largest payload of a chunk.
            limit: Most regions that are of use.

        Returns:
            The regions, as many as there is room for.

        Raises:
            MemoryShortage: If there is room for none.
        """
        if not limit:
            return []
        first = aligned(start)
        tensor_bytes, payload_bytes = aligned(tensor_bytes), aligned(payload_bytes)
        step = tensor_bytes + payload_bytes
        count = min(limit, (self.num_bytes - first) // step)
        if count < 1:
            raise MemoryShortage(
                f"TurboQuant needs {first + step} bytes to stage a layer on "
                f"{self.device}, got {self.num_bytes}: raise staging_mib"
            )
        while len(self._events) < 2 * count:
            self._events.append(torch_dev.Event())
        return [
            Region(
                tensor=self.memory(begin, tensor_bytes),
                payload=self.memory(begin + tensor_bytes, payload_bytes),
                filled=self._events[2 * index],
                emptied=self._events[2 * index + 1],
            )
            for index, begin in enumerate(range(first, first + count * step, step))
        ]

    def seams(self, tensor: torch.Tensor) -> list[int] | None:
        """Find out whether the accelerator can copy from and to a host tensor itself.

        Args:
            tensor: Contiguous host tensor.

        Returns:
            Addresses that no copy may cross; None if the accelerator cannot.
        """
        return seams(tensor) if _is_real(self.device) else None

    @contextmanager
    def settled_on_error(self) -> Iterator[None]:
        """Leave no copy in flight where an error ends what is done inside.

        Whoever catches it may reuse the host memory at once.
        """
        try:
            yield
        except BaseException:
            self.inward.synchronize()
            self.outward.synchronize()
            raise

    def fetch_total(self) -> None:
        """Queue the copy of ``total`` to the host, on the current stream."""
        self._number.copy_(self.total, non_blocking=True)
        self._number_is_here.record()

    def fetched_total(self) -> int:
        """Wait for the total that was fetched last, and return it."""
        self._number_is_here.synchronize()
        return int(self._number)


def aligned(num_bytes: int) -> int:
    """Round up to a multiple of ``ALIGNMENT_BYTES``."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _is_real(device: torch.device) -> bool:
    """Return whether a device has memory of its own; tests stage on the CPU."""
    return device.type != "cpu"


def _allocate(device: torch.device, num_bytes: int) -> torch.Tensor:
    """Allocate device memory; halve the size until there is enough."""
    for size in (num_bytes >> halvings for halvings in range(5)):
        try:
            return torch.empty(size, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            continue
    raise MemoryShortage(
        f"TurboQuant needs {num_bytes} bytes to stage host tensors on {device}, and "
        f"not even {num_bytes >> 4} are free"
    )
