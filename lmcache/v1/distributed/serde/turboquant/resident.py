# SPDX-License-Identifier: Apache-2.0
"""Frames encoded and decoded by a GPU's kernels where the tensors are.

The host's part is as long as the device's, so all that an object's layout decides is
kept. The host waits once for the checksum, and once at the end.
"""

# Standard
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.checksum import CONSTANTS
from lmcache.v1.distributed.serde.turboquant.device import finish_work
from lmcache.v1.distributed.serde.turboquant.effort import PLAIN, Effort
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout, require_checksum
from lmcache.v1.distributed.serde.turboquant.header import MAX_TENSORS, header_bytes
from lmcache.v1.distributed.serde.turboquant.kernels import gpu, gpu_device
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_calls import (
    ADDRESS_UNIT,
    Call,
    Replay,
)
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_checksum import checksum_call
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.memory import StoredTensor
from lmcache.v1.distributed.serde.turboquant.payload import (
    quantised_parts,
    quantises_on_gpu,
    read_raw,
    write_raw,
)

_LAYOUTS_KEPT = 32
"""Kinds of objects that a thread stays prepared for."""


class Resident:
    """Encodes and decodes frames on one GPU, for one thread.

    Args:
        device: The GPU.
        effort: What the encoder tries.
    """

    def __init__(self, device: torch.device, effort: Effort = PLAIN) -> None:
        self.device = device
        self._effort = effort
        pin = device.type != "cpu"
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._sum = torch.zeros((), dtype=torch.int64, pin_memory=pin)
        size = header_bytes(MAX_TENSORS)
        self._head = torch.zeros(size, dtype=torch.uint8, pin_memory=pin)
        self._head_bytes = memoryview(self._head.numpy())
        self._encodings: dict[tuple, Replay] = {}
        self._decodings: dict[tuple, tuple[Replay, Replay]] = {}

    def encode(
        self,
        frame: FrameLayout,
        tensors: Sequence[StoredTensor],
        buffer: torch.Tensor,
        key_fingerprint: int,
    ) -> bool:
        """Encode an object, if the kernels can. Everything is complete on return.

        Args:
            frame: What the object becomes.
            tensors: Its tensors.
            buffer: uint8 tensor of ``frame.total_bytes``.
            key_fingerprint: Fingerprint of its key.

        Returns:
            Whether it is done; if not, nothing is.
        """
        if not all(tensor.is_aligned for tensor in tensors):
            return False
        moving = (buffer, *(tensor.data for tensor in tensors))
        key = _kind(frame, moving)
        encoding = self._encodings.get(key)
        if encoding is None:
            if not _supported(frame, tensors, buffer, self._effort):
                return False
            encoding = Replay(partial(self._encoding_calls, frame))
            _keep(self._encodings, key, encoding)
        with gpu_device.current(self.device):
            self._total.zero_()
            for gap in frame.gaps:
                buffer[gap].zero_()
            for tensor, layout, span in _parts(frame, tensors):
                if layout.has_raw_layers:
                    write_raw(tensor.read(), buffer[span], layout)
            encoding(*moving)
            self._sum.copy_(self._total, non_blocking=True)
            finish_work(self.device)
            head = frame.head(key_fingerprint, int(self._sum) % 2**64)
            self._head_bytes[: len(head)] = head
            place = buffer[: len(head)]
            place.copy_(self._head[: len(head)], non_blocking=True)
            finish_work(self.device)
        return True

    def decode(
        self,
        frame: FrameLayout,
        buffer: torch.Tensor,
        tensors: Sequence[StoredTensor],
        key_fingerprint: int,
    ) -> bool:
        """Decode an object, if the kernels can. Everything is complete on return.

        Args:
            frame: What the object became.
            buffer: uint8 tensor that starts with it.
            tensors: Where to put its tensors; not touched before it is verified.
            key_fingerprint: Fingerprint of its key.

        Returns:
            Whether it is done; if not, nothing is.

        Raises:
            ValueError: If the buffer is not what ``frame`` describes.
        """
        is_whole = buffer.numel() >= frame.total_bytes
        if not is_whole or not all(tensor.is_aligned for tensor in tensors):
            return False
        moving = (buffer, *(tensor.data for tensor in tensors))
        key = _kind(frame, moving)
        replays = self._decodings.get(key)
        if replays is None:
            if not _supported(frame, tensors, buffer, PLAIN):
                return False
            adding = Replay(partial(self._checksum_calls, frame))
            replays = adding, Replay(partial(_decoding_calls, frame))
            _keep(self._decodings, key, replays)
        with gpu_device.current(self.device):
            self._verify(frame, buffer, key_fingerprint, replays[0])
            for tensor, layout, span in _parts(frame, tensors):
                if layout.has_raw_layers:
                    read_raw(buffer[span], tensor.read(), layout)
            replays[1](*moving)
            finish_work(self.device)
        return True

    def _verify(
        self,
        frame: FrameLayout,
        buffer: torch.Tensor,
        key_fingerprint: int,
        add_checksum: Replay,
    ) -> None:
        """Raise ValueError unless a buffer starts with a frame as it was written."""
        head = self._head[: frame.header_bytes]
        self._total.zero_()
        add_checksum(buffer)
        self._sum.copy_(self._total, non_blocking=True)
        head.copy_(buffer[: frame.header_bytes], non_blocking=True)
        finish_work(self.device)
        found = bytes(self._head_bytes[: frame.header_bytes])
        stored = frame.check(buffer, key_fingerprint, found)
        require_checksum(stored, int(self._sum) % 2**64)

    def _encoding_calls(
        self, frame: FrameLayout, buffer: torch.Tensor, *tensors: torch.Tensor
    ) -> Iterator[Call]:
        """Yield the launches that encode an object and add its checksum up."""
        for layout, span, data in zip(frame.layouts, frame.spans, tensors, strict=True):
            tensor = data.view(layout.dtype).view(layout.shape)
            views, slots, table = quantised_parts(tensor, buffer[span], layout)
            first_layer = layout.first_layer + layout.quant_start
            yield from gpu.encoding_calls(views, slots, layout.slot, first_layer, table)
        yield from self._checksum_calls(frame, buffer)

    def _checksum_calls(
        self, frame: FrameLayout, buffer: torch.Tensor
    ) -> Iterator[Call]:
        """Yield the launch that adds the checksum of a frame's body up."""
        words = buffer[frame.header_bytes : frame.total_bytes].view(torch.int32)
        yield checksum_call(words, 0, self._total, CONSTANTS)


