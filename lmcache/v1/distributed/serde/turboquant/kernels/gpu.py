# SPDX-License-Identifier: Apache-2.0
"""The GPU backend: what ``reference`` specifies, as Triton kernels for CUDA.

All layers of a call take one launch on the current stream. Nothing waits for
the device.
"""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import (
    gpu_constants,
    gpu_device,
    gpu_launch,
)
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_decode import decode_kernel
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_encode import encode_kernel
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout, ValueField

MAX_HEAD_DIM = 256

HEAD_DIM_STEP = 16
"""Least width of a matrix product; slots then have even sizes and offsets."""

_MASK_LAYERS = 64
"""Layers by which tables of sign masks grow."""

MAX_LAYERS = 2**16 - 1
"""Most programs along the second dimension of a grid."""


def supports(views: KVViews, slots: torch.Tensor, slot: SlotLayout) -> bool:
    """Return whether the kernels can work on these tensors.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        slot: Byte layout of a slot.

    Returns:
        False where another backend has to do the work: off NVIDIA GPUs, on keys
        without values of their width, on vectors that are not equally spaced.
    """
    keys, values = views
    num_layers, _, num_heads, head_dim = keys.shape
    return (
        values is not None
        and keys.device == values.device == slots.device
        and gpu_device.runs_on(keys.device)
        and isinstance(slot.value, ValueField)
        and slot.value.dim == slot.key.dim
        and head_dim % HEAD_DIM_STEP == 0
        and head_dim <= MAX_HEAD_DIM
        and num_layers <= MAX_LAYERS
        and values.stride() == keys.stride()
        and keys.stride(3) == 1
        and keys.stride(1) == num_heads * keys.stride(2)
        and slots.stride()[1:] == (num_heads * slot.slot_bytes, slot.slot_bytes, 1)
        and slots.stride(0) % 2 == slots.data_ptr() % 2 == 0
    )


def encode_layers(
    views: KVViews, slots: torch.Tensor, slot: SlotLayout, first_layer: int
) -> None:
    """Quantise layers into slots, as ``reference.encode_layers`` does.

    Args:
        views: Keys and values that :func:`supports`.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
    """
    if not slots.numel():
        return
    keys = views[0]
    dtype = torch.float16 if keys.dtype == torch.float16 else torch.bfloat16
    run = gpu_constants.FRAGMENT_RUN
    with gpu_device.current(keys.device):
        encode_kernel[_grid(keys)](
            keys,
            slots,
            *_rotation(keys, first_layer, run, dtype),
            **_places(views, slots),
            **gpu_launch.encode_options(
                slot, keys.dtype, gpu_device.capability_of(keys.device)
            ),
        )


def decode_layers(
    slots: torch.Tensor, views: KVViews, slot: SlotLayout, first_layer: int
) -> None:
    """Restore layers from slots, as ``reference.decode_layers`` does.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys and values that :func:`supports`; every element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
    """
    if not slots.numel():
        return
    keys = views[0]
    run = gpu_constants.JOINED_RUN
    with gpu_device.current(keys.device):
        decode_kernel[_grid(keys)](
            slots,
            keys,
            *_rotation(keys, first_layer, run, torch.float16),
            **_places(views, slots),
            **gpu_launch.decode_options(
                slot, keys.dtype, gpu_device.capability_of(keys.device)
            ),
        )


def _grid(keys: torch.Tensor) -> tuple[int, int]:
    """Return the numbers of tiles and of layers."""
    num_layers, num_tokens, num_heads, _ = keys.shape
    return -(-num_tokens * num_heads // gpu_launch.TILE_ROWS), num_layers


def _rotation(
    keys: torch.Tensor, first_layer: int, run: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sign masks from ``first_layer`` on, and the rotation matrix."""
    num_layers, _, _, head_dim = keys.shape
    # Parts of one tensor share a table.
    end = -(-(first_layer + num_layers) // _MASK_LAYERS) * _MASK_LAYERS
    masks = gpu_constants.sign_masks(head_dim, end, keys.device)
    width = gpu_constants.rotation_width(head_dim)
    matrix = gpu_constants.rotation_matrix(width, run, dtype, keys.device)
    return masks[first_layer:], matrix


def _places(views: KVViews, slots: torch.Tensor) -> dict[str, int]:
    """Return where the kernels find rows and slots."""
    keys, values = views
    assert values is not None
    num_rows = keys.shape[1] * keys.shape[2]
    return {
        "value_offset": int(values.storage_offset() - keys.storage_offset()),
        "layer_stride": keys.stride(0),
        "row_stride": keys.stride(2),
        "slots_stride": slots.stride(0) // 2,
        "num_rows": num_rows,
        "IS_SHORT": num_rows < gpu_launch.TILE_ROWS,
    }
