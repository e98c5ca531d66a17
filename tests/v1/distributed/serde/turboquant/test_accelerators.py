# SPDX-License-Identifier: Apache-2.0
"""The choice among several accelerators, by what the driver says of them."""

# Standard
from types import SimpleNamespace

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import accelerators
from lmcache.v1.distributed.serde.turboquant.accelerators import (
    MemoryShortage,
    least_used,
)

MIB = 1 << 20
BUS_IDS = ["0000:41:00.0", "0000:01:00.0", "0000:81:00.0"]
"""By torch's numbers, which are not the driver's."""


class NotSupported(Exception):
    """What the driver raises where it has no figure."""


class Driver:
    """Stands in for NVML: free memory and utilisation by bus id."""

    NVMLError_NotSupported = NotSupported

    def __init__(self, figures: dict[str, tuple[int, int | None]]) -> None:
        self.figures = figures
        self.sessions = self.questions = 0

    def nvmlInit(self) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> str:
        return bus_id

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(free=self.figures[handle][0])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> SimpleNamespace:
        self.questions += 1
        busy = self.figures[handle][1]
        if busy is None:
            raise NotSupported
        return SimpleNamespace(gpu=busy)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch):
    """Give the module a host: figures by torch's number, and its clock."""

    def make(*figures: tuple[int, int | None]) -> SimpleNamespace:
        state = SimpleNamespace(now=1000.0)
        state.driver = Driver(dict(zip(BUS_IDS, figures, strict=False)))
        device = SimpleNamespace(
            is_available=lambda: bool(figures),
            device_count=lambda: len(figures),
            mem_get_info=lambda index: (figures[index][0], 1 << 40),
        )
        runtime = SimpleNamespace(deviceGetPCIBusId=lambda index: BUS_IDS[index])
        monkeypatch.setattr(accelerators, "torch_dev", device)
        monkeypatch.setattr(accelerators, "torch_device_type", "cuda")
        monkeypatch.setattr(accelerators, "pynvml", state.driver)
        monkeypatch.setattr(accelerators, "cuda_runtime", runtime)
        monkeypatch.setattr(accelerators.time, "monotonic", lambda: state.now)
        return state

    accelerators.states.cache_clear()
    yield make
    accelerators.states.cache_clear()


def test_the_least_used_with_room_is_chosen(host) -> None:
    host((900 * MIB, 30), (900 * MIB, 10), (10 * MIB, 0))
    assert least_used(64 * MIB) == torch.device("cuda:1")
    assert least_used(MIB) == torch.device("cuda:2")


def test_more_room_decides_between_equally_used_ones(host) -> None:
    host((300 * MIB, 5), (200 * MIB, 5), (900 * MIB, 5))
    assert least_used(64 * MIB) == torch.device("cuda:2")


def test_a_device_without_utilisation_counts_as_idle(host) -> None:
    host((300 * MIB, 5), (200 * MIB, None))
    assert least_used(64 * MIB) == torch.device("cuda:1")


def test_memory_that_the_caller_holds_need_not_be_free(host) -> None:
    host((0, 5), (200 * MIB, 50))
    held = torch.device("cuda:0")
    assert least_used(64 * MIB, held) == held
    assert least_used(64 * MIB) == torch.device("cuda:1")


def test_a_shortage_names_what_is_needed_and_what_was_found(host) -> None:
    host((3 * MIB, 5), (2 * MIB, 5))
    message = f"needs {64 * MIB} bytes .* cuda:0 {3 * MIB}, cuda:1 {2 * MIB}"
    with pytest.raises(MemoryShortage, match=message):
        least_used(64 * MIB)


def test_a_host_without_accelerators_has_none(host) -> None:
    host()
    with pytest.raises(MemoryShortage, match="no accelerator"):
        least_used(1)


def test_a_single_device_needs_no_driver_figures(host) -> None:
    state = host((900 * MIB, 99))
    assert least_used(64 * MIB) == torch.device("cuda:0")
    assert state.driver.questions == 0


def test_without_the_drivers_figures_the_first_device_is_taken(
    host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host((900 * MIB, 99), (999 * MIB, 0))
    monkeypatch.setattr(accelerators, "pynvml", None)
    assert least_used(64 * MIB) == torch.device("cuda:0")


def test_the_driver_is_asked_once_in_seconds(host) -> None:
    state = host((900 * MIB, 0), (900 * MIB, 9))
    for _ in range(3):
        least_used(MIB)
    assert state.driver.questions == 2
    assert state.driver.sessions == 0
    state.now += 10
    state.driver.figures[BUS_IDS[0]] = (900 * MIB, 50)
    assert least_used(MIB) == torch.device("cuda:1")
