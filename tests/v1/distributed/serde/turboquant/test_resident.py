# SPDX-License-Identifier: Apache-2.0
"""Frames made where the tensors are have the bytes of frames made step by step.

Without a GPU the kernels run in Triton's interpreter, on CPU tensors.
"""

# Standard
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, needs_gpu

# isort: split

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig, payload
from lmcache.v1.distributed.serde.turboquant import resident as resident_module
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.kernels import cpu, gpu
from lmcache.v1.distributed.serde.turboquant.memory import StoredTensor
from lmcache.v1.distributed.serde.turboquant.resident import Resident
from tests.v1.distributed.serde.turboquant.helpers import (
    decode,
    encode,
    gaussian,
    unskipped,
)

FINGERPRINT = 0x1234
PRESETS = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_cc")
SHAPE = (2, 2, 64, 64)


@pytest.fixture(autouse=True)
def gpu_kernels_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the GPU's kernels work on CPU tensors too."""
    monkeypatch.setattr(cpu, "supports", lambda *_: False)
    monkeypatch.setattr(payload, "_gpu_or_reference", lambda *_, **__: gpu)


def frame_of(
    tensors: Sequence[torch.Tensor], config: TurboQuantSerdeConfig
) -> FrameLayout:
    """The frame that some tensors become."""
    shapes, dtypes = [x.shape for x in tensors], [x.dtype for x in tensors]
    frame = container_of(MemoryLayoutDesc(shapes, dtypes), config)
    assert isinstance(frame, FrameLayout)
    return frame


def stored(tensor: torch.Tensor) -> StoredTensor:
    """The tensor as part of a memory object."""
    data = tensor.view(-1).view(torch.uint8)
    return StoredTensor(data=data, shape=tensor.shape, dtype=tensor.dtype)


