# SPDX-License-Identifier: Apache-2.0
"""Tensors to bytes and back, without a storage manager.

The bytes are a frame of one tensor. Its size is a multiple of 64 bytes rather than
of a page, as no file adapter reads it.
"""

# Standard
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO
import os

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.device import (
    CPU,
    DeviceChoice,
    available_cores,
    finish_work,
    parse_device,
)
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.header import ALIGNMENT_BYTES
from lmcache.v1.distributed.serde.turboquant.layout import layouts_of
from lmcache.v1.distributed.serde.turboquant.payload import write_payload
from lmcache.v1.distributed.serde.turboquant.self_description import (
    described_layout,
    restore,
)

Source = bytes | bytearray | memoryview | str | os.PathLike[str] | BinaryIO
"""Bytes, the path of a file, or an open binary file."""


class TurboQuantCodec:
    """Compress a tensor into bytes that describe themselves.

    Thread-safe: an instance keeps no state between calls.

    Args:
        config: What the tensor means and how it is quantised; ``framed`` and
            ``block_size`` do not matter. ``skip_first_layers`` and
            ``skip_last_layers`` do: with the default, four layers are stored raw.

    Raises:
        TypeError: If ``config`` is anything else.
        ValueError: If a preset or the device of ``config`` does not exist.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        if not isinstance(config, TurboQuantSerdeConfig):
            raise TypeError(
                f"TurboQuant expects a TurboQuantSerdeConfig, got {_kind(config)}"
            )
        self._config = replace(config, framed=True)
        self._config.require_presets()
        self._choice = DeviceChoice(config)
        self._threads = config.cpu_threads or available_cores()

    def to_bytes(self, tensor: torch.Tensor) -> bytes:
        """Compress a tensor.

        The same tensor gives the same bytes on every device. A tensor on an
        accelerator is compressed there; gradients are not kept.

        Args:
            tensor: Tensor that the configuration describes, with any strides. It may
                be empty. What ``kv_layout`` does not describe is ``opaque``.

        Returns:
            The frame.

        Raises:
            TypeError: If ``tensor`` is not a tensor.
            ValueError: If it is not what the configuration describes, or of a dtype
                or kind that a frame cannot hold.
        """
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"TurboQuant expects a tensor, got {_kind(tensor)}")
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise ValueError(
                f"TurboQuant expects a dense tensor with data, got a {tensor.layout} "
                f"one on {tensor.device}"
            )
        description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
        layouts = layouts_of(description, self._config)
        frame = FrameLayout(layouts, page_bytes=ALIGNMENT_BYTES)
        _ = frame.records
        device = self._choice.holding_device([tensor])
        if device is None:
            is_free = self._config.device == "auto" and not self._config.cuda_device
            device = CPU if is_free else self._choice.working_device([tensor])
        data = torch.empty(frame.total_bytes, dtype=torch.uint8, device=device)
        plain = tensor.detach().resolve_neg().contiguous().to(device)
        part, effort = data[frame.spans[0]], EFFORTS[self._config.effort]
        write_payload(plain, part, layouts[0], self._threads, effort)
        frame.seal(data, threads=self._threads)
        return data.cpu().numpy().tobytes()

    @staticmethod
    def from_bytes(data: Source, device: str | torch.device = CPU) -> torch.Tensor:
        """Restore a tensor.

        Every number of the header is checked before it is used, and every byte
        before it is decoded, so that work and memory are in proportion to the length
        of ``data``, whatever is in it.

        Args:
            data: What :meth:`to_bytes` returned, or a stored memory object of one
                tensor. It may be longer than the frame.
            device: Where to decode.

        Returns:
            The tensor, on ``device``.

        Raises:
            TypeError: If ``data`` or ``device`` is of another type.
            ValueError: If ``data`` does not start with a whole and intact frame of
                one tensor, or the host has no such device.
            OSError: If the file cannot be read.
        """
        target = _target(device)
        view = _bytes_of(data)
        layout = described_layout(view)
        if len(layout.layouts) != 1:
            raise ValueError(
                f"TurboQuant payload holds {len(layout.layouts)} tensors, expected 1"
            )
        frame = torch.empty(layout.total_bytes, dtype=torch.uint8)
        frame.numpy()[:] = np.frombuffer(view[: layout.total_bytes], dtype=np.uint8)
        (tensor,) = restore(frame.to(target), layout)
        finish_work(target)
        return tensor


def _bytes_of(data: Source) -> memoryview:
    """View, or read, what :meth:`TurboQuantCodec.from_bytes` was given."""
    if isinstance(data, (str, os.PathLike)):
        return memoryview(Path(data).read_bytes())
    content = data.read() if hasattr(data, "read") else data
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"TurboQuant expects bytes, a path or a binary file, got {_kind(data)}"
        )
    view = memoryview(content)
    if not view.c_contiguous:
        raise ValueError(f"TurboQuant expects contiguous bytes, got {view.strides}")
    return view.cast("B")


def _target(device: str | torch.device) -> torch.device:
    """Resolve the device to decode on."""
    if not isinstance(device, (str, torch.device)):
        raise TypeError(f"TurboQuant expects a device, got {_kind(device)}")
    name = str(device)
    try:
        is_host = torch.device(name).type == CPU.type
    except RuntimeError as error:
        raise ValueError(f"TurboQuant cannot use the device {device!r}") from error
    # A torch.device keeps eight bits of its index, so the name is parsed instead.
    return CPU if is_host else parse_device("device", name) or CPU


def _kind(thing: object) -> str:
    """Name the type of an argument, for messages."""
    return type(thing).__name__
