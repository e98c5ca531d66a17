# SPDX-License-Identifier: Apache-2.0
"""Which host memory is page-locked, and where its regions meet."""

# Standard
from collections.abc import Iterator
import time

# Third Party
import pytest
import torch

# First Party
from lmcache import torch_dev
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerializer,
    page_locked,
)
from lmcache.v1.distributed.serde.turboquant.transfers import Direct
from lmcache.v1.distributed.serde.turboquant.workspace import Workspace
from lmcache.v1.memory_allocators.lazy_memory_allocator import LazyMemoryAllocator
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, needs_gpu
from tests.v1.distributed.serde.turboquant.helpers import (
    KEY,
    decode,
    encode,
    gaussian,
    memory_obj,
    unskipped,
)

PIN_BYTES = LazyMemoryAllocator.PIN_CHUNK_SIZE
PAGE_BYTES = 4096
TIMEOUT_SECONDS = 30.0


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        ([(0, 100)], []),
        ([(-50, 1000)], []),
        ([(-50, 30), (30, 200)], [30]),
        ([(0, 30), (30, 60), (60, 100)], [30, 60]),
        ([(-50, 30), (31, 200)], None),
        ([(0, 99)], None),
        ([(1, 100)], None),
        ([], None),
    ],
)
def test_seams_are_where_regions_meet(
    monkeypatch: pytest.MonkeyPatch,
    regions: list[tuple[int, int]],
    expected: list[int] | None,
) -> None:
    tensor = torch.zeros(100, dtype=torch.uint8)
    begin = tensor.data_ptr()

    def region_end(address: int) -> int | None:
        ends = (stop for start, stop in regions if start <= address - begin < stop)
        return next((begin + stop for stop in ends), None)

    monkeypatch.setattr(page_locked, "region_end", region_end)
    found = page_locked.seams(tensor)
    assert found == (None if expected is None else [begin + at for at in expected])


def test_pageable_memory_is_in_no_region() -> None:
    tensor = torch.zeros(100, dtype=torch.uint8)
    assert page_locked.region_end(tensor.data_ptr()) is None
    assert page_locked.seams(tensor) is None


@pytest.mark.parametrize("seams", [[], [0], [10], [37, 40, 41], [63, 64, 100]])
def test_no_copy_crosses_a_seam(seams: list[int]) -> None:
    host = torch.arange(64, dtype=torch.uint8)
    spans = [slice(2, 20), slice(30, 50), slice(60, 64)]
    expected = torch.cat([host[span] for span in spans])
    addresses = [host.data_ptr() + seam for seam in seams]
    path, device = Direct(addresses), torch.zeros_like(expected)
    stream = torch_dev.Stream() if torch_dev.is_available() else None
    path.send(host, spans, device, stream)
    assert torch.equal(device, expected)
    back = torch.zeros_like(host)
    Direct([back.data_ptr() + seam for seam in seams]).receive(
        device, back, spans, stream
    )
    assert torch.equal(torch.cat([back[span] for span in spans]), expected)
    assert int(back.sum()) == int(expected.sum())


@pytest.fixture
def l1_memory() -> Iterator[torch.Tensor]:
    """LMCache's L1 memory after it has grown, in four page-locked regions."""
    num_bytes = 4 * PIN_BYTES
    allocator = LazyMemoryAllocator(PIN_BYTES, num_bytes)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while allocator.get_address_manager().get_heap_size() < num_bytes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield allocator.get_underlying_buffer()
    finally:
        allocator.close()


def across(memory: torch.Tensor, boundary: int, like: torch.Tensor) -> torch.Tensor:
    """Zeros as large as a tensor, half of them before the end of a region."""
    start = boundary * PIN_BYTES - like.nbytes // 2 // PAGE_BYTES * PAGE_BYTES
    data = memory[start : start + like.nbytes].zero_()
    return data.view(like.dtype).view(like.shape)


@needs_gpu
def test_l1_memory_is_reached_region_by_region(l1_memory: torch.Tensor) -> None:
    begin = l1_memory.data_ptr()
    regions = [begin + number * PIN_BYTES for number in range(1, 4)]
    assert page_locked.seams(l1_memory) == regions
    assert page_locked.seams(l1_memory[100:200]) == []
    assert Workspace(DEVICE, 1 << 20).seams(l1_memory[-10:]) == []


@needs_gpu
@pytest.mark.parametrize("preset", ["turboquant_k8v4", "turboquant_4bit_nc"])
def test_objects_across_regions(l1_memory: torch.Tensor, preset: str) -> None:
    config = unskipped(preset, 128, framed=True)
    tensor = gaussian(2, 9, 512, 1024).bfloat16()
    expected = encode(tensor.to(DEVICE), config)
    source, payload = across(l1_memory, 1, tensor), across(l1_memory, 2, expected)
    restored = across(l1_memory, 3, tensor)
    source.copy_(tensor)
    TurboQuantSerializer(config).serialize(memory_obj(source), memory_obj(payload), KEY)
    assert torch.equal(payload, expected.cpu())
    TurboQuantDeserializer(config).deserialize(
        memory_obj(payload), memory_obj(restored), KEY
    )
    assert torch.equal(restored, decode(expected, tensor.to(DEVICE), config).cpu())
