# SPDX-License-Identifier: Apache-2.0
"""Encrypted payloads: memory objects, keys, and both directions in one call."""

# Standard
from pathlib import Path

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.encrypted import encrypt_payloads
from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
from tests.v1.distributed.serde.turboquant.helpers import KEY, gaussian, unskipped
from tests.v1.distributed.serde.turboquant.storage import describe, tensor_of

CONFIG = unskipped("turboquant_4bit_nc", 64, framed=True)
TENSOR = gaussian(2, 3, 40, 256).bfloat16()
OVERHEAD = 29
"""A version, an initialisation vector and a tag."""


def memory_of(tensor: torch.Tensor) -> TensorMemoryObj:
    """A memory object of a copy of ``tensor``."""
    data = tensor.clone().view(-1).view(torch.uint8)
    metadata = MemoryObjMetadata(
        shape=tensor.shape,
        dtype=tensor.dtype,
        address=0,
        phy_size=data.numel(),
        ref_count=0,
        shapes=[tensor.shape],
        dtypes=[tensor.dtype],
    )
    return TensorMemoryObj(data, metadata, parent_allocator=None)


def codec_of(
    key_file: Path, config=CONFIG, **settings: object
) -> tuple[Serializer, Deserializer]:
    """The two halves of an encrypting serde."""
    return encrypt_payloads(
        TurboQuantSerializer(config),
        TurboQuantDeserializer(config),
        config,
        {"type": "aesgcm", "master_key_path": str(key_file)} | settings,
    )


def encrypt(
    serializer: Serializer, tensor: torch.Tensor = TENSOR, key: ObjectKey = KEY
) -> torch.Tensor:
    """Serialize into a poisoned buffer that is somewhat too large."""
    size = serializer.estimate_serialized_size(describe(tensor))
    buffer = memory_of(torch.full((size + 100,), 0xA5, dtype=torch.uint8))
    assert serializer.serialize(memory_of(tensor), buffer, key) == size
    assert bool((buffer.raw_data[size:] == 0xA5).all())
    return buffer.raw_data[:size]


def decrypt(
    deserializer: Deserializer,
    payload: torch.Tensor,
    key: ObjectKey = KEY,
    like: torch.Tensor = TENSOR,
) -> torch.Tensor:
    """Deserialize into a new object; what is refused must not touch it."""
    restored = memory_of(torch.full_like(like, 7))
    try:
        deserializer.deserialize(memory_of(payload), restored, key)
    except ValueError:
        assert torch.equal(tensor_of(restored), torch.full_like(like, 7))
        raise
    return tensor_of(restored)
