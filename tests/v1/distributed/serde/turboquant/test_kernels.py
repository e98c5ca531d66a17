# SPDX-License-Identifier: Apache-2.0
"""The GPU backend against the reference."""

# Standard
from collections.abc import Callable

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, needs_gpu

# isort: split

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import gpu, gpu_device
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout
from tests.v1.distributed.serde.turboquant.closeness import (
    assert_restored_alike,
    assert_slots_alike,
)
from tests.v1.distributed.serde.turboquant.cpu_helpers import (
    compressed_views,
    layout_of,
    reference_decode,
    reference_encode,
    slots_shape,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    HEAD_DIMS,
    KV_DTYPES,
    POISONS,
    PRESET_NAMES,
    gaussian,
    slot_of,
)

NUM_LAYERS, NUM_TOKENS, NUM_HEADS = 2, 7, 3

CASES = [(preset, 128, dtype) for preset in PRESET_NAMES for dtype in KV_DTYPES] + [
    (preset, head_dim, torch.bfloat16)
    for preset in ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_nc")
    for head_dim in HEAD_DIMS
    if head_dim != 128
]

SHAPES = {
    "split": (2, NUM_LAYERS, NUM_TOKENS, NUM_HEADS * 64),
    "fused": (1, NUM_LAYERS, NUM_TOKENS, NUM_HEADS * 2 * 64),
    "components": (1, 2 * NUM_LAYERS, NUM_TOKENS, NUM_HEADS * 64),
}

ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zero": torch.zeros_like,
    "constant": lambda rows: torch.full_like(rows, 1.3),
    "large": lambda rows: rows * 100,
    "tiny": lambda rows: rows * 1e-6,
    "with an offset": lambda rows: 100 + 0.1 * rows,
    "below an offset": lambda rows: 0.01 * rows - 3000,
    "with an outlier": lambda rows: torch.cat([rows[..., 1:], rows[..., :1] + 6e4], -1),
    "beyond float16": lambda rows: rows * 1e5,
    "partly beyond float16": lambda rows: 65500 + 3 * rows,
    "near the largest": lambda rows: rows.sign() * 3e38,
}
"""Head vectors, made of Gaussian ones, that a careless kernel gets wrong."""

NOT_FINITE = {
    3: [float("nan")],
    7: [float("inf")],
    12: [-float("inf")],
    19: [float("inf"), -float("inf")],
}
"""What some tokens hold."""


