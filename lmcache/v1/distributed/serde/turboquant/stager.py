# SPDX-License-Identifier: Apache-2.0
"""What one thread stages host tensors with, prepared for the objects that it meets."""

# Standard
from collections.abc import Sequence

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.frame import Container
from lmcache.v1.distributed.serde.turboquant.staging_decode import Decoding
from lmcache.v1.distributed.serde.turboquant.staging_encode import Encoding
from lmcache.v1.distributed.serde.turboquant.workspace import Workspace

_OPERATIONS_KEPT = 16
"""Kinds of objects that a thread stays prepared for."""


class Stager:
    """Encodes and decodes host tensors on an accelerator, for one thread.

    Args:
        device: The accelerator.
        num_bytes: Most device memory, and most pinned memory, to use.

    Raises:
        MemoryShortage: If the accelerator has not even a sixteenth of it left.
    """

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        self.device = device
        self._workspace = Workspace(device, num_bytes)
        self._encodings: dict[Container, Encoding] = {}
        self._decodings: dict[Container, Decoding] = {}

    def encode(
        self,
        container: Container,
        tensors: Sequence[torch.Tensor],
        buffer: torch.Tensor,
        key_fingerprint: int,
    ) -> None:
        """Encode an object. Everything is complete on return.

        Args:
            container: What the object becomes.
            tensors: Bytes of its tensors, contiguous uint8 on the host.
            buffer: uint8 host tensor of ``container.total_bytes``.
            key_fingerprint: Fingerprint of its key.

        Raises:
            MemoryShortage: If the device memory is too little for a layer.
        """
        if container not in self._encodings:
            _make_room(self._encodings)
            self._encodings[container] = Encoding(self._workspace, container)
        self._encodings[container].run(tensors, buffer, key_fingerprint)

    def decode(
        self,
        container: Container,
        buffer: torch.Tensor,
        tensors: Sequence[torch.Tensor],
        key_fingerprint: int,
    ) -> None:
        """Decode an object. Everything is complete on return.

        Args:
            container: What the object became.
            buffer: uint8 host tensor that starts with it.
            tensors: Bytes of its tensors, contiguous uint8 on the host; not touched
                before a frame has been verified.
            key_fingerprint: Fingerprint of its key.

        Raises:
            MemoryShortage: If the device memory is too little for a layer.
            ValueError: If the buffer is not what ``container`` describes.
        """
        if container not in self._decodings:
            _make_room(self._decodings)
            self._decodings[container] = Decoding(self._workspace, container)
        self._decodings[container].run(buffer, tensors, key_fingerprint)


def _make_room(operations: dict) -> None:
    """Drop the operation that was prepared first where there are many."""
    if len(operations) >= _OPERATIONS_KEPT:
        del operations[next(iter(operations))]
