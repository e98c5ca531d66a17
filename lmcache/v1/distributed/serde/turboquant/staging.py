# SPDX-License-Identifier: Apache-2.0
"""Host tensors encoded and decoded on an accelerator, in bounded memory.

Chunks pass through regions of device memory: while one is worked on, the next one
comes in and the result of the last one goes out. The host waits at the end, and, where
a frame has to be verified, once before the first byte of a tensor is written.
"""

# Standard
from abc import ABC, abstractmethod
from collections.abc import Sequence

# Third Party
import torch

# First Party
from lmcache import torch_dev
from lmcache.v1.distributed.serde.turboquant.checksum import (
    WORD_BYTES,
    add_device_checksum,
)
from lmcache.v1.distributed.serde.turboquant.frame import (
    Container,
    FrameLayout,
    require_checksum,
)
from lmcache.v1.distributed.serde.turboquant.payload import read_payload, write_payload
from lmcache.v1.distributed.serde.turboquant.staging_plan import Step, plan_of
from lmcache.v1.distributed.serde.turboquant.transfers import (
    RING_PARTS,
    Direct,
    Path,
    Ring,
    join,
)
from lmcache.v1.distributed.serde.turboquant.workspace import Region, Workspace

_SMALLEST_PART_BYTES = 1 << 20
"""Bytes of a frame that are sent for verification at once, at least."""


class _Operation(ABC):
    """Chunks that pass through regions of device memory.

    Args:
        workspace: Memory and streams of this thread.
        container: What the object becomes, or became.
        tensors: Bytes of the object's tensors, contiguous uint8.
        buffer: uint8 tensor that starts with the container.
        resident_bytes: Bytes at the start of device memory that no region covers.

    Raises:
        MemoryShortage: If the workspace is too small for a layer.
    """

    def __init__(
        self,
        workspace: Workspace,
        container: Container,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        resident_bytes: int,
    ) -> None:
        self._workspace = workspace
        self._container = container
        self._tensors = tensors
        self._buffer = buffer
        self._plan = plan_of(container, workspace.num_bytes)
        self._regions = workspace.regions(
            resident_bytes,
            self._plan.tensor_bytes,
            self._plan.payload_bytes,
            len(self._plan.steps),
        )
        self._part_bytes = max(self._plan.payload_bytes, _SMALLEST_PART_BYTES)
        self._tensor_path, self._buffer_path = self._paths()

    def _paths(self) -> tuple[Path, Path]:
        """Return the ways of the tensors' bytes and of the buffer's."""
        tensor_ring = RING_PARTS * self._plan.tensor_bytes
        both_rings = tensor_ring + RING_PARTS * self._part_bytes
        workspace = self._workspace
        tensor_path: Path = Direct()
        if not all(workspace.reaches(tensor) for tensor in self._tensors):
            tensor_path = Ring(workspace.pinned(both_rings)[:tensor_ring])
        if workspace.reaches(self._buffer):
            return tensor_path, Direct()
        return tensor_path, Ring(workspace.pinned(both_rings)[tensor_ring:])

    def _pass_through(self) -> None:
        """Queue all chunks; the next one comes in as soon as a region is free."""
        steps, depth = self._plan.steps, len(self._regions)
        for index in range(len(steps) + depth):
            if index >= depth:
                self._go_out(steps[index - depth], self._regions[index % depth])
            if index < len(steps):
                self._come_in(steps[index], self._regions[index % depth])

    @abstractmethod
    def _come_in(self, step: Step, region: Region) -> None:
        """Queue what fills a region, on the inward stream."""

    @abstractmethod
    def _go_out(self, step: Step, region: Region) -> None:
        """Queue what empties a region, on the outward stream."""

    def _tensor_pieces(self, step: Step) -> list[torch.Tensor]:
        """Return a chunk's bytes on the host."""
        return [self._tensors[step.index][span] for span in step.chunk.tensor_spans]

    def _buffer_pieces(self, step: Step) -> list[torch.Tensor]:
        """Return the bytes of a chunk's payload on the host."""
        return [self._buffer[span] for span in step.spans]