def _decoding_calls(
    frame: FrameLayout, buffer: torch.Tensor, *tensors: torch.Tensor
) -> Iterator[Call]:
    """Yield the launches that decode an object."""
    for layout, span, data in zip(frame.layouts, frame.spans, tensors, strict=True):
        tensor = data.view(layout.dtype).view(layout.shape)
        views, slots, table = quantised_parts(tensor, buffer[span], layout)
        first_layer = layout.first_layer + layout.quant_start
        yield from gpu.decoding_calls(slots, views, layout.slot, first_layer, table)


def _parts(
    frame: FrameLayout, tensors: Sequence[StoredTensor]
) -> Iterator[tuple[StoredTensor, PayloadLayout, slice]]:
    """Yield each tensor, its payload's layout and the payload's place in the frame."""
    return zip(tensors, frame.layouts, frame.spans, strict=True)


def _supported(
    frame: FrameLayout,
    tensors: Sequence[StoredTensor],
    buffer: torch.Tensor,
    effort: Effort,
) -> bool:
    """Return whether the kernels can do all the work on an object but copies."""
    return bool(frame.layouts) and all(
        quantises_on_gpu(tensor.read(), buffer[span], layout, effort)
        for tensor, layout, span in _parts(frame, tensors)
    )


def _kind(frame: FrameLayout, moving: Sequence[torch.Tensor]) -> tuple:
    """Return all that launches on an object depend on, but for its place.

    With ``Replay``'s unit the remainders tell every alignment.
    """
    return frame, *(tensor.data_ptr() % ADDRESS_UNIT for tensor in moving)


def _keep(kept: dict[tuple, Any], key: tuple, replay: Any) -> None:
    """Keep what is prepared; forget the oldest of too many."""
    if len(kept) >= _LAYOUTS_KEPT:
        del kept[next(iter(kept))]
    kept[key] = replay
