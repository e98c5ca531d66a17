# SPDX-License-Identifier: Apache-2.0
"""Host tensors encoded on an accelerator, chunk by chunk."""

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
from lmcache.v1.distributed.serde.turboquant.effort import Effort
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.payload import write_payload
from lmcache.v1.distributed.serde.turboquant.staging import Operation, Stage
from lmcache.v1.distributed.serde.turboquant.workspace import Workspace


class Encoding(Operation):
    """Host tensors on their way into host buffers.

    Args:
        workspace: Memory and streams of this thread.
        container: What the objects become.
        effort: What the encoder tries.

    Raises:
        MemoryShortage: If the workspace is too small for a layer.
    """

    def __init__(
        self, workspace: Workspace, container: Container, effort: Effort
    ) -> None:
        super().__init__(workspace, container, resident_bytes=0)
        self._sums = isinstance(container, FrameLayout) and self._plan.has_whole_words
        body_start = container.body_start if self._sums else None
        self._launches = [
            stage.launch(
                partial(_encode, stage, effort, workspace.total, body_start), effort
            )
            for stage in self._stages
        ]

    def run(
        self,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        key_fingerprint: int,
    ) -> None:
        """Encode an object. Everything is complete on return.

        Args:
            tensors: Bytes of its tensors, contiguous uint8.
            buffer: uint8 tensor of ``container.total_bytes``.
            key_fingerprint: Fingerprint of its key.
        """
        self._choose_paths(tensors, buffer)
        with torch_dev.stream(self._workspace.outward):
            self._workspace.total.zero_()
            self._pass_through()
            self._workspace.fetch_total()
        payload_sum = self._workspace.fetched_total()
        self._buffer_path.finish()
        self._container.seal(
            buffer,
            key_fingerprint,
            payload_sum=payload_sum if self._sums else None,
        )

    def _come_in(self, index: int) -> None:
        stage, inward = self._stages[index], self._workspace.inward
        inward.wait_event(stage.region.emptied)
        target = stage.region.tensor[: stage.step.chunk.tensor_bytes]
        tensor = self._tensors[stage.step.index]
        self._tensor_path.send(tensor, stage.step.chunk.tensor_spans, target, inward)
        stage.region.filled.record(inward)

    def _go_out(self, index: int) -> None:
        stage, outward = self._stages[index], self._workspace.outward
        outward.wait_event(stage.region.filled)
        self._launches[index]()
        spans = stage.step.spans
        self._buffer_path.receive(stage.payload, self._buffer, spans, outward)
        stage.region.emptied.record(outward)


def _encode(
    stage: Stage, effort: Effort, total: torch.Tensor, body_start: int | None
) -> None:
    """Queue the encoding of a chunk, and add it to the checksum of a frame's body."""
    write_payload(stage.tensor, stage.payload, stage.layout, effort=effort)
    if body_start is None:
        return
    start = 0
    for span in stage.step.spans:
        stop = start + span.stop - span.start
        words = stage.payload[start:stop].view(torch.int32)
        add_device_checksum(words, (span.start - body_start) // WORD_BYTES, total)
        start = stop
