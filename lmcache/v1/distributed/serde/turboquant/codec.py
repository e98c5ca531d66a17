# SPDX-License-Identifier: Apache-2.0
"""Serializer and deserializer: memory objects in, memory objects out."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.turboquant import reference
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.device import (
    finish_work,
    parse_device,
    working_device,
)
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout, layout_of
from lmcache.v1.memory_management import MemoryObj


class TurboQuantSerializer(Serializer):
    """Compress KV tensors into byte buffers.

    Thread-safe: an instance keeps no state between calls.

    Args:
        config: What to do with the tensors.

    Raises:
        ValueError: If the preset or the device of ``config`` does not exist.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        _ = config.slot
        self._config = config
        self._device = parse_device(config.cuda_device)

    def serialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> int:
        """Write the payload of ``src`` to the start of ``dst``.

        The payload is complete when this returns. The same tensor gives the
        same bytes, whatever device, thread or batch it is encoded in.

        Args:
            src: Object holding a KV tensor
                ``[2, layers, tokens, heads * head_dim]``.
            dst: Object holding a uint8 buffer of at least
                ``estimate_serialized_size`` bytes.
            key: Key of the object; the payload does not depend on it.

        Returns:
            Bytes written: exactly the estimate.

        Raises:
            ValueError: If either object has no tensor, ``src`` is not what the
                configuration describes, ``dst`` is too small, or the two are on
                different accelerators.
        """
        tensor = _tensor_of(src, "source")
        layout = PayloadLayout.for_tensor(tensor.shape, tensor.dtype, self._config)
        payload = _payload_of(dst, layout, "destination")
        device = working_device(self._device, tensor, payload)
        work = payload if payload.device == device else _empty_like(payload, device)
        reference.encode(tensor.to(device), work, layout)
        if work is not payload:
            payload.copy_(work)
        finish_work(device)
        return layout.payload_bytes

    def estimate_serialized_size(
        self,
        layout_desc: MemoryLayoutDesc,
    ) -> int:
        """Return the exact payload size, from the layout alone.

        Args:
            layout_desc: Shape and dtype of the KV tensor.

        Returns:
            Size in bytes.

        Raises:
            ValueError: If :meth:`serialize` would refuse such a tensor.
        """
        return layout_of(layout_desc, self._config).payload_bytes


class TurboQuantDeserializer(Deserializer):
    """Restore KV tensors from byte buffers.

    Thread-safe: an instance keeps no state between calls.

    Args:
        config: What the tensors were compressed with.

    Raises:
        ValueError: If the preset or the device of ``config`` does not exist.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        _ = config.slot
        self._config = config
        self._device = parse_device(config.cuda_device)

    def deserialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> None:
        """Restore the payload at the start of ``src`` into ``dst``.

        The tensor is complete when this returns.

        Args:
            src: Object holding a uint8 buffer that starts with the payload.
            dst: Object holding a KV tensor
                ``[2, layers, tokens, heads * head_dim]``.
            key: Key of the object; unused.

        Raises:
            ValueError: If either object has no tensor, ``dst`` is not what the
                configuration describes, ``src`` is too small for it, or the two
                are on different accelerators.
        """
        tensor = _tensor_of(dst, "destination")
        layout = PayloadLayout.for_tensor(tensor.shape, tensor.dtype, self._config)
        payload = _payload_of(src, layout, "source")
        device = working_device(self._device, tensor, payload)
        work = tensor if tensor.device == device else _empty_like(tensor, device)
        reference.decode(payload.to(device), work, layout)
        if work is not tensor:
            tensor.copy_(work)
        finish_work(device)


def _tensor_of(memory_obj: MemoryObj, role: str) -> torch.Tensor:
    """Return the object's tensor; ``role`` names the object in messages."""
    tensor = memory_obj.tensor
    if tensor is None:
        raise ValueError(f"TurboQuant {role} holds no tensor")
    return tensor


def _payload_of(
    memory_obj: MemoryObj, layout: PayloadLayout, role: str
) -> torch.Tensor:
    """Return the bytes of the object's buffer that the payload takes."""
    buffer = _tensor_of(memory_obj, role)
    if buffer.dtype != torch.uint8 or not buffer.is_contiguous():
        raise ValueError(
            f"TurboQuant {role} must be a contiguous torch.uint8 buffer, got "
            f"{buffer.dtype} of strides {buffer.stride()}"
        )
    if buffer.numel() < layout.payload_bytes:
        raise ValueError(
            f"TurboQuant {role} buffer too small: a KV tensor {layout.shape} needs "
            f"{layout.payload_bytes} bytes, got {buffer.numel()}"
        )
    return buffer.view(-1)[: layout.payload_bytes]


def _empty_like(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor of the same shape and dtype on ``device``."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
