# SPDX-License-Identifier: Apache-2.0
"""Which device works on an operation's tensors."""

# Standard
import os

# Third Party
import torch

# First Party
from lmcache import torch_dev, torch_device_type

CPU = torch.device("cpu")


def parse_device(name: str) -> torch.device | None:
    """Resolve a configured device.

    Args:
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
            f"TurboQuant cuda_device {name!r} is not available, the host's "
            f"accelerators: {_accelerators()}"
        )
    index = int(number) if number else torch_dev.current_device()
    if index >= torch_dev.device_count():
        raise ValueError(
            f"TurboQuant cuda_device {name!r} is not one of the host's accelerators: "
            f"{_accelerators()}"
        )
    return torch.device(torch_device_type, index)


def working_device(
    configured: torch.device | None, *tensors: torch.Tensor
) -> torch.device:
    """Choose the device of one operation.

    The accelerator that holds a tensor of the operation works on it. Where all
    tensors are on the host, the configured device does, else the CPU.

    Args:
        configured: Device of the configuration, or None.
        tensors: Source and destination.

    Returns:
        The device to work on.

    Raises:
        ValueError: If the tensors are on different accelerators, or on another
            than the configured one.
    """
    devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
    if len(devices) > 1:
        names = ", ".join(sorted(str(device) for device in devices))
        raise ValueError(
            f"TurboQuant expects one accelerator in an operation, got {names}"
        )
    for device in devices:
        if configured is not None and device != configured:
            raise ValueError(
                f"TurboQuant cuda_device is {configured}, got a tensor on {device}"
            )
        return device
    return configured or CPU


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
