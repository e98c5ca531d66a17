# SPDX-License-Identifier: Apache-2.0
"""What one thread stages host tensors with, prepared for the objects that it meets."""

# Standard
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import finalize

# Third Party
import torch

# First Party
from lmcache import torch_dev
from lmcache.v1.distributed.serde.turboquant.container import Container
from lmcache.v1.distributed.serde.turboquant.effort import Effort
from lmcache.v1.distributed.serde.turboquant.staging_decode import Decoding
from lmcache.v1.distributed.serde.turboquant.staging_encode import Encoding
from lmcache.v1.distributed.serde.turboquant.workspace import Workspace

_OPERATIONS_KEPT = 16
"""Kinds of objects that a thread stays prepared for."""

T = TypeVar("T")


class Stager:
    """Encodes and decodes host tensors on an accelerator, for one thread.

    The device memory is given back with the last reference.

    Args:
        device: The accelerator.
        num_bytes: Most device memory, and most pinned memory, to use.
        effort: What the encoder tries.

    Raises:
        MemoryShortage: If the accelerator has not even a sixteenth of it left.
    """

    def __init__(self, device: torch.device, num_bytes: int, effort: Effort) -> None:
        self.device = device
        self._effort = effort
        self._workspaces = [Workspace(device, num_bytes)]
        self._encodings: dict[Container, Encoding] = {}
        self._decodings: dict[Container, Decoding] = {}
        kept = (self._encodings, self._decodings, self._workspaces)
        finalize(self, _give_back, *kept).atexit = False

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
        workspace = self._workspaces[0]
        encoding = _prepared(
            self._encodings,
            container,
            lambda: Encoding(workspace, container, self._effort),
        )
        with workspace.settled_on_error():
            encoding.run(tensors, buffer, key_fingerprint)

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
        workspace = self._workspaces[0]
        decoding = _prepared(
            self._decodings, container, lambda: Decoding(workspace, container)
        )
        with workspace.settled_on_error():
            decoding.run(buffer, tensors, key_fingerprint)


def _prepared(
    kept: dict[Container, T], container: Container, prepare: Callable[[], T]
) -> T:
    """Return what is kept for a container; prepare it, and keep it, the first time."""
    operation = kept.get(container)
    if operation is None:
        if len(kept) >= _OPERATIONS_KEPT:
            del kept[next(iter(kept))]
        operation = kept[container] = prepare()
    return operation


def _give_back(*kept: dict | list) -> None:
    """Drop all that refers to device memory, then empty torch's cache of it."""
    for things in kept:
        things.clear()
    torch_dev.empty_cache()
