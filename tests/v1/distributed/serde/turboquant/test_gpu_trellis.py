# SPDX-License-Identifier: Apache-2.0
"""Trellis codes on the GPU backend against the reference."""

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE

# isort: split

# First Party
from lmcache.v1.distributed.serde.turboquant import reference
from lmcache.v1.distributed.serde.turboquant.kernels import gpu
from lmcache.v1.distributed.serde.turboquant.kv_layout import kv_views
from tests.v1.distributed.serde.turboquant.closeness import assert_restored_alike
from tests.v1.distributed.serde.turboquant.cpu_helpers import (
    compressed_views,
    layout_of,
    reference_decode,
    slots_shape,
)
from tests.v1.distributed.serde.turboquant.helpers import gaussian

CASES = [
    ("turboquant_4bit_t", 128, torch.bfloat16),
    ("turboquant_3bit_t", 96, torch.float16),
    ("turboquant_2bit_t", 80, torch.float16),
    ("turboquant_3bit_t", 64, torch.float32),
]
"""All widths of codes, chunks of 16 and 32, a head with an odd factor."""


@pytest.mark.parametrize("preset, head_dim, dtype", CASES)
def test_decodes_any_codes_to_the_references_numbers(
    preset: str, head_dim: int, dtype: torch.dtype
) -> None:
    shape = (2, 2, 11, 3 * head_dim)
    layout = layout_of(torch.empty(shape, dtype=dtype), preset, head_dim, framed=True)
    generator = torch.Generator().manual_seed(head_dim)
    sizes = slots_shape(layout)
    slots = torch.randint(256, sizes, generator=generator, dtype=torch.uint8)
    for field, start in layout.slot.fields:
        norms = torch.rand(sizes[:-1], generator=generator).half()[..., None]
        end = start + field.num_bytes
        slots[..., end - 2 : end] = norms.view(torch.uint8)
    restored = torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)
    views = compressed_views(restored, layout)
    on_device = slots.to(DEVICE)
    assert gpu.supports(views, on_device, layout.slot)
    assert not gpu.encodes(layout.slot)
    with pytest.raises(ValueError, match="No kernel encodes trellis codes"):
        gpu.encode_layers(views, on_device, layout.slot, 0)
    gpu.decode_layers(on_device, views, layout.slot, 0)
    assert_restored_alike(restored.cpu(), reference_decode(slots, layout), head_dim)


RELATIVE_CASES = [
    ("turboquant_4bit_tc", 64, torch.bfloat16, 0.0),
    ("turboquant_2bit_tc", 64, torch.float16, 1e4),
    ("turboquant_3bit_tc", 64, torch.float32, 1e4),
]


@pytest.mark.parametrize("preset, head_dim, dtype, theta", RELATIVE_CASES)
def test_decodes_relative_rows_to_the_references_numbers(
    preset: str, head_dim: int, dtype: torch.dtype, theta: float
) -> None:
    tensor = gaussian(2, 1, 70, 2 * head_dim) + 2 * gaussian(2 * head_dim, seed=1)
    tensor[0, 0, 5], tensor[0, 0, 6, 3] = 0, torch.nan
    tensor = tensor.to(dtype)
    layout = layout_of(tensor, preset, head_dim, framed=True, rope_theta=theta)
    slots = torch.zeros(slots_shape(layout), dtype=torch.uint8)
    table = torch.zeros(layout.side_table.num_bytes, dtype=torch.uint8)
    parts = layout.side_table.parts(table)
    views = kv_views(tensor, layout.geometry)
    reference.encode_layers(views, slots, layout.slot, 0, parts)
    expected = torch.empty_like(tensor)
    views = kv_views(expected, layout.geometry)
    reference.decode_layers(slots, views, layout.slot, 0, parts)
    restored = torch.full_like(tensor, float("nan"), device=DEVICE)
    views = kv_views(restored, layout.geometry)
    parts = layout.side_table.parts(table.to(DEVICE))
    gpu.decode_layers(slots.to(DEVICE), views, layout.slot, 0, parts)
    assert_restored_alike(restored.cpu(), expected, head_dim)