def kv_tensor(head_dim: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Split KV of all ``ROWS`` that the dtype can hold, the rest Gaussian."""
    shape = (2, NUM_LAYERS, NUM_TOKENS, NUM_HEADS, head_dim)
    tensor = gaussian(*shape, seed=seed)
    rows = tensor.view(2, -1, head_dim)
    for place, change in enumerate(ROWS.values()):
        changed = change(rows[:, 2 * place + 1])
        if changed.to(dtype).isfinite().all():
            rows[:, 2 * place + 1] = changed
    return tensor.flatten(-2).to(dtype)


def encode(tensor: torch.Tensor, layout: PayloadLayout, poison: int) -> torch.Tensor:
    """Encode into poisoned slots with a gap between layers, which stays."""
    num_layers, num_tokens, num_heads, slot_bytes = slots_shape(layout)
    shape = (num_layers, num_tokens + 3, num_heads, slot_bytes)
    padded = torch.full(shape, poison, dtype=torch.uint8, device=DEVICE)
    slots = padded[:, :num_tokens]
    views = compressed_views(tensor.to(DEVICE), layout)
    assert gpu_device.INTERPRETED or gpu.supports(views, slots, layout.slot)
    gpu.encode_layers(views, slots, layout.slot, layout.quant_start)
    assert (padded[:, num_tokens:] == poison).all()
    return slots.cpu()


def decode(slots: torch.Tensor, layout: PayloadLayout) -> torch.Tensor:
    """Decode into a tensor that is full of NaN."""
    tensor = torch.full(layout.shape, float("nan"), dtype=layout.dtype, device=DEVICE)
    views = compressed_views(tensor, layout)
    gpu.decode_layers(slots.to(DEVICE), views, layout.slot, layout.quant_start)
    return tensor.cpu()


@pytest.mark.parametrize("preset, head_dim, dtype", CASES)
def test_slots_are_the_references(
    preset: str, head_dim: int, dtype: torch.dtype
) -> None:
    tensor = kv_tensor(head_dim, dtype)
    layout = layout_of(tensor, preset, head_dim)
    slots = encode(tensor, layout, POISONS[0])
    assert torch.equal(slots, encode(tensor, layout, POISONS[1]))
    specified = reference_encode(tensor, layout)
    assert_slots_alike(slots, specified, compressed_views(tensor, layout), layout.slot)


@pytest.mark.parametrize("preset, head_dim, dtype", CASES)
def test_decodes_to_the_references_numbers(
    preset: str, head_dim: int, dtype: torch.dtype
) -> None:
    tensor = kv_tensor(head_dim, dtype)
    layout = layout_of(tensor, preset, head_dim)
    slots = reference_encode(tensor, layout)
    restored = decode(slots, layout)
    assert_restored_alike(restored, reference_decode(slots, layout), head_dim)


@pytest.mark.parametrize("kv_layout", SHAPES)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_layouts_and_skipped_layers(preset: str, kv_layout: str) -> None:
    tensor = gaussian(*SHAPES[kv_layout], seed=1).half()
    layout = layout_of(tensor, preset, 64, kv_layout=kv_layout, skip_first_layers=1)
    views = compressed_views(tensor, layout)
    slots, specified = encode(tensor, layout, 0), reference_encode(tensor, layout)
    assert_slots_alike(slots, specified, views, layout.slot, first_layer=1)
    restored, expected = decode(specified, layout), reference_decode(specified, layout)
    assert_restored_alike(restored, expected, 64)


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_rows_that_are_not_finite_stay_alone(dtype: torch.dtype, preset: str) -> None:
    tensor = gaussian(2, 1, 20, 2 * 64).to(dtype)
    layout = layout_of(tensor, preset, 64)
    clean = encode(tensor, layout, 0)
    for token, numbers in NOT_FINITE.items():
        columns = slice(64 + 9, 64 + 9 + len(numbers))
        tensor[:, 0, token, columns] = torch.tensor(numbers).to(dtype)
    slots, specified = encode(tensor, layout, 0), reference_encode(tensor, layout)
    levels = slice(layout.slot.value_offset, layout.slot.used_bytes - 4)
    assert not slots[0, list(NOT_FINITE), 1, levels].any()
    assert not specified[0, list(NOT_FINITE), 1, levels].any()
    changed = (slots != clean).any(dim=-1).nonzero().tolist()
    assert changed == [[0, token, 1] for token in NOT_FINITE]
    expected = reference_decode(specified, layout)
    for written in (slots, specified):
        assert torch.equal(decode(written, layout).isfinite(), expected.isfinite())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_an_outlier_beyond_float16_changes_no_other_row(
    preset: str, dtype: torch.dtype
) -> None:
    tensor = gaussian(2, 1, 20, 2 * 64).to(dtype)
    layout = layout_of(tensor, preset, 64)
    clean = encode(tensor, layout, 0)
    tensor[:, 0, 7, 70] = -1e6
    slots = encode(tensor, layout, 0)
    assert (slots != clean).any(dim=-1).nonzero().tolist() == [[0, 7, 1]]


def test_restored_values_saturate_in_float16() -> None:
    tensor = gaussian(2, 1, 4, 128).half()
    tensor[1, 0, 0] = torch.linspace(-65504, 65504, 128).half()
    layout = layout_of(tensor, "turboquant_4bit_nc", 128)
    restored = decode(encode(tensor, layout, 0), layout)
    assert restored.isfinite().all()
    assert restored[1, 0, 0].max() == torch.finfo(torch.float16).max


def test_nothing_to_do() -> None:
    layout = layout_of(torch.empty(2, 2, 0, 128).half(), "turboquant_4bit_nc", 128)
    slots = torch.empty(slots_shape(layout), dtype=torch.uint8)
    assert decode(slots, layout).numel() == 0
    assert encode(torch.empty(layout.shape).half(), layout, 0).numel() == 0


def views_and_slots(
    head_dim: int, slot: SlotLayout
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Suitable views and slots, of 16 tokens and 2 heads."""
    both = torch.empty(2, 3, 16, 2, head_dim, dtype=torch.half, device=DEVICE)
    shape = (3, 16, 2, slot.slot_bytes)
    return (both[0], both[1]), torch.empty(shape, dtype=torch.uint8, device=DEVICE)


def test_what_it_cannot_do_is_left_to_others() -> None:
    slot = slot_of("turboquant_4bit_nc", 64)
    (keys, values), slots = views_and_slots(64, slot)
    assert gpu.supports((keys, values), slots, slot)
    assert not gpu.supports((keys, values.transpose(1, 2)), slots, slot)
    assert not gpu.supports((keys.mT, values.mT), slots, slot)
    assert not gpu.supports((keys, values), slots[:, ::2], slot)
    odd = torch.empty(slots.numel() + 1, dtype=torch.uint8, device=DEVICE)
    assert not gpu.supports((keys, values), odd[1:].view(slots.shape), slot)
    for head_dim in (72, 528):
        slot = slot_of("turboquant_4bit_nc", head_dim)
        assert not gpu.supports(*views_and_slots(head_dim, slot), slot)


def test_planes_within_a_token_are_left_to_others() -> None:
    tensor = gaussian(1, 2, 5, 2 * 3 * 64).half().to(DEVICE)
    layout = layout_of(tensor, "turboquant_k8v4", 64, kv_layout="fused_planes")
    slots = torch.empty(slots_shape(layout), dtype=torch.uint8, device=DEVICE)
    assert not gpu.supports(compressed_views(tensor, layout), slots, layout.slot)


@needs_gpu
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("preset", ["turboquant_4bit_nc", "turboquant_3bit_nc"])
def test_kernels_without_ptx_do_as_those_with_it(
    preset: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = kv_tensor(128, dtype)
    layout = layout_of(tensor, preset, 128)
    slots = encode(tensor, layout, 0)
    restored = decode(slots, layout)
    monkeypatch.setattr(gpu_device, "INTERPRETED", True)
    views = compressed_views(tensor, layout)
    assert_slots_alike(encode(tensor, layout, 0), slots, views, layout.slot)
    assert_restored_alike(decode(slots, layout), restored, 128)
