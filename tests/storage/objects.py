# SPDX-License-Identifier: Apache-2.0
"""What is stored: a few chunks of KV, and what the codec alone makes of them."""

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from tests.v1.distributed.serde.turboquant.helpers import (
    gaussian,
    object_key,
    restored_alone,
)

Objects = dict[ObjectKey, torch.Tensor]

LIKE = torch.empty(2, 10, 256, 2 * 64, dtype=torch.bfloat16)
RAW_LAYERS = [0, 9]

PAYLOAD_BYTES = {
    "turboquant_k8v4": 675_840,
    "turboquant_4bit_nc": 552_960,
    "turboquant_k3v4_nc": 520_192,
    "turboquant_3bit_nc": 487_424,
}
"""Bytes of an object in L2, of 1,310,720: a header of 128, two layers of 131,072, and
eight of 512 slots of 100, 70, 62 or 54 bytes, in pages of 4,096."""


def settings_of(preset: str = "turboquant_4bit_nc") -> dict[str, object]:
    """Settings of a serde that leaves ``RAW_LAYERS`` alone."""
    return {
        "preset": preset,
        "head_dim": 64,
        "skip_first_layers": 1,
        "skip_last_layers": 1,
    }


def config_of(preset: str) -> TurboQuantSerdeConfig:
    """What the serde makes of those settings."""
    return TurboQuantSerdeConfig.from_kwargs({**settings_of(preset), "framed": True})


def random_objects(count: int = 4, first: int = 0, model: str = "m") -> Objects:
    """Chunks of Gaussian KV."""
    return {
        object_key(chunk, model): gaussian(*LIKE.shape, seed=chunk).to(LIKE.dtype)
        for chunk in range(first, first + count)
    }


def expected_of(objects: Objects, preset: str = "turboquant_4bit_nc") -> Objects:
    """What the codec alone restores."""
    config = config_of(preset)
    return {key: restored_alone(tensor, config, key) for key, tensor in objects.items()}


def assert_equal(loaded: Objects, expected: Objects) -> None:
    """The same objects, bit for bit."""
    assert loaded.keys() == expected.keys()
    wrong = [key for key in loaded if not torch.equal(loaded[key], expected[key])]
    assert not wrong
