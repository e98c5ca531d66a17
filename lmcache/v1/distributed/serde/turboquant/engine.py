# SPDX-License-Identifier: Apache-2.0
"""Encoding and decoding where the tensors are, or on a device that is chosen."""

# Standard
from collections.abc import Sequence
import threading

# Third Party
import torch

# First Party
from lmcache.logging import init_logger
from lmcache.v1.distributed.serde.turboquant.accelerators import MemoryShortage
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.container import Container
from lmcache.v1.distributed.serde.turboquant.device import (
    CPU,
    DeviceChoice,
    available_cores,
    finish_work,
)
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.memory import StoredTensor
from lmcache.v1.distributed.serde.turboquant.payload import read_payload, write_payload
from lmcache.v1.distributed.serde.turboquant.stager import Stager

logger = init_logger(__name__)

_SHORTAGES = (MemoryShortage, torch.OutOfMemoryError)


class Engine:
    """Encodes and decodes on the device that fits. Thread-safe.

    Tensors on an accelerator are worked on there. Host tensors are staged through
    memory that each thread keeps; where an accelerator has too little of it, the CPU
    does the work.

    Args:
        config: What to do with the tensors, and on which device.

    Raises:
        ValueError: If a preset or a device of ``config`` does not exist.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        config.require_presets()
        self._choice = DeviceChoice(config)
        self._threads = config.cpu_threads or available_cores()
        self._effort = EFFORTS[config.effort]
        self._staging_bytes = config.staging_mib << 20
        self._of_thread = threading.local()
        self._has_warned = False

    def encode(
        self,
        container: Container,
        tensors: Sequence[StoredTensor],
        buffer: torch.Tensor,
        key_fingerprint: int,
    ) -> None:
        """Encode an object. Everything is complete on return.

        Args:
            container: What the object becomes.
            tensors: Its tensors.
            buffer: uint8 tensor of ``container.total_bytes``.
            key_fingerprint: Fingerprint of its key.

        Raises:
            ValueError: If tensors and buffer are on different accelerators, or on
                another than the configured one.
        """
        sources = [tensor.data for tensor in tensors]
        device, stager = self._place([buffer, *sources])
        if _needs_the_cpu(container):
            device, stager = CPU, None
        if stager is not None:
            try:
                stager.encode(container, sources, buffer, key_fingerprint)
                return
            except _SHORTAGES as shortage:
                device = self._instead(shortage)
        work = buffer
        if buffer.device != device:
            work = torch.empty_like(buffer, device=device)
        parts = zip(tensors, container.layouts, container.spans, strict=True)
        for tensor, layout, span in parts:
            source, part = tensor.read().to(device), work[span]
            write_payload(source, part, layout, self._threads, self._effort)
        container.seal(work, key_fingerprint, self._threads)
        if work is not buffer:
            buffer.copy_(work)
        finish_work(device)

    def decode(
        self,
        container: Container,
        buffer: torch.Tensor,
        tensors: Sequence[StoredTensor],
        key_fingerprint: int,
    ) -> None:
        """Decode an object. Everything is complete on return.

        Args:
            container: What the object became.
            buffer: uint8 tensor that starts with it.
            tensors: Where to put its tensors.
            key_fingerprint: Fingerprint of its key.

        Raises:
            ValueError: As :meth:`encode`, or if the buffer does not hold what
                ``container`` describes; the tensors are not touched then.
        """
        targets = [tensor.data for tensor in tensors]
        device, stager = self._place([buffer, *targets])
        if _needs_the_cpu(container):
            device, stager = CPU, None
        if stager is not None:
            try:
                stager.decode(container, buffer, targets, key_fingerprint)
                return
            except _SHORTAGES as shortage:
                device = self._instead(shortage)
        work = buffer[: container.total_bytes].to(device)
        container.verify(work, key_fingerprint, self._threads)
        parts = zip(tensors, container.layouts, container.spans, strict=True)
        for stored, layout, span in parts:
            in_place = stored.is_aligned and stored.data.device == device
            tensor = stored.read() if in_place else stored.empty(device)
            read_payload(work[span], tensor, layout, self._threads)
            if not in_place:
                stored.write(tensor)
        finish_work(device)

    def _place(
        self, buffers: Sequence[torch.Tensor]
    ) -> tuple[torch.device, Stager | None]:
        """Choose the device, and the stager where host tensors have to be staged."""
        held: Stager | None = getattr(self._of_thread, "stager", None)
        try:
            device = self._choice.working_device(buffers, held.device if held else None)
            if device == CPU or any(buffer.device != CPU for buffer in buffers):
                return device, None
            if held is None or held.device != device:
                self._of_thread.stager = None
                held = Stager(device, self._staging_bytes, self._effort)
                self._of_thread.stager = held
        except _SHORTAGES as shortage:
            return self._instead(shortage), None
        return device, held

    def _instead(self, shortage: RuntimeError) -> torch.device:
        """Return the device that works where an accelerator has too little memory."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("TurboQuant works on the CPU for now: %s", shortage)
        return CPU


def _needs_the_cpu(container: Container) -> bool:
    """Return whether there are trellis codes, which only the CPU has kernels for.

    On an accelerator the reference would launch several kernels for every coordinate.
    """
    return any(
        layout.quantises and layout.slot.key.is_trellis for layout in container.layouts
    )
