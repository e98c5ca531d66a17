# SPDX-License-Identifier: Apache-2.0
"""Host tensors on an accelerator, and on the CPU where that has too little memory."""

# Standard
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
import threading

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
    engine,
)
from lmcache.v1.distributed.serde.turboquant.accelerators import MemoryShortage
from lmcache.v1.distributed.serde.turboquant.device import DeviceChoice
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, needs_gpu
from tests.v1.distributed.serde.turboquant.helpers import (
    KEY,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    memory_obj,
    unskipped,
)
from tests.v1.distributed.serde.turboquant.log_recorder import (
    LogRecorder,
    recorded_log,
)

TENSOR = gaussian(2, 6, 40, 2 * 64).half()
CONFIG = unskipped("turboquant_4bit_nc", 64, framed=True, staging_mib=1)


def host_encode(
    tensor: torch.Tensor, config: TurboQuantSerdeConfig, pinned: bool = False
) -> torch.Tensor:
    """Serialize a host tensor on whatever device ``config`` chooses."""
    size = encode(tensor, config).numel()
    payload = torch.full((size,), 0xA5, dtype=torch.uint8, pin_memory=pinned)
    source = tensor.pin_memory() if pinned else tensor
    TurboQuantSerializer(config).serialize(memory_obj(source), memory_obj(payload), KEY)
    return payload


def host_decode(
    payload: torch.Tensor, config: TurboQuantSerdeConfig, pinned: bool = False
) -> torch.Tensor:
    """Deserialize into a host tensor like ``TENSOR``."""
    restored = torch.full(TENSOR.shape, torch.nan, dtype=TENSOR.dtype)
    restored = restored.pin_memory() if pinned else restored
    target = memory_obj(restored)
    TurboQuantDeserializer(config).deserialize(memory_obj(payload), target, KEY)
    return restored


class ShortStager:
    """A stager that finds too little memory when it starts to work."""

    def __init__(self, device: torch.device, *_: object) -> None:
        self.device = device

    def encode(self, *_: object) -> None:
        raise_shortage()

    def decode(self, *_: object) -> None:
        raise_shortage()


def raise_shortage(*_: object) -> None:
    """Stand in for memory that is not there."""
    raise MemoryShortage("TurboQuant needs 5 bytes, found 4")


@pytest.fixture
def accelerator_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send host tensors to an accelerator that the host need not have."""

    def working_device(*_: object) -> torch.device:
        return torch.device("cuda:0")

    monkeypatch.setattr(DeviceChoice, "working_device", working_device)


@pytest.fixture
def warnings() -> Iterator[LogRecorder]:
    """What LMCache warns of meanwhile."""
    with recorded_log() as recorder:
        yield recorder


@pytest.mark.usefixtures("accelerator_is_chosen")
@pytest.mark.parametrize("stager", [raise_shortage, ShortStager])
def test_the_cpu_works_where_memory_is_short(
    stager: object, monkeypatch: pytest.MonkeyPatch, warnings: LogRecorder
) -> None:
    monkeypatch.setattr(engine, "Stager", stager)
    expected = encode(TENSOR, CONFIG)
    serializer, deserializer = TurboQuantSerializer(CONFIG), TurboQuantDeserializer
    said = []
    for _ in range(3):
        payload = torch.zeros_like(expected)
        serializer.serialize(memory_obj(TENSOR), memory_obj(payload), KEY)
        assert torch.equal(payload, expected)
        said.append(len(warnings.about("CPU for now: TurboQuant needs 5 bytes")))
    assert said[0] == said[1] == said[2] > 0
    restored = torch.empty_like(TENSOR)
    deserializer(CONFIG).deserialize(memory_obj(expected), memory_obj(restored), KEY)
    assert torch.equal(restored, decode(expected, TENSOR, CONFIG))


@pytest.mark.usefixtures("accelerator_is_chosen")
@pytest.mark.parametrize("preset", ["turboquant_4bit_t", "turboquant_2bit_tc"])
def test_the_cpu_takes_trellis_codes(
    preset: str, monkeypatch: pytest.MonkeyPatch, warnings: LogRecorder
) -> None:
    config = unskipped(preset, 64, framed=True)
    monkeypatch.setattr(engine, "Stager", ShortStager)
    expected = encode(TENSOR, config)
    assert torch.equal(host_encode(TENSOR, config), expected)
    assert torch.equal(host_decode(expected, config), decode(expected, TENSOR, config))
    assert not warnings.about("CPU for now")


@needs_gpu
@pytest.mark.parametrize("preset", ["turboquant_4bit_t", "turboquant_2bit_tc"])
def test_trellis_codes_of_a_gpu(preset: str) -> None:
    config = unskipped(preset, 64, framed=True, staging_mib=1)
    expected = encode(TENSOR, config)
    assert torch.equal(encode(TENSOR.to(DEVICE), config).cpu(), expected)
    restored = host_decode(expected, config)
    torch.testing.assert_close(
        restored, decode(expected, TENSOR, config), rtol=2**-9, atol=2**-9
    )


@needs_gpu
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_staged_bytes_are_those_of_a_resident_tensor(
    preset: str, framed: bool, pinned: bool
) -> None:
    config = unskipped(preset, 64, framed=framed, staging_mib=1)
    resident = encode(TENSOR.to(DEVICE), config)
    payload = host_encode(TENSOR, config, pinned)
    assert torch.equal(payload, resident.cpu())
    restored = host_decode(payload, config, pinned)
    assert torch.equal(restored, decode(resident, TENSOR, config).cpu())


@needs_gpu
def test_an_exhausted_gpu_leaves_the_work_to_the_cpu(warnings: LogRecorder) -> None:
    expected = encode(TENSOR, CONFIG)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-7)
    try:
        payload = host_encode(TENSOR, replace(CONFIG, staging_mib=4096))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(payload, expected)
    assert warnings.about("works on the CPU for now")


@needs_gpu
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_workers_do_not_disturb_each_other(workers: int) -> None:
    tensors = [gaussian(*TENSOR.shape, seed=seed).half() for seed in range(16)]
    expected = [encode(tensor.to(DEVICE), CONFIG).cpu() for tensor in tensors]
    serializer = TurboQuantSerializer(CONFIG)
    before = torch.cuda.current_device()

    def run(tensor: torch.Tensor) -> torch.Tensor:
        payload = torch.full_like(expected[0], 0x5A).pin_memory()
        source = memory_obj(tensor.pin_memory())
        serializer.serialize(source, memory_obj(payload), KEY)
        return payload

    with ThreadPoolExecutor(workers) as pool:
        for _ in range(5):
            for payload, whole in zip(pool.map(run, tensors), expected, strict=True):
                assert torch.equal(payload, whole)
    assert torch.cuda.current_device() == before


@needs_gpu
def test_a_worker_gives_its_memory_back() -> None:
    host_encode(TENSOR, CONFIG)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    config = unskipped("turboquant_4bit_nc", 64, framed=True, staging_mib=256)
    thread = threading.Thread(target=host_encode, args=(TENSOR, config))
    thread.start()
    thread.join()
    assert torch.cuda.memory_reserved() == before
