# SPDX-License-Identifier: Apache-2.0
"""The tensors that lie in a memory object, one after another, without padding."""

# Standard
from dataclasses import dataclass

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.memory_management import MemoryObj


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor in a buffer, at whatever address it begins.

    Attributes:
        data: Its bytes, a contiguous uint8 view of the buffer.
        shape: Its shape.
        dtype: Its element type.
    """

    data: torch.Tensor
    shape: torch.Size
    dtype: torch.dtype

    @property
    def is_aligned(self) -> bool:
        """Whether the bytes can be viewed as elements where they are."""
        return self.data.storage_offset() % self.dtype.itemsize == 0

    def read(self) -> torch.Tensor:
        """Return the tensor: a view, or a copy where it is not aligned."""
        data = self.data if self.is_aligned else self.data.clone()
        return data.view(self.dtype).view(self.shape)

    def empty(self, device: torch.device) -> torch.Tensor:
        """Return an uninitialised tensor of this shape and dtype on ``device``."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def write(self, tensor: torch.Tensor) -> None:
        """Copy ``tensor``, which may be on another device, into the buffer."""
        self.data.copy_(tensor.reshape(-1).view(torch.uint8))


def describe(memory_obj: MemoryObj, role: str) -> MemoryLayoutDesc:
    """Return shapes and dtypes of a memory object's tensors, and what they hold.

    Args:
        memory_obj: The object. One that has nothing but a ``tensor`` counts as
            holding that.
        role: Names the object in messages.

    Returns:
        The description.

    Raises:
        ValueError: If the object holds no tensor.
    """
    if hasattr(memory_obj, "get_shapes"):
        return MemoryLayoutDesc(
            memory_obj.get_shapes(),
            memory_obj.get_dtypes(),
            memory_obj.get_tensor_formats(),
        )
    tensor = tensor_of(memory_obj, role)
    return MemoryLayoutDesc([tensor.shape], [tensor.dtype])


def stored_tensors(memory_obj: MemoryObj, role: str) -> list[StoredTensor]:
    """Return the tensors of a memory object.

    Args:
        memory_obj: The object.
        role: Names the object in messages.

    Returns:
        The tensors, in order.

    Raises:
        ValueError: If the object holds no tensor, one that is not contiguous, or
            fewer bytes than its tensors take.
    """
    description = describe(memory_obj, role)
    buffer = getattr(memory_obj, "raw_tensor", None)
    if buffer is None:
        buffer = tensor_of(memory_obj, role)
    if not buffer.is_contiguous():
        raise ValueError(
            f"TurboQuant {role} must be contiguous, got strides {buffer.stride()}"
        )
    data = buffer.view(-1).view(torch.uint8)
    tensors, start = [], 0
    for shape, dtype in zip(description.shapes, description.dtypes, strict=True):
        stop = start + shape.numel() * dtype.itemsize
        if stop > data.numel():
            raise ValueError(
                f"TurboQuant {role} holds {data.numel()} bytes, its tensors take more: "
                f"{[tuple(s) for s in description.shapes]}"
            )
        tensors.append(StoredTensor(data=data[start:stop], shape=shape, dtype=dtype))
        start = stop
    return tensors


def byte_buffer(memory_obj: MemoryObj, role: str) -> torch.Tensor:
    """Return a memory object's bytes as a flat uint8 tensor.

    Args:
        memory_obj: Object of a uint8 tensor.
        role: Names the object in messages.

    Returns:
        The bytes.

    Raises:
        ValueError: If the object holds no tensor, or another than contiguous uint8.
    """
    buffer = tensor_of(memory_obj, role)
    if buffer.dtype != torch.uint8 or not buffer.is_contiguous():
        raise ValueError(
            f"TurboQuant {role} must be a contiguous torch.uint8 buffer, got "
            f"{buffer.dtype} of strides {buffer.stride()}"
        )
    return buffer.view(-1)


def tensor_of(memory_obj: MemoryObj, role: str) -> torch.Tensor:
    """Return the object's tensor; raise ValueError where it has none."""
    tensor = memory_obj.tensor
    if tensor is None:
        raise ValueError(f"TurboQuant {role} holds no tensor")
    return tensor
