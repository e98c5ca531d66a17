# SPDX-License-Identifier: Apache-2.0
"""Host tensors decoded on an accelerator, chunk by chunk."""

# Standard
from collections.abc import Sequence
from functools import partial

# Third Party
import torch

# First Party
from lmcache import torch_dev
from lmcache.v1.distributed.serde.turboquant.checksum import (
    WORD_BYTES,
    add_device_checksum,
)
from lmcache.v1.distributed.serde.turboquant.container import Container
from lmcache.v1.distributed.serde.turboquant.device import has_kernels
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout, require_checksum
from lmcache.v1.distributed.serde.turboquant.launches import Launch
from lmcache.v1.distributed.serde.turboquant.payload import read_payload
from lmcache.v1.distributed.serde.turboquant.staging import Operation, Stage
from lmcache.v1.distributed.serde.turboquant.staging_plan import Step
from lmcache.v1.distributed.serde.turboquant.transfers import Direct
from lmcache.v1.distributed.serde.turboquant.workspace import Region, Workspace


class Decoding(Operation):
    """Host buffers on their way into host tensors.

    A frame of which the device has room for the whole body crosses once; of a larger
    one, the body crosses for verification, and the payloads again.

    Args:
        workspace: Memory and streams of this thread.
        container: What the objects became.

    Raises:
        MemoryShortage: If the workspace is too small for a layer.
    """

    def __init__(self, workspace: Workspace, container: Container) -> None:
        self._start, body_bytes = container.body_start, 0
        if isinstance(container, FrameLayout):
            body_bytes = container.total_bytes - self._start
        self._body_bytes = body_bytes
        self._is_resident = 0 < body_bytes <= workspace.num_bytes // 2
        resident_bytes = body_bytes if self._is_resident else 0
        self._body = workspace.memory(0, resident_bytes)
        super().__init__(workspace, container, resident_bytes)
        self._launches = [
            stage.launch(partial(_decode, stage, self._scattered(stage.step)))
            for stage in self._stages
        ]
        words = self._body.view(torch.int32)
        add_body = partial(add_device_checksum, words, 0, workspace.total)
        self._sum_up = Launch(add_body, is_recordable=has_kernels())

    def run(
        self,
        buffer: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        key_fingerprint: int,
    ) -> None:
        """Decode an object. Everything is complete on return.

        Args:
            buffer: uint8 tensor that starts with what it became.
            tensors: Bytes of its tensors, contiguous uint8; not touched before a frame
                has been verified.
            key_fingerprint: Fingerprint of its key.

        Raises:
            ValueError: If the buffer is not what the container describes.
        """
        self._stored_sum = self._container.check(buffer, key_fingerprint)
        self._choose_paths(tensors, buffer)
        with torch_dev.stream(self._workspace.inward):
            if self._stored_sum is not None:
                self._send_body()
                self._workspace.fetch_total()
            self._pass_through()
        self._verify()
        self._tensor_path.finish()
        self._workspace.outward.synchronize()

    def _stage(self, step: Step, region: Region) -> Stage:
        stage = super()._stage(step, region)
        if not self._is_resident or len(step.spans) > 1:
            return stage
        (span,) = step.spans
        payload = self._body[span.start - self._start : span.stop - self._start]
        return Stage(step, region, stage.tensor, payload)

    def _scattered(self, step: Step) -> list[torch.Tensor]:
        """Return the parts of a resident body that a payload is gathered from."""
        if not self._is_resident or len(step.spans) == 1:
            return []
        return [
            self._body[span.start - self._start : span.stop - self._start]
            for span in step.spans
        ]

    def _send_body(self) -> None:
        """Send a frame's body to the device, and sum it up there."""
        inward = self._workspace.inward
        self._workspace.total.zero_()
        if self._is_resident and isinstance(self._buffer_path, Direct):
            span = slice(self._start, self._start + self._body_bytes)
            self._buffer_path.send(self._buffer, [span], self._body, inward)
            self._sum_up()
            return
        part_bytes = min(self._part_bytes, self._workspace.num_bytes)
        for start in range(0, self._body_bytes, part_bytes):
            stop = min(start + part_bytes, self._body_bytes)
            offset = start if self._is_resident else 0
            target = self._workspace.memory(offset, stop - start)
            span = slice(self._start + start, self._start + stop)
            self._buffer_path.send(self._buffer, [span], target, inward)
            words = target.view(torch.int32)
            add_device_checksum(words, start // WORD_BYTES, self._workspace.total)

    def _verify(self) -> None:
        """Wait for the checksum of the body, once."""
        if self._stored_sum is not None:
            found = self._workspace.fetched_total() % 2**64
            require_checksum(self._stored_sum, found)
            self._stored_sum = None

    def _come_in(self, index: int) -> None:
        stage, inward = self._stages[index], self._workspace.inward
        inward.wait_event(stage.region.emptied)
        if not self._is_resident:
            spans = stage.step.spans
            self._buffer_path.send(self._buffer, spans, stage.payload, inward)
        self._launches[index]()
        stage.region.filled.record(inward)

    def _go_out(self, index: int) -> None:
        self._verify()
        stage, outward = self._stages[index], self._workspace.outward
        outward.wait_event(stage.region.filled)
        result = stage.region.tensor[: stage.step.chunk.tensor_bytes]
        tensor = self._tensors[stage.step.index]
        spans = stage.step.chunk.tensor_spans
        self._tensor_path.receive(result, tensor, spans, outward)
        stage.region.emptied.record(outward)


def _decode(stage: Stage, scattered: list[torch.Tensor]) -> None:
    """Queue the decoding of a chunk, whose payload is gathered first if need be."""
    if scattered:
        torch.cat(scattered, out=stage.payload)
    read_payload(stage.payload, stage.tensor, stage.layout)
