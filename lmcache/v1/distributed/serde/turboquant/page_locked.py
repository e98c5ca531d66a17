# SPDX-License-Identifier: Apache-2.0
"""Page-locked host memory: which an accelerator reaches, and where its regions meet.

LMCache locks its L1 memory region by region, the later ones while it already serves.
The driver refuses a copy that crosses from one region into the next. Tensor.is_pinned
asks about the first byte of the storage, which LMCache's alignment may leave out of
the first region, so the driver is asked about the tensor's own bytes.
"""

# Standard
from functools import lru_cache
import ctypes

# Third Party
import torch

# Attributes of a pointer, and a value of the first one, by the driver's numbers.
_MEMORY_TYPE, _RANGE_START, _RANGE_BYTES = 2, 11, 12
_HOST_MEMORY = 1
_ATTRIBUTES = (ctypes.c_int * 3)(_MEMORY_TYPE, _RANGE_START, _RANGE_BYTES)


def seams(tensor: torch.Tensor) -> list[int] | None:
    """Find where page-locked regions meet under a tensor.

    Args:
        tensor: Contiguous host tensor.

    Returns:
        Addresses inside the tensor at which another region begins, in order; None
        if not all of it is page-locked.
    """
    start = tensor.data_ptr()
    stop = start + tensor.nbytes
    found: list[int] = []
    end = region_end(start)
    if end is None:
        return [] if tensor.is_pinned() else None
    while end < stop:
        found.append(end)
        end = region_end(end)
        if end is None:
            return None
    return found


def region_end(address: int) -> int | None:
    """Return where the page-locked region that holds an address ends.

    Args:
        address: Of a byte of host memory.

    Returns:
        Address of the first byte after the region; None if the driver knows of no
        such region, or this host has no NVIDIA driver.
    """
    driver = _driver()
    if driver is None:
        return None
    memory_type = ctypes.c_uint()
    start, num_bytes = ctypes.c_uint64(), ctypes.c_size_t()
    places = (ctypes.c_void_p * 3)(
        *(ctypes.addressof(value) for value in (memory_type, start, num_bytes))
    )
    status = driver.cuPointerGetAttributes(
        3, _ATTRIBUTES, places, ctypes.c_uint64(address)
    )
    end = start.value + num_bytes.value
    is_known = status == 0 and memory_type.value == _HOST_MEMORY and end > address
    return end if is_known else None


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL | None:
    """Return NVIDIA's driver, if the host has one."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
