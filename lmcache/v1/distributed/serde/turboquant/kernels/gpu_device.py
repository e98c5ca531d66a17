# SPDX-License-Identifier: Apache-2.0
"""Where Triton kernels run: NVIDIA GPUs, or CPU tensors in Triton's interpreter."""

# Standard
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

# Third Party
import torch
import triton

# First Party
from lmcache import torch_dev

OLDEST_CAPABILITY = (8, 0)
"""The first GPUs with bfloat16."""

INTERPRETED = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, on CPU tensors and without PTX."""


def runs_on(device: torch.device) -> bool:
    """Return whether the kernels can run on a device."""
    if INTERPRETED:
        return device.type == "cpu"
    # ROCm calls its devices "cuda" too.
    is_nvidia = device.type == "cuda" and torch.version.cuda is not None
    return is_nvidia and _cuda_capability(device) >= OLDEST_CAPABILITY


def capability_of(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability, or None for the interpreter."""
    return None if INTERPRETED else _cuda_capability(device)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make ``device`` the current one where it is an accelerator."""
    return nullcontext() if device.type == "cpu" else torch_dev.device(device)


@lru_cache(maxsize=64)
def _cuda_capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a CUDA device."""
    return torch_dev.get_device_capability(device)
