# SPDX-License-Identifier: Apache-2.0
"""The GPU backend: what ``reference`` specifies, as Triton kernels for CUDA.

All layers of a call take one launch on the current stream. Nothing waits for
the device.
"""

# Standard
from collections.abc import Iterator

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
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_kept import put_back
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_measure import measure
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_plan import Plan, plans_of
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_relative import (
    decode_relative_kernel,
    encode_relative_kernel,
)
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVViews
from lmcache.v1.distributed.serde.turboquant.side_table import SideTablePart
from lmcache.v1.distributed.serde.turboquant.slot import KeyField, SlotLayout

MAX_HEAD_DIM = 512

HEAD_DIM_STEP = 16
"""Least width of a matrix product; slots then have even sizes and offsets."""

MAX_LAYERS = 2**16 - 1
"""Most programs along the second dimension of a grid."""

_MASK_LAYERS = 64
"""Layers by which tables of sign masks grow."""


def supports(views: KVViews, slots: torch.Tensor, slot: SlotLayout) -> bool:
    """Return whether the kernels can work on these tensors.

    Args:
        views: Keys, and values or None, ``[layers, tokens, heads, dim]``.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        slot: Byte layout of a slot.

    Returns:
        False where another backend has to do the work: off NVIDIA GPUs, on vectors
        that are too wide or not equally spaced, on trellis codes, and on rotary pairs
        that are not in
        different chunks alike.
    """
    num_heads = slots.shape[2]
    return (
        gpu_device.runs_on(slots.device)
        and not slot.key.is_trellis
        and all(_has_rows(view, slots) for view in views if view is not None)
        and not (slot.key.rope_theta and _num_chunks(slot.key.dim) % 2)
        and slots.shape[0] <= MAX_LAYERS
        and slots.stride()[1:] == (num_heads * slot.slot_bytes, slot.slot_bytes, 1)
        and slots.stride(0) % 2 == slots.data_ptr() % 2 == 0
    )


def encode_layers(
    views: KVViews,
    slots: torch.Tensor,
    slot: SlotLayout,
    first_layer: int,
    side_table: tuple[SideTablePart, ...] = (),
) -> None:
    """Quantise layers into slots, as ``reference.encode_layers`` does.

    Args:
        views: Keys and values that :func:`supports`.
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``; every byte of it is
            written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        side_table: A part, which is written, for each calibrated field.
    """
    if not slots.numel():
        return
    run, capability = gpu_constants.FRAGMENT_RUN, gpu_device.capability_of(slots.device)
    with gpu_device.current(slots.device):
        for plan, rows in _launches(views, slot):
            key = plan.relative_key
            options = gpu_launch.encode_options(plan, rows.dtype, capability)
            is_half = rows.dtype == torch.float16 and key is None
            dtype = torch.float16 if is_half else torch.bfloat16
            tables = _rotation(rows, first_layer, run, dtype)
            if key is None:
                places = _places(views, rows, slots)
                encode_kernel[_grid(rows)](rows, slots, *tables, **places, **options)
                continue
            part, rotary = side_table[plan.part], _rotary(key, rows)
            measure(rows, part, rotary)
            encode_relative_kernel[_grid(rows)](
                rows,
                slots,
                *tables,
                part.statistics,
                rotary,
                **_relative_places(rows, slots, part.statistics),
                **gpu_launch.of_one_field(options),
            )


def decode_layers(
    slots: torch.Tensor,
    views: KVViews,
    slot: SlotLayout,
    first_layer: int,
    side_table: tuple[SideTablePart, ...] = (),
) -> None:
    """Restore layers from slots, as ``reference.decode_layers`` does.

    Args:
        slots: uint8 ``[layers, tokens, heads, slot_bytes]``.
        views: Keys and values that :func:`supports`; every element is written.
        slot: Byte layout of a slot.
        first_layer: Index of the first layer within the tensor.
        side_table: What :func:`encode_layers` wrote.
    """
    if not slots.numel():
        return
    run, capability = gpu_constants.JOINED_RUN, gpu_device.capability_of(slots.device)
    with gpu_device.current(slots.device):
        for plan, rows in _launches(views, slot):
            options = gpu_launch.decode_options(plan, rows.dtype, capability)
            tables = _rotation(rows, first_layer, run, torch.float16)
            key = plan.relative_key
            if key is None:
                places = _places(views, rows, slots)
                decode_kernel[_grid(rows)](slots, rows, *tables, **places, **options)
                continue
            part, rotary = side_table[plan.part], _rotary(key, rows)
            decode_relative_kernel[_grid(rows)](
                slots,
                rows,
                *tables,
                part.statistics,
                rotary,
                **_relative_places(rows, slots, part.statistics),
                **gpu_launch.of_one_field(options),
            )
            put_back(rows, part)


