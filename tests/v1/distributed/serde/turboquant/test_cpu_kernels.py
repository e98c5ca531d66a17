# SPDX-License-Identifier: Apache-2.0
"""The CPU backend against the reference: the same bytes, the same numbers."""

# Standard
from collections.abc import Callable
from dataclasses import replace

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.config import TWO_WIDTHS
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.kernels import cpu
from lmcache.v1.distributed.serde.turboquant.kv_layout import kv_views
from lmcache.v1.distributed.serde.turboquant.presets import TRELLIS_PRESETS
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout, ValueField
from tests.v1.distributed.serde.turboquant.cpu_helpers import (
    SHAPES,
    assert_same_numbers,
    compressed_views,
    cpu_decode,
    cpu_encode,
    layout_of,
    reference_decode,
    reference_encode,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    POISONS,
    PRESET_NAMES,
    gaussian,
)

CPU_PRESETS = PRESET_NAMES + [
    name for name, preset in TRELLIS_PRESETS.items() if not preset.is_calibrated
]
"""Those without statistics, which ``test_cpu_calibrated`` looks at."""

HEAD_DIMS = [8, 16, 24, 32, 64, 80, 96, 112, 128, 192, 200, 256, 512, 1016, 1024]
"""All powers of two, and odd factors 3, 5, 7, 25 and 127."""

DIMS = st.sampled_from([8, 16, 24, 64, 80, 128])

NO_NUMBER = float("nan")


def one_nan_and_zero(slots: torch.Tensor, slot: SlotLayout) -> torch.Tensor:
    """Replace the NaNs and zeros of float16 fields by one of each.

    Which NaN an operation makes, and which of two zeros is the lower, depends
    on the processor and on torch's version.
    """
    slots, offsets = slots.clone(), []
    for field, start in slot.fields:
        if isinstance(field, ValueField):
            offsets += [start + field.scale_offset, start + field.zero_offset]
        elif not field.is_fp8:
            offsets.append(start + field.norm_offset)
    for offset in offsets if slots.numel() else []:
        numbers = slots[..., offset : offset + 2].clone().view(torch.float16)
        numbers = torch.where(numbers.isnan(), NO_NUMBER, numbers + 0.0).half()
        slots[..., offset : offset + 2] = numbers.view(torch.uint8)
    return slots


@pytest.mark.parametrize("preset", CPU_PRESETS)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_head_dim_and_dtype(preset: str, head_dim: int) -> None:
    for dtype in KV_DTYPES:
        tensor = gaussian(2, 4, 19, 3 * head_dim, seed=head_dim).to(dtype)
        layout = layout_of(
            tensor, preset, head_dim, skip_first_layers=1, skip_last_layers=1
        )
        specified = reference_encode(tensor, layout)
        for poison in POISONS:
            payload = cpu_encode(tensor, layout, poison=poison)
            assert torch.equal(payload, specified)
        restored = cpu_decode(payload, layout)
        assert_same_numbers(restored, reference_decode(specified, layout))


@pytest.mark.parametrize("preset", CPU_PRESETS)
def test_many_rows(preset: str) -> None:
    """Enough rows for differences of one in a hundred thousand to show."""
    tensor = gaussian(2, 4, 1024, 1024, seed=5)
    layout = layout_of(tensor, preset, 128)
    payload = cpu_encode(tensor, layout, threads=2)
    assert torch.equal(payload, reference_encode(tensor, layout))
    restored = cpu_decode(payload, layout, threads=2)
    assert torch.equal(restored, reference_decode(payload, layout))


@pytest.mark.parametrize("preset", ["turboquant_4bit_nc", "turboquant_3bit_nc"])
@pytest.mark.parametrize("head_dim", [8, 24, 80, 128, 256, 1016])
@pytest.mark.parametrize("effort", ["balanced", "best"])
def test_searches_of_every_head_dim(preset: str, head_dim: int, effort: str) -> None:
    """More heads than lanes, more tokens than are sampled, a common part."""
    tensor = gaussian(2, 2, 70, 9 * head_dim, seed=head_dim)
    tensor += 5 * gaussian(2, 2, 1, 9 * head_dim, seed=1)
    layout = layout_of(tensor, preset, head_dim)
    specified = reference_encode(tensor, layout, effort)
    assert not torch.equal(specified, reference_encode(tensor, layout))
    for threads, poison in zip((1, 3), POISONS, strict=True):
        payload = cpu_encode(tensor, layout, threads, poison, effort)
        assert torch.equal(payload, specified)


ROWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gaussian": torch.clone,
    "zero": torch.zeros_like,
    "negative zero": lambda row: -torch.zeros_like(row),
    "mixed zeros": lambda row: row.sign() * 0.0,
    "constant": lambda row: torch.full_like(row, 0.3),
    "one hot": lambda row: torch.eye(1, row.shape[-1])[0] * row,
    "signs": torch.sign,
    "huge": lambda row: row * 3e4,
    "overflowing": lambda row: row * 1e38,
    "tiny": lambda row: row * 1e-6,
    "subnormal": lambda row: row * 1e-40,
    "nearly constant": lambda row: 1 + row * 1e-7,
    "infinite": lambda row: row.index_fill(0, torch.tensor([1]), float("inf")),
    "all infinite": lambda row: row.sign() / 0.0,
    "nan": lambda row: row.index_fill(0, torch.tensor([5]), NO_NUMBER),
    "nan first": lambda row: row.index_fill(0, torch.tensor([0]), NO_NUMBER),
    "all nan": lambda row: torch.full_like(row, NO_NUMBER),
}
"""Head vectors, made of Gaussian ones, that a careless kernel gets wrong."""


