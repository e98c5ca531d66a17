# SPDX-License-Identifier: Apache-2.0
"""How an object is divided for staging."""

# Standard
from dataclasses import dataclass
from functools import cached_property, lru_cache

# First Party
from lmcache.v1.distributed.serde.turboquant.checksum import WORD_BYTES
from lmcache.v1.distributed.serde.turboquant.chunks import Chunk, chunks_of
from lmcache.v1.distributed.serde.turboquant.container import Container

_CHUNKS = 8
"""Chunks of a large object: the first copy in and the last one out overlap nothing."""

_SMALLEST_CHUNK_BYTES = 6 << 20
"""Copying as much takes longer than starting the copies and kernels of a chunk."""

_REGIONS = 4
"""Chunks that device memory has room for at once."""


@dataclass(frozen=True)
class Step:
    """A chunk of one of an object's tensors.

    Attributes:
        index: The tensor.
        chunk: The chunk.
        spans: Byte ranges of the chunk's payload in the container.
    """

    index: int
    chunk: Chunk
    spans: tuple[slice, ...]


@dataclass(frozen=True)
class Plan:
    """How an object is staged.

    Attributes:
        steps: Its chunks, in order.
    """

    steps: tuple[Step, ...]

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of the largest chunk."""
        return max((step.chunk.tensor_bytes for step in self.steps), default=0)

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of the largest payload of a chunk."""
        return max((step.chunk.payload_bytes for step in self.steps), default=0)

    @cached_property
    def has_whole_words(self) -> bool:
        """Whether no word of a checksum lies across two chunks."""
        return not any(
            span.start % WORD_BYTES or span.stop % WORD_BYTES
            for step in self.steps
            for span in step.spans
        )


@lru_cache(maxsize=64)
def plan_of(container: Container, memory_bytes: int) -> Plan:
    """Divide an object into chunks.

    Args:
        container: What the object becomes.
        memory_bytes: Device memory for the chunks.

    Returns:
        The plan.
    """
    tensor_bytes = sum(
        layout.raw_layer_bytes * layout.geometry.num_layers
        for layout in container.layouts
    )
    wanted = (tensor_bytes + container.total_bytes) // _CHUNKS
    target = min(max(wanted, _SMALLEST_CHUNK_BYTES), memory_bytes // _REGIONS)
    steps = []
    for index, layout in enumerate(container.layouts):
        start = container.spans[index].start
        for chunk in chunks_of(layout, target):
            spans = tuple(
                slice(start + span.start, start + span.stop)
                for span in chunk.payload_spans
            )
            steps.append(Step(index, chunk, spans))
    return Plan(tuple(steps))
