# SPDX-License-Identifier: Apache-2.0
"""Small objects with their keys, and what the codec alone makes of them."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from tests.v1.distributed.serde.turboquant.helpers import (
    gaussian,
    object_key,
    restored_alone,
    unskipped,
)

SETTINGS: dict[str, object] = {
    "preset": "turboquant_4bit_nc",
    "head_dim": 64,
    "skip_last_layers": 1,
}
CONFIG = unskipped(
    "turboquant_4bit_nc", 64, skip_first_layers=2, skip_last_layers=1, framed=True
)
"""What the serde makes of ``SETTINGS``."""

LIKE = torch.empty(2, 5, 16, 2 * 64, dtype=torch.bfloat16)

Objects = dict[ObjectKey, torch.Tensor]


def random_objects(count: int = 4, first_chunk: int = 0) -> Objects:
    """Objects of Gaussian KV."""
    return {
        object_key(chunk): gaussian(*LIKE.shape, seed=chunk).to(LIKE.dtype)
        for chunk in range(first_chunk, first_chunk + count)
    }


def expected_of(objects: Objects) -> Objects:
    """What the codec alone makes of objects."""
    return {key: restored_alone(tensor, CONFIG) for key, tensor in objects.items()}


def assert_right(loaded: Objects, expected: Objects) -> None:
    """Nothing that was loaded is anything but what it should be."""
    wrong = [key for key in loaded if not torch.equal(loaded[key], expected[key])]
    assert not wrong
