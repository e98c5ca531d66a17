# SPDX-License-Identifier: Apache-2.0
"""Tables of the trellis code that the kernels look up; needs no Triton."""

# Standard
from functools import lru_cache

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import tables

BITS = (2, 3, 4)
"""Bits a code that there are levels for."""

LEVEL_SCALE = {2: 1.8687562, 3: 1.2532302, 4: 1.0092860}
"""Factors at which float16 represents the levels of N(0, 1) best.

As ``gpu_constants.CENTROID_SCALE``, for the root of the mean square of what rounding
leaves, 7e-6 and 4e-5 of a standard deviation at 2 and 3 bits. At 4 bits no factor
leaves less than 8e-5, see :func:`num_terms`; this one has the least maximum, 2e-4.
"""


def num_terms(bits: int, dtype: torch.dtype) -> int:
    """Return how many float16 numbers a level is the sum of, restored to ``dtype``.

    Rounding of restored numbers hides that of levels where the dtype is narrow and the
    levels are few.
    """
    return 2 if dtype == torch.float32 or bits == 4 else 1


@lru_cache(maxsize=16)
def level_terms(device: torch.device) -> torch.Tensor:
    """Return the levels for all ``BITS``, the most bits first.

    Of ``b`` bits they begin at ``64 - 2 ** (b + 2)``, by ``member | high << (b - 1) |
    low << b``, where ``2 * high + low`` is the subset.

    Args:
        device: Where to put them.

    Returns:
        int32 tensor ``[56]``: a float16 in the lower half, and in the upper half one
        of what rounding left.
    """
    entries = []
    for bits in reversed(BITS):
        levels = tables.trellis_levels(1, bits).double().numpy() * LEVEL_SCALE[bits]
        upper = levels.astype(np.float16)
        lower = (levels - upper).astype(np.float16)
        pairs = np.stack([upper, lower], axis=-1).view(np.uint32)[:, 0]
        # By member, high and low to low, high and member.
        entries.append(pairs.reshape(-1, 2, 2).transpose(2, 1, 0).flatten())
    return torch.from_numpy(np.concatenate(entries).view(np.int32)).to(device)
