# SPDX-License-Identifier: Apache-2.0
"""How long a GPU's kernels run meanwhile."""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Third Party
from torch.profiler import ProfilerActivity, profile
import torch

_COPIES = ("Memcpy", "Memset")


@dataclass
class KernelTime:
    """Time of all kernels of this process.

    Attributes:
        milliseconds: Their sum; copies run on engines of their own and do not count.
    """

    milliseconds: float = 0.0


@contextmanager
def kernel_time() -> Iterator[KernelTime]:
    """Trace the GPU meanwhile; what is done takes longer.

    Yields:
        The time, which is there afterwards; 0 where there is no NVIDIA GPU.
    """
    time = KernelTime()
    if not torch.cuda.is_available():
        yield time
        return
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as trace:
        yield time
        torch.cuda.synchronize()
    time.milliseconds = sum(
        event.self_device_time_total / 1e3
        for event in trace.key_averages()
        if not event.key.startswith(_COPIES)
    )
