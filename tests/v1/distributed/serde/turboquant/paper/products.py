# SPDX-License-Identifier: Apache-2.0
"""Inner products of Algorithm 1, for one fixed vector over rotations."""

# Standard
import math

# Third Party
import torch

# First Party
from tests.v1.distributed.serde.turboquant.paper import theory
from tests.v1.distributed.serde.turboquant.paper.result import (
    Result,
    around,
    beside,
    estimate,
)
from tests.v1.distributed.serde.turboquant.paper.subjects import (
    KeyCodec,
    unit_vectors,
)

DIM = 128
ROTATIONS = 256
BITS = (1, 2, 3, 4)


def conditional_products(subject: KeyCodec) -> list[Result]:
    """Algorithm 1 for one fixed vector, over rotations: E<y, x~> by y.

    For y = x it is the cosine: what norm correction leaves of the bias 1 - D(b).
    0xSero/turboquant's check averages errors over random pairs, which are symmetric:
    every mutant here passes it, zeros included.
    """
    decaying = 0.97 ** torch.arange(float(DIM))
    vectors = torch.stack([unit_vectors(DIM, seed=5), decaying / decaying.norm()])
    names = ("random x", "x falling off by 0.97 an entry")
    keys = vectors.expand(ROTATIONS, 2, DIM)
    results = []
    for bits in BITS:
        restored = subject.restore(keys, bits).unbind(dim=1)
        for name, vector, rows in zip(names, vectors, restored, strict=True):
            along = estimate(rows @ vector)
            across = estimate(rows @ orthogonal_to(vector))
            deviation = (theory.mse_distortion(DIM, bits) / DIM / ROTATIONS) ** 0.5
            results += [
                Result(
                    claim="E<x, x~> of Algorithm 1, norms corrected",
                    source="bias of Algorithm 1",
                    case=str(bits),
                    setting=f"d = {DIM}, {name}",
                    measured=along.mean,
                    error=along.error,
                    **beside(theory.cosine(DIM, bits), 0.01 if bits == 1 else 0.004),
                ),
                Result(
                    claim="E<y, x~> of Algorithm 1, y orthogonal to x",
                    source="bias of Algorithm 1",
                    case=str(bits),
                    setting=f"d = {DIM}, {name}",
                    measured=across.mean,
                    error=across.error,
                    **beside(0.0, 6 * deviation),
                ),
            ]
    return results


def one_bit_bias(subject: KeyCodec) -> list[Result]:
    """Without norm correction, a single bit shrinks inner products by 2 / pi."""
    vector = unit_vectors(DIM, seed=6)
    restored = subject.restore_uncorrected(vector.expand(ROTATIONS, 1, DIM), 1)
    measured = estimate(restored[:, 0] @ vector)
    return [
        Result(
            claim="E<x, x~> of Algorithm 1: biased by 2 / pi",
            source="bias of Algorithm 1",
            case="1",
            setting=f"d = {DIM}",
            measured=measured.mean,
            error=measured.error,
            **around(2 / math.pi, 0.015),
        )
    ]


def orthogonal_to(vector: torch.Tensor) -> torch.Tensor:
    """Return a unit vector orthogonal to a unit vector."""
    other = unit_vectors(len(vector), seed=11)
    other = other - (other @ vector) * vector
    return other / other.norm()
