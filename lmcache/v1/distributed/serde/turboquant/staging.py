# SPDX-License-Identifier: Apache-2.0
"""Host tensors encoded and decoded on an accelerator, in bounded memory.

Chunks pass through regions of device memory: while one is worked on, the next one
comes in and the result of the last one goes out. The host waits at the end, and, where
a frame has to be verified, once before the first byte of a tensor is written.
"""

# Standard
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.container import Container
from lmcache.v1.distributed.serde.turboquant.effort import PLAIN, Effort
from lmcache.v1.distributed.serde.turboquant.launches import Launch
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.payload import runs_on_gpu
from lmcache.v1.distributed.serde.turboquant.staging_plan import Step, plan_of
from lmcache.v1.distributed.serde.turboquant.transfers import (
    RING_PARTS,
    Direct,
    Path,
    Ring,
)
from lmcache.v1.distributed.serde.turboquant.workspace import Region, Workspace

_SMALLEST_PART_BYTES = 1 << 20
"""Bytes of a frame that are sent for verification at once, at least."""


@dataclass(frozen=True)
class Stage:
    """A chunk in its region.

    Attributes:
        step: The chunk.
        region: Where it is on the device.
        tensor: Its layers as a tensor, in the region.
        payload: uint8 device memory of its payload.
    """

    step: Step
    region: Region
    tensor: torch.Tensor
    payload: torch.Tensor

    @property
    def layout(self) -> PayloadLayout:
        """Layout of the chunk as a tensor of its own."""
        return self.step.chunk.layout

    def launch(self, work: Callable[[], None], effort: Effort = PLAIN) -> Launch:
        """Return the launch of ``work``, of an effort, on this stage's memory."""
        is_on_gpu = runs_on_gpu(self.tensor, self.payload, self.layout, effort)
        return Launch(work, is_recordable=is_on_gpu)


class Operation(ABC):
    """Objects of one layout that pass through a workspace, one after another.

    Args:
        workspace: Memory and streams of this thread.
        container: What the objects become, or became.
        resident_bytes: Bytes at the start of device memory that no region covers.

    Raises:
        MemoryShortage: If the workspace is too small for a layer.
    """

    def __init__(
        self, workspace: Workspace, container: Container, resident_bytes: int
    ) -> None:
        self._workspace = workspace
        self._container = container
        self._plan = plan_of(container, workspace.num_bytes)
        self._part_bytes = max(self._plan.payload_bytes, _SMALLEST_PART_BYTES)
        steps = self._plan.steps
        regions = workspace.regions(
            resident_bytes,
            self._plan.tensor_bytes,
            self._plan.payload_bytes,
            len(steps),
        )
        self._depth = len(regions)
        self._stages = [
            self._stage(step, regions[index % self._depth])
            for index, step in enumerate(steps)
        ]

    def _stage(self, step: Step, region: Region) -> Stage:
        """Place a chunk in a region."""
        payload = region.payload[: step.chunk.payload_bytes]
        return Stage(step, region, region.tensor_of(step.chunk), payload)

    def _choose_paths(
        self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor
    ) -> None:
        """Find out how the bytes of the tensors and of the buffer cross."""
        tensor_ring = RING_PARTS * self._plan.tensor_bytes
        both_rings = tensor_ring + RING_PARTS * self._part_bytes
        self._tensors, self._buffer = tensors, buffer
        self._tensor_path = self._path(tensors, both_rings, slice(tensor_ring))
        self._buffer_path = self._path([buffer], both_rings, slice(tensor_ring, None))

    def _path(
        self, tensors: Sequence[torch.Tensor], ring_bytes: int, ring: slice
    ) -> Path:
        """Return how the bytes of some host tensors cross.

        Args:
            tensors: The tensors.
            ring_bytes: Pinned memory of all rings.
            ring: What of it is for these tensors, where they need a ring.

        Returns:
            The path.
        """
        seams: list[int] = []
        for tensor in tensors:
            found = self._workspace.seams(tensor)
            if found is None:
                return Ring(self._workspace.pinned(ring_bytes)[ring])
            seams += found
        return Direct(seams)

    def _pass_through(self) -> None:
        """Queue all chunks; the next one comes in as soon as a region is free."""
        for index in range(len(self._stages) + self._depth):
            if index >= self._depth:
                self._go_out(index - self._depth)
            if index < len(self._stages):
                self._come_in(index)

    @abstractmethod
    def _come_in(self, index: int) -> None:
        """Queue what fills a stage's region, on the inward stream."""

    @abstractmethod
    def _go_out(self, index: int) -> None:
        """Queue what empties it, on the outward stream."""
