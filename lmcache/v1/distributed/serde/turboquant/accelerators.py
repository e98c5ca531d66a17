# SPDX-License-Identifier: Apache-2.0
"""The host's accelerators: which one has room and is least used.

CUDA counts devices as CUDA_VISIBLE_DEVICES says, NVML counts all of the machine.
The PCI bus id tells which is which. Neither query creates a context on a device.
"""

# Standard
from dataclasses import dataclass
from functools import lru_cache
import time

# Third Party
import torch

# First Party
from lmcache import torch_dev, torch_device_type

try:
    # Third Party
    from cupy.cuda import runtime as cuda_runtime
    import pynvml
except ImportError:  # Not a host of NVIDIA GPUs, or without the optional packages.
    cuda_runtime = pynvml = None

_SECONDS_VALID = 5


class MemoryShortage(RuntimeError):
    """There is too little memory on an accelerator for an operation."""


@dataclass(frozen=True)
class Accelerator:
    """State of an accelerator.

    Attributes:
        index: Number by which torch knows it.
        free_bytes: Memory that nobody uses.
        utilisation: Per cent of the last moments that it was busy.
    """

    index: int
    free_bytes: int
    utilisation: int


def least_used(num_bytes: int, held: torch.device | None = None) -> torch.device:
    """Choose an accelerator.

    Args:
        num_bytes: Memory that is going to be allocated.
        held: Device on which the caller has allocated it already.

    Returns:
        Of those with room, the least used one; of these, the one with most room.

    Raises:
        MemoryShortage: If no accelerator has as much memory free.
    """
    known = states(int(time.monotonic() / _SECONDS_VALID))
    if len(known) == 1 and held is not None:
        return held
    fit = [
        state
        for state in known
        if state.free_bytes >= num_bytes
        or (held is not None and state.index == held.index)
    ]
    if not fit:
        found = ", ".join(
            f"{torch_device_type}:{state.index} {state.free_bytes}" for state in known
        )
        raise MemoryShortage(
            f"TurboQuant needs {num_bytes} bytes of accelerator memory, found free: "
            f"{found or 'no accelerator'}"
        )
    best = min(fit, key=lambda state: (state.utilisation, -state.free_bytes))
    return torch.device(torch_device_type, best.index)


@lru_cache(maxsize=1)
def states(period: int) -> tuple[Accelerator, ...]:
    """Return the accelerators that can be compared, asked for once a ``period``.

    Without the driver's own figures that is the first one alone: to ask another one
    would create a context on it.

    Args:
        period: Any number; the same one gives the same answer.

    Returns:
        The states, by torch's numbers.
    """
    count = torch_dev.device_count() if torch_dev.is_available() else 0
    if count > 1 and pynvml is not None:
        return _from_nvml(count)
    return tuple(_from_torch(index) for index in range(min(count, 1)))


def _from_torch(index: int) -> Accelerator:
    """Ask a device itself, which creates a context there."""
    free_bytes, _ = torch_dev.mem_get_info(index)
    return Accelerator(index, free_bytes, utilisation=0)


def _from_nvml(count: int) -> tuple[Accelerator, ...]:
    """Ask the driver, without a context on any device."""
    found = []
    pynvml.nvmlInit()
    try:
        for index in range(count):
            bus_id = cuda_runtime.deviceGetPCIBusId(index)
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus_id)
            free_bytes = pynvml.nvmlDeviceGetMemoryInfo(handle).free
            found.append(Accelerator(index, free_bytes, _utilisation(handle)))
    finally:
        pynvml.nvmlShutdown()
    return tuple(found)


def _utilisation(handle: object) -> int:
    """Return the per cent that a device is busy; 0 where the driver cannot tell."""
    try:
        return pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except pynvml.NVMLError_NotSupported:
        return 0