class Encoding(_Operation):
    """Host tensors on their way into a host buffer.

    Args:
        workspace: As above.
        container: What the object becomes.
        tensors: Bytes of the object's tensors, contiguous uint8.
        buffer: uint8 tensor of ``container.total_bytes``.

    Raises:
        MemoryShortage: If the workspace is too small for a layer.
    """

    def __init__(
        self,
        workspace: Workspace,
        container: Container,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
    ) -> None:
        super().__init__(workspace, container, tensors, buffer, resident_bytes=0)
        self._header_bytes = None
        if isinstance(container, FrameLayout) and self._plan.has_whole_words:
            self._header_bytes = container.header_bytes
        with torch_dev.stream(workspace.outward):
            self._payload_sum = workspace.zero()

    def run(self, key_fingerprint: int) -> None:
        """Encode. Everything is complete on return.

        Args:
            key_fingerprint: Fingerprint of the object's key.
        """
        self._pass_through()
        with torch_dev.stream(self._workspace.outward):
            self._workspace.fetch(self._payload_sum)
        payload_sum: int | None = self._workspace.fetched()
        self._buffer_path.finish()
        if self._header_bytes is None:
            payload_sum = None
        self._container.seal(self._buffer, key_fingerprint, payload_sum=payload_sum)

    def _come_in(self, step: Step, region: Region) -> None:
        inward = self._workspace.inward
        with torch_dev.stream(inward):
            inward.wait_event(region.emptied)
            target = region.tensor[: step.chunk.tensor_bytes]
            self._tensor_path.send(self._tensor_pieces(step), target)
            region.filled.record(inward)

    def _go_out(self, step: Step, region: Region) -> None:
        outward = self._workspace.outward
        with torch_dev.stream(outward):
            outward.wait_event(region.filled)
            payload = region.payload[: step.chunk.payload_bytes]
            write_payload(region.tensor_of(step.chunk), payload, step.chunk.layout)
            self._add_to_sum(step, payload)
            self._buffer_path.receive(payload, self._buffer_pieces(step))
            region.emptied.record(outward)

    def _add_to_sum(self, step: Step, payload: torch.Tensor) -> None:
        """Add what a chunk's payload contributes to the frame's checksum."""
        if self._header_bytes is None:
            return
        start = 0
        for span in step.spans:
            stop = start + span.stop - span.start
            words = payload[start:stop].view(torch.int32)
            position = (span.start - self._header_bytes) // WORD_BYTES
            add_device_checksum(words, position, self._payload_sum)
            start = stop


class Decoding(_Operation):
    """A host buffer on its way into host tensors.

    A frame of which the device has room for the whole body crosses once; of a larger
    one, the body crosses for verification, and the payloads again.

    Args:
        workspace: As above.
        container: What the object became.
        buffer: uint8 tensor that starts with it.
        tensors: Bytes of the object's tensors, contiguous uint8.

    Raises:
        MemoryShortage: If the workspace is too small for a layer.
    """

    def __init__(
        self,
        workspace: Workspace,
        container: Container,
        buffer: torch.Tensor,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        body_bytes, self._header_bytes = 0, 0
        if isinstance(container, FrameLayout):
            self._header_bytes = container.header_bytes
            body_bytes = container.total_bytes - container.header_bytes
        self._is_resident = 0 < body_bytes <= workspace.num_bytes // 2
        resident_bytes = body_bytes if self._is_resident else 0
        super().__init__(workspace, container, tensors, buffer, resident_bytes)
        self._body = buffer[self._header_bytes :][:body_bytes]
        self._stored_sum: int | None = None

    def run(self, key_fingerprint: int) -> None:
        """Decode. Everything is complete on return.

        The tensors are not touched before a frame has been verified.

        Args:
            key_fingerprint: Fingerprint of the object's key.

        Raises:
            ValueError: If the buffer is not what the container describes.
        """
        self._stored_sum = self._container.check(self._buffer, key_fingerprint)
        if self._stored_sum is not None:
            with torch_dev.stream(self._workspace.inward):
                self._workspace.fetch(self._send_body())
        self._pass_through()
        self._verify()
        self._tensor_path.finish()
        self._workspace.outward.synchronize()

    def _send_body(self) -> torch.Tensor:
        """Send a frame's body to the device; return its checksum, an int64 number."""
        size, total = self._body.numel(), self._workspace.zero()
        at_once = self._is_resident and isinstance(self._buffer_path, Direct)
        largest = min(self._part_bytes, self._workspace.num_bytes)
        part_bytes = size if at_once else largest
        for start in range(0, size, part_bytes):
            piece = self._body[start : start + part_bytes]
            offset = start if self._is_resident else 0
            target = self._workspace.memory(offset, piece.numel())
            self._buffer_path.send([piece], target)
            words = target.view(torch.int32)
            add_device_checksum(words, start // WORD_BYTES, total)
        return total

    def _verify(self) -> None:
        """Wait for the checksum of the body, once."""
        if self._stored_sum is not None:
            found = self._workspace.fetched() % 2**64
            require_checksum(self._stored_sum, found)
            self._stored_sum = None

    def _come_in(self, step: Step, region: Region) -> None:
        inward = self._workspace.inward
        with torch_dev.stream(inward):
            inward.wait_event(region.emptied)
            payload = self._payload_on_device(step, region)
            read_payload(payload, region.tensor_of(step.chunk), step.chunk.layout)
            region.filled.record(inward)

    def _go_out(self, step: Step, region: Region) -> None:
        self._verify()
        outward = self._workspace.outward
        with torch_dev.stream(outward):
            outward.wait_event(region.filled)
            result = region.tensor[: step.chunk.tensor_bytes]
            self._tensor_path.receive(result, self._tensor_pieces(step))
            region.emptied.record(outward)

    def _payload_on_device(self, step: Step, region: Region) -> torch.Tensor:
        """Return a chunk's payload in device memory."""
        payload = region.payload[: step.chunk.payload_bytes]
        if not self._is_resident:
            self._buffer_path.send(self._buffer_pieces(step), payload)
            return payload
        body = self._workspace.memory(0, self._body.numel())
        start = self._header_bytes
        parts = [body[span.start - start : span.stop - start] for span in step.spans]
        return parts[0] if len(parts) == 1 else join(parts, payload)