@st.composite
def kv_cases(draw: st.DrawFn):
    """A KV tensor of all sorts of rows, its layout and a number of threads."""
    kv_layout = draw(st.sampled_from(list(SHAPES)))
    key_dim, value_dim = draw(DIMS), 0
    if kv_layout in TWO_WIDTHS:
        value_dim = draw(DIMS)
    shape = SHAPES[kv_layout](
        draw(st.integers(0, 5)),
        draw(st.integers(0, 40)),
        draw(st.integers(1, 3)),
        key_dim,
        value_dim,
    )
    tensor = gaussian(*shape, seed=draw(st.integers(0, 999)))
    layout = layout_of(
        tensor,
        draw(st.sampled_from(CPU_PRESETS)),
        key_dim,
        value_head_dim=value_dim,
        kv_layout=kv_layout,
        block_size=draw(st.integers(1, 32)),
        skip_first_layers=draw(st.integers(0, 2)),
        skip_last_layers=draw(st.integers(0, 2)),
    )
    every = draw(st.integers(1, 7))
    for view in kv_views(tensor, layout.geometry):
        assert view is not None
        for place in list(np.ndindex(*view.shape[:3]))[::every]:
            row = ROWS[draw(st.sampled_from(list(ROWS)))](view[place])
            view[place] = row
    tensor = tensor.to(draw(st.sampled_from(KV_DTYPES)))
    return tensor, replace(layout, dtype=tensor.dtype), draw(st.integers(1, 3))


@given(case=kv_cases(), effort=st.sampled_from(list(EFFORTS)))
@settings(max_examples=150)
def test_any_rows_in_any_layout(case, effort: str) -> None:
    tensor, layout, threads = case
    payload = cpu_encode(tensor, layout, threads, effort=effort)
    specified = reference_encode(tensor, layout, effort)
    assert torch.equal(
        one_nan_and_zero(payload, layout.slot),
        one_nan_and_zero(specified, layout.slot),
    )
    restored = cpu_decode(payload, layout, threads)
    assert_same_numbers(restored, reference_decode(payload, layout))


@given(seed=st.integers(0, 10**6), preset=st.sampled_from(CPU_PRESETS))
@settings(max_examples=40)
def test_decoding_any_bytes(seed: int, preset: str) -> None:
    """A payload may come from anywhere: all bytes have one meaning."""
    for dtype in KV_DTYPES:
        layout = layout_of(torch.empty(2, 2, 21, 5 * 64, dtype=dtype), preset, 64)
        noise = np.random.RandomState(seed).bytes(layout.payload_bytes)
        payload = torch.frombuffer(bytearray(noise), dtype=torch.uint8)
        payload = payload.view(layout.compressed_shape)[:, :21]
        restored = cpu_decode(payload, layout)
        assert_same_numbers(restored, reference_decode(payload, layout))


@pytest.mark.parametrize("preset", CPU_PRESETS)
@pytest.mark.parametrize("stranger", ["nan", "all infinite", "overflowing"])
def test_a_strange_row_changes_no_other(preset: str, stranger: str) -> None:
    tensor = gaussian(2, 1, 24, 3 * 64, seed=3)
    layout = layout_of(tensor, preset, 64)
    clean = cpu_encode(tensor, layout)[0]
    tensor[:, 0, 10, 64:128] = ROWS[stranger](tensor[0, 0, 10, 64:128])
    payload = cpu_encode(tensor, layout)[0]
    changed = (payload != clean).any(dim=-1).nonzero().tolist()
    assert changed == [[10, 1]]


@pytest.mark.parametrize("preset", CPU_PRESETS)
def test_strided_tensors_and_misaligned_payloads(preset: str) -> None:
    whole = gaussian(3, 7, 50, 4 * 64, seed=8).half()
    tensor = whole[1:, 2:5, 3:40, 64:192]
    layout = layout_of(tensor, preset, 64, skip_first_layers=1)
    specified = reference_encode(tensor.contiguous(), layout)
    buffer = torch.full((specified.numel() + 3,), 0xA5, dtype=torch.uint8)
    slots = buffer[1:-2].view(specified.shape)
    views = compressed_views(tensor, layout)
    cpu.encode_layers(views, slots, layout.slot, layout.quant_start, 2)
    assert torch.equal(slots, specified)
    assert buffer[0] == 0xA5 and (buffer[-2:] == 0xA5).all()
    canvas = torch.zeros_like(whole)
    target = canvas[1:, 2:5, 3:40, 64:192]
    views = compressed_views(target, layout)
    cpu.decode_layers(slots, views, layout.slot, layout.quant_start, 2)
    expected = reference_decode(specified, layout)[:, 1:]
    assert torch.equal(target[:, 1:], expected)
    target.zero_()
    assert not canvas.any()


def test_what_it_cannot_do_is_left_to_the_reference() -> None:
    keys = gaussian(1, 16, 2, 64)
    slots = torch.empty(1, 16, 2, 70, dtype=torch.uint8)
    assert cpu.supports((keys, keys), slots)
    assert cpu.supports((keys, None), slots)
    assert not cpu.supports((keys, keys.transpose(2, 3)), slots)
    assert not cpu.supports((keys, None), slots[..., ::2])
