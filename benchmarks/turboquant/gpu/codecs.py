# SPDX-License-Identifier: Apache-2.0
"""The codecs under test, through LMCache's serializer interface alone.

This module runs with the fork and with the pristine LMCache, each in a process of
its own.
"""

# Standard
from dataclasses import dataclass
from typing import cast

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.fp8 import (
    Fp8QuantizationDeserializer,
    Fp8QuantizationSerializer,
)
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.memory_management import MemoryObj

PRESETS = (
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
CALIBRATED_PRESETS = (
    "turboquant_4bit_cc",
    "turboquant_3bit_cc",
    "turboquant_2bit_cc",
)
"""Presets that only the fork has."""

KEY = ObjectKey(chunk_hash=b"benchmark", model_name="benchmark", kv_rank=0)

_LARGEST_ERRORS = {
    "turboquant_k8v4": 0.02,
    "turboquant_4bit_nc": 0.02,
    "turboquant_4bit_cc": 0.02,
    "turboquant_2bit_cc": 0.25,
}

FORK, UPSTREAM, FP8 = "turboquant", "LMCache 0.5.6 turboquant", "LMCache fp8"


@dataclass(frozen=True)
class Codec:
    """A codec with its settings.

    Attributes:
        name: Which one.
        preset: Its preset; empty where it has none.
        serializer: Encodes.
        deserializer: Decodes.
        largest_error: Relative squared error of Gaussian numbers that it must not
            exceed: about twice what theory says of the preset.
    """

    name: str
    preset: str
    serializer: Serializer
    deserializer: Deserializer
    largest_error: float

    def payload_bytes(self, tensor: torch.Tensor) -> int:
        """Return the bytes that a tensor becomes."""
        description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
        return self.serializer.estimate_serialized_size(description)

    def encode(self, tensor: torch.Tensor, payload: torch.Tensor) -> None:
        """Encode a tensor, and wait until it is done."""
        self.serializer.serialize(_wrapped(tensor), _wrapped(payload), KEY)
        _wait_for(payload)

    def decode(self, payload: torch.Tensor, tensor: torch.Tensor) -> None:
        """Decode a payload, and wait until it is done."""
        self.deserializer.deserialize(_wrapped(payload), _wrapped(tensor), KEY)
        _wait_for(tensor)


class _Object:
    """A memory object, as far as a serde looks."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def codecs_of(name: str) -> list[Codec]:
    """Return a codec with each of its presets.

    Args:
        name: ``FORK``, ``UPSTREAM`` or ``FP8``.

    Returns:
        The codecs.
    """
    if name == FP8:
        fp8 = Fp8QuantizationSerializer(), Fp8QuantizationDeserializer()
        return [Codec(FP8, "", *fp8, largest_error=2e-3)]
    framed = {"framed": True} if name == FORK else {}
    codecs = []
    for preset in PRESETS + (CALIBRATED_PRESETS if name == FORK else ()):
        config = TurboQuantSerdeConfig(
            preset=preset,
            head_dim=128,
            skip_first_layers=0,
            skip_last_layers=0,
            cuda_device="0",
            **framed,
        )
        both = TurboQuantSerializer(config), TurboQuantDeserializer(config)
        error = _LARGEST_ERRORS.get(preset, 0.09)
        codecs.append(Codec(name, preset, *both, largest_error=error))
    return codecs


def _wrapped(tensor: torch.Tensor) -> MemoryObj:
    """Wrap a tensor as the serde's argument."""
    return cast(MemoryObj, _Object(tensor))


def _wait_for(result: torch.Tensor) -> None:
    """Wait for a codec that returns before its result is there."""
    if result.is_cuda:
        torch.cuda.current_stream().synchronize()
