# SPDX-License-Identifier: Apache-2.0
"""Any pair of fields on the GPU backend, against the reference."""

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE

# isort: split

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_plan import plans_of
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS
from lmcache.v1.distributed.serde.turboquant.slot import (
    SlotLayout,
)
from tests.v1.distributed.serde.turboquant.closeness import (
    assert_restored_alike,
    assert_slots_alike,
)
from tests.v1.distributed.serde.turboquant.cpu_helpers import (
    SHAPES,
    compressed_views,
    layout_of,
    reference_decode,
    reference_encode,
    slots_shape,
)
from tests.v1.distributed.serde.turboquant.helpers import POISONS, gaussian, slot_of

CASES = [
    ("turboquant_4bit_nc", "latent", 64, 0, torch.bfloat16),
    ("turboquant_3bit_nc", "latent", 128, 64, torch.float16),
    ("turboquant_4bit_nc", "latent", 512, 64, torch.bfloat16),
    ("turboquant_k8v4", "latent", 64, 64, torch.bfloat16),
    ("turboquant_4bit_nc", "latent", 64, 64, torch.float32),
    ("turboquant_k3v4_nc", "diff", 192, 128, torch.bfloat16),
    ("turboquant_k8v4", "diff", 64, 80, torch.float32),
    ("turboquant_2bit_cc", "split", 64, 0, torch.bfloat16),
    ("turboquant_k3v2_cc", "fused", 128, 0, torch.float16),
    ("turboquant_k4v3_cc", "components", 80, 0, torch.float32),
]
"""Keys only; two keys; unequal widths; values in a codebook of 2 to 4 bits.

Objects of few tokens have no statistics, whatever the preset.
"""


def tensor_of(
    kv_layout: str, key_dim: int, value_dim: int, dtype: torch.dtype
) -> torch.Tensor:
    """Two layers of nine tokens, with rows that need care."""
    shape = SHAPES[kv_layout](2, 9, 3, key_dim, value_dim)
    tensor = gaussian(*shape, seed=key_dim)
    tensor[..., 3, :] = 0
    tensor[..., 4, :] *= 100
    if dtype != torch.float16:
        tensor[..., 5, 7] = 1e5
    return tensor.to(dtype)


@pytest.mark.parametrize("preset, kv_layout, key_dim, value_dim, dtype", CASES)
def test_bytes_and_numbers_are_the_references(
    preset: str, kv_layout: str, key_dim: int, value_dim: int, dtype: torch.dtype
) -> None:
    tensor = tensor_of(kv_layout, key_dim, value_dim, dtype)
    settings = {"kv_layout": kv_layout, "value_head_dim": value_dim, "framed": True}
    layout = layout_of(tensor, preset, key_dim, **settings)
    views = compressed_views(tensor.to(DEVICE), layout)
    written = []
    for poison in POISONS:
        shape = slots_shape(layout)
        slots = torch.full(shape, poison, dtype=torch.uint8, device=DEVICE)
        assert gpu.supports(views, slots, layout.slot)
        gpu.encode_layers(views, slots, layout.slot, 0)
        written.append(slots.cpu())
    assert torch.equal(*written)
    specified = reference_encode(tensor, layout)
    views = compressed_views(tensor, layout)
    assert_slots_alike(written[0], specified, views, layout.slot)
    restored = torch.full_like(tensor, float("nan"), device=DEVICE)
    views = compressed_views(restored, layout)
    gpu.decode_layers(specified.to(DEVICE), views, layout.slot, 0)
    expected = compressed_views(reference_decode(specified, layout), layout)
    ours = compressed_views(restored.cpu(), layout)
    for view, theirs in zip(ours, expected, strict=True):
        if view is not None and theirs is not None:
            assert_restored_alike(view, theirs, theirs.shape[-1])


def test_equally_wide_fields_take_one_launch() -> None:
    slot = slot_of("turboquant_4bit_nc", 64)
    assert len(plans_of(slot, have_same_rows=True)) == 1
    assert len(plans_of(slot, have_same_rows=False)) == 2
    preset = PRESETS["turboquant_4bit_nc"]
    unequal = SlotLayout.for_preset(preset, 64, 128, keys_only=False)
    assert [plan.head_dim for plan in plans_of(unequal, have_same_rows=True)] == [
        64,
        128,
    ]
    keys_only = SlotLayout.for_preset(preset, 64, 0, keys_only=True)
    assert [plan.view for plan in plans_of(keys_only, have_same_rows=True)] == [0]


@pytest.mark.parametrize("gap", [0, 48])
def test_keys_and_values_of_different_memory(gap: int) -> None:
    slot = slot_of("turboquant_k3v4_nc", 64)
    keys = gaussian(2, 20, 1, 64, seed=5).half().to(DEVICE)
    storage = torch.zeros(gap + keys.numel(), dtype=torch.half, device=DEVICE)
    values = storage[gap:].view(keys.shape)
    values.copy_(gaussian(2, 20, 1, 64, seed=6))
    together = torch.stack([keys, values])
    slots = torch.zeros(2, 2, 20, 1, slot.slot_bytes, dtype=torch.uint8, device=DEVICE)
    gpu.encode_layers((keys, values), slots[0], slot, 0)
    gpu.encode_layers((together[0], together[1]), slots[1], slot, 0)
    assert torch.equal(slots[0], slots[1])