def step_by_step(frame: FrameLayout, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of a frame, made by the functions that know nothing of residents."""
    data = torch.full((frame.total_bytes,), 0xA5, dtype=torch.uint8, device=DEVICE)
    for tensor, layout, span in zip(tensors, frame.layouts, frame.spans, strict=True):
        payload.write_payload(tensor, data[span], layout)
    frame.seal(data, FINGERPRINT)
    return data


@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("preset", PRESETS)
def test_bytes_are_those_of_single_steps(preset: str, skipped: int) -> None:
    config = unskipped(preset, 64, framed=True, skip_first_layers=skipped)
    resident = Resident(DEVICE)
    for seed in range(2):
        both = [gaussian(*SHAPE, seed=seed + x).half().to(DEVICE) for x in (0, 9)]
        frame = frame_of(both, config)
        buffer = torch.full_like(step_by_step(frame, both), 0x5A)
        parts = [stored(tensor) for tensor in both]
        assert resident.encode(frame, parts, buffer, FINGERPRINT)
        assert torch.equal(buffer, step_by_step(frame, both))
        restored = [torch.full_like(tensor, torch.nan) for tensor in both]
        targets = [stored(tensor) for tensor in restored]
        longer = torch.cat([buffer, buffer[:100]])
        assert resident.decode(frame, longer, targets, FINGERPRINT)
        for index, (layout, span) in enumerate(
            zip(frame.layouts, frame.spans, strict=True)
        ):
            expected = torch.empty_like(both[index])
            payload.read_payload(buffer[span], expected, layout)
            assert torch.equal(restored[index], expected)


@pytest.mark.parametrize("place", [3, 40, 200, -1])
def test_a_changed_byte_is_found_before_a_tensor_is_touched(place: int) -> None:
    config = unskipped("turboquant_4bit_nc", 64, framed=True)
    tensor = gaussian(*SHAPE).half().to(DEVICE)
    frame = frame_of([tensor], config)
    buffer = step_by_step(frame, [tensor])
    restored = torch.full_like(tensor, torch.nan)
    resident = Resident(DEVICE)
    buffer[place] ^= 1
    with pytest.raises(ValueError, match="TurboQuant"):
        resident.decode(frame, buffer, [stored(restored)], FINGERPRINT)
    buffer[place] ^= 1
    with pytest.raises(ValueError, match="another key"):
        resident.decode(frame, buffer, [stored(restored)], FINGERPRINT + 1)
    assert restored.isnan().all()
    assert resident.decode(frame, buffer, [stored(restored)], FINGERPRINT)
    assert not restored.isnan().any()


def test_what_kernels_cannot_do_is_left_as_it_is() -> None:
    tensor = gaussian(*SHAPE).half().to(DEVICE)
    config = unskipped("turboquant_4bit_nc", 64, framed=True)
    frame, none = frame_of([tensor], config), frame_of([], config)
    buffer = step_by_step(frame, [tensor])
    before = buffer.clone()
    resident, searching = Resident(DEVICE), Resident(DEVICE, EFFORTS["best"])
    moved = torch.zeros(tensor.nbytes + 1, dtype=torch.uint8, device=DEVICE)[1:]
    odd = StoredTensor(data=moved, shape=tensor.shape, dtype=tensor.dtype)
    assert not searching.encode(frame, [stored(tensor)], buffer, FINGERPRINT)
    assert not resident.encode(frame, [odd], buffer, FINGERPRINT)
    assert not resident.decode(frame, buffer, [odd], FINGERPRINT)
    assert not resident.decode(frame, buffer[:-1], [stored(tensor)], FINGERPRINT)
    assert not resident.encode(none, [], buffer, FINGERPRINT)
    assert not resident.decode(none, buffer, [], FINGERPRINT)
    assert torch.equal(buffer, before)
    assert not moved.any()


def test_the_oldest_layout_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    look = resident_module.quantises_on_gpu

    def noted(*arguments: Any) -> bool:
        looks.append(arguments)
        return look(*arguments)

    monkeypatch.setattr(resident_module, "quantises_on_gpu", noted)
    monkeypatch.setattr(resident_module, "_LAYOUTS_KEPT", 2)
    config = unskipped("turboquant_4bit_nc", 16, framed=True)
    resident = Resident(DEVICE)
    for num_tokens in (1, 2, 3, 3, 2, 1):
        tensor = gaussian(2, 1, num_tokens, 16).half().to(DEVICE)
        frame = frame_of([tensor], config)
        buffer = torch.zeros(frame.total_bytes, dtype=torch.uint8, device=DEVICE)
        assert resident.encode(frame, [stored(tensor)], buffer, FINGERPRINT)
        assert torch.equal(buffer, step_by_step(frame, [tensor]))
    assert len(looks) == 4


@needs_gpu
@pytest.mark.parametrize("preset", PRESETS)
def test_objects_at_all_alignments_are_restored(preset: str) -> None:
    config = unskipped(preset, 64, framed=True)
    tensor = gaussian(*SHAPE).half()
    expected = encode(tensor.to(DEVICE), config)
    resident, frame = Resident(DEVICE), frame_of([tensor], config)
    pool = torch.zeros(2 * tensor.nbytes, dtype=torch.uint8, device=DEVICE)
    for offset in (0, 2, 8, 16, 2, 4, 32, 8, 18):
        data = pool[offset : offset + tensor.nbytes]
        data.copy_(tensor.view(-1).view(torch.uint8))
        part = StoredTensor(data=data, shape=tensor.shape, dtype=tensor.dtype)
        buffer = torch.zeros_like(expected)
        assert resident.encode(frame, [part], buffer, 0)
        assert torch.equal(buffer[frame.header_bytes :], expected[frame.header_bytes :])
        pool.zero_()
        assert resident.decode(frame, buffer, [part], 0)
        restored = data.clone().view(torch.float16).view(SHAPE)
        assert torch.equal(restored, decode(expected, tensor, config))
        assert not pool[:offset].any()
        assert not pool[offset + tensor.nbytes :].any()


@needs_gpu
def test_threads_do_not_disturb_each_other() -> None:
    config = unskipped("turboquant_3bit_cc", 64, framed=True)
    tensors = [gaussian(*SHAPE, seed=seed).half().to(DEVICE) for seed in range(8)]
    expected = [encode(tensor, config) for tensor in tensors]

    def round_trip(index: int) -> bool:
        found = encode(tensors[index % 8], config)
        restored = decode(found, tensors[0], config)
        wanted = decode(expected[index % 8], tensors[0], config)
        return torch.equal(found, expected[index % 8]) and torch.equal(restored, wanted)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(round_trip, range(128)))