def _num_chunks(head_dim: int) -> int:
    """Return the number of chunks of a vector that is rotated."""
    return head_dim // gpu_constants.rotation_width(head_dim)


def _has_rows(view: torch.Tensor, slots: torch.Tensor) -> bool:
    """Return whether a view's vectors are of a width that fits, and equally spaced."""
    _, _, num_heads, head_dim = view.shape
    return (
        view.device == slots.device
        and head_dim % HEAD_DIM_STEP == 0
        and head_dim <= MAX_HEAD_DIM
        and view.stride(3) == 1
        and view.stride(1) == num_heads * view.stride(2)
    )


def _launches(views: KVViews, slot: SlotLayout) -> Iterator[tuple[Plan, torch.Tensor]]:
    """Yield the launches that a slot takes, each with its first field's view."""
    keys, values = views
    have_same_rows = values is not None and values.stride() == keys.stride()
    for plan in plans_of(slot, have_same_rows=have_same_rows):
        rows = views[plan.view]
        assert rows is not None
        yield plan, rows


def _rotary(key: KeyField, rows: torch.Tensor) -> torch.Tensor | None:
    """Return the rotary table of a calibrated field, if it has one."""
    if not key.rope_theta:
        return None
    num_tokens = rows.shape[1]
    return gpu_constants.rotary(key.dim, key.rope_theta, num_tokens, rows.device)


def _relative_places(
    rows: torch.Tensor, slots: torch.Tensor, statistics: torch.Tensor
) -> dict[str, int]:
    """Return where the kernels find rows, slots and statistics."""
    num_heads = rows.shape[2]
    num_rows = rows.shape[1] * num_heads
    return {
        "layer_stride": rows.stride(0),
        "row_stride": rows.stride(2),
        "slots_stride": slots.stride(0) // 2,
        "statistics_layer_stride": statistics.stride(0),
        "statistics_stride": statistics.stride(1),
        "num_rows": num_rows,
        "num_heads": num_heads,
        "IS_SHORT": num_rows < gpu_launch.TILE_ROWS,
    }


def _grid(rows: torch.Tensor) -> tuple[int, int]:
    """Return the numbers of tiles and of layers."""
    num_layers, num_tokens, num_heads, _ = rows.shape
    return -(-num_tokens * num_heads // gpu_launch.TILE_ROWS), num_layers


def _rotation(
    rows: torch.Tensor, first_layer: int, run: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sign masks from ``first_layer`` on, and the rotation matrix."""
    num_layers, _, _, head_dim = rows.shape
    # Parts of one tensor share a table of masks.
    end = -(-(first_layer + num_layers) // _MASK_LAYERS) * _MASK_LAYERS
    masks = gpu_constants.sign_masks(head_dim, end, rows.device)
    width = gpu_constants.rotation_width(head_dim)
    matrix = gpu_constants.rotation_matrix(width, run, dtype, rows.device)
    return masks[first_layer:], matrix


def _places(views: KVViews, rows: torch.Tensor, slots: torch.Tensor) -> dict[str, int]:
    """Return where the kernels find rows and slots."""
    keys, values = views
    other = keys if values is None else values
    num_rows = rows.shape[1] * rows.shape[2]
    return {
        "value_offset": (other.data_ptr() - rows.data_ptr()) // rows.itemsize,
        "layer_stride": rows.stride(0),
        "row_stride": rows.stride(2),
        "slots_stride": slots.stride(0) // 2,
        "num_rows": num_rows,
        "IS_SHORT": num_rows < gpu_launch.TILE_ROWS,
    }
