# SPDX-License-Identifier: Apache-2.0
"""Which device works on an operation's tensors."""

# Standard
from collections.abc import Sequence
from functools import lru_cache
import os

# Third Party
import torch

# First Party
from lmcache import torch_dev, torch_device_type
from lmcache.v1.distributed.serde.turboquant.accelerators import least_used
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.kernels import has_triton

CPU = torch.device("cpu")


def parse_device(setting: str, name: str) -> torch.device | None:
    """Resolve a configured accelerator.

    Args:
        setting: The setting's name, for the message.
        name: ``"1"``, ``"cuda"`` (the current device) or ``"cuda:1"``; empty
            where none is configured.

    Returns:
        The device, or None for an empty name.

    Raises:
        ValueError: If the host has no such device.
    """
    if not name:
        return None
    kind, _, number = name.rpartition(":") if name[-1].isdigit() else (name, "", "")
    if kind not in ("", torch_device_type) or not torch_dev.is_available():
        raise ValueError(
            f"TurboQuant {setting} {name!r} is not available, the host's "
            f"accelerators: {_accelerators()}"
        )
    index = int(number) if number else torch_dev.current_device()
    if index >= torch_dev.device_count():
        raise ValueError(
            f"TurboQuant {setting} {name!r} is not one of the host's accelerators: "
            f"{_accelerators()}"
        )
    return torch.device(torch_device_type, index)


class DeviceChoice:
    """Which device works on an operation. Thread-safe.

    Args:
        config: Its ``device``, ``cuda_device`` and ``staging_mib`` matter.

    Raises:
        ValueError: If the host has no such device, or the two settings disagree.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        self._setting = config.device
        self._staging_bytes = config.staging_mib << 20
        self._configured = parse_device("cuda_device", config.cuda_device)
        named = None
        if config.device not in ("auto", CPU.type):
            named = parse_device("device", config.device)
        is_one_device = config.device == CPU.type or ":" in config.device
        if config.cuda_device and is_one_device and named != self._configured:
            raise ValueError(
                f"TurboQuant device is {config.device!r}, but cuda_device is "
                f"{config.cuda_device!r}"
            )
        if is_one_device:
            self._configured = named or CPU

    def working_device(
        self, tensors: Sequence[torch.Tensor], held: torch.device | None = None
    ) -> torch.device:
        """Choose the device of one operation.

        The accelerator that holds a tensor of the operation works on it. Where all
        tensors are on the host, the configured device does, or one that is chosen.

        Args:
            tensors: Sources and destination.
            held: Accelerator on which the caller has staging memory already.

        Returns:
            The device to work on.

        Raises:
            ValueError: If the tensors are on different accelerators, or on another
                than the configured one.
            MemoryShortage: If any accelerator would do, but none has room.
        """
        device = self.holding_device(tensors) or self._configured
        if device is not None:
            return device
        if self._setting == "auto" and not has_kernels():
            return CPU
        return least_used(self._staging_bytes, held)

    def holding_device(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        """Return the accelerator that holds a tensor of an operation.

        Args:
            tensors: Sources and destination.

        Returns:
            The accelerator, or None where all tensors are on the host.

        Raises:
            ValueError: As :meth:`working_device`.
        """
        devices = {tensor.device for tensor in tensors if tensor.device != CPU}
        if len(devices) > 1:
            names = ", ".join(sorted(str(device) for device in devices))
            raise ValueError(
                f"TurboQuant expects one accelerator in an operation, got {names}"
            )
        for device in devices:
            if self._configured not in (None, device):
                raise ValueError(
                    f"TurboQuant is configured for {self._configured}, got a tensor on "
                    f"{device}"
                )
            return device
        return None


@lru_cache(maxsize=1)
def has_kernels() -> bool:
    """Return whether the kernels run on the host's accelerators."""
    if not torch_dev.is_available() or not has_triton():
        return False
    # Triton is optional, and takes long to import.
    # First Party
    from lmcache.v1.distributed.serde.turboquant.kernels import gpu_device

    return gpu_device.runs_on(torch.device(torch_device_type, 0))


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def finish_work(device: torch.device) -> None:
    """Wait until the work queued by this thread on ``device`` is complete.

    Args:
        device: The device that worked.
    """
    if device.type != "cpu":
        torch_dev.current_stream(device).synchronize()


def _accelerators() -> str:
    """Name the host's accelerators, for messages."""
    if not torch_dev.is_available():
        return "none"
    return f"{torch_dev.device_count()} of type {torch_device_type}"
