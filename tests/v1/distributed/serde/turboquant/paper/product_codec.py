# SPDX-License-Identifier: Apache-2.0
"""Algorithm 2, which makes inner products unbiased. The serde does not use it."""

# Standard
from dataclasses import dataclass
from functools import lru_cache
import math

# Third Party
import numpy as np
import torch

# First Party
from tests.v1.distributed.serde.turboquant.paper.subjects import (
    CPU_KERNELS,
    KeyCodec,
)


@dataclass(frozen=True)
class ProductCodec:
    """Algorithm 2 with b bits: b - 1 bits of Algorithm 1 and a sign of the residual.

    The signs are those of Definition 1 (QJL), of as many Gaussian projections of
    the residual as it has dimensions.

    Attributes:
        base: Codec of the first b - 1 bits.
        weight: What a sign counts, times d; ``sqrt(pi / 2)`` makes inner products
            unbiased (Lemma 4).
    """

    base: KeyCodec
    weight: float = math.sqrt(math.pi / 2)

    def restore(
        self, keys: torch.Tensor, bits: int, sketches: torch.Tensor
    ) -> torch.Tensor:
        """Encode and decode unit keys.

        Args:
            keys: float32 ``[layers, rows, dim]``.
            bits: Bits a dimension, both parts together.
            sketches: Gaussian matrices ``[layers, dim, dim]``.

        Returns:
            float32 keys of the same shape.
        """
        first = torch.zeros_like(keys)
        if bits > 1:
            first = self.base.restore_uncorrected(keys, bits - 1)
        residuals = keys - first
        signs = torch.where(residuals @ sketches.mT >= 0, 1.0, -1.0)
        norms = residuals.norm(dim=-1, keepdim=True).half().float()
        return first + self.weight / keys.shape[-1] * norms * (signs @ sketches)


PRODUCT = ProductCodec(CPU_KERNELS)


@lru_cache(maxsize=4)
def gaussian_sketches(layers: int, dim: int, seed: int) -> torch.Tensor:
    """Draw Gaussian matrices ``[layers, dim, dim]`` from NumPy's frozen stream."""
    numbers = np.random.RandomState(seed).standard_normal((layers, dim, dim))
    return torch.from_numpy(numbers.astype(np.float32))
