# SPDX-License-Identifier: Apache-2.0
"""The codecs that are compared, on one KV tensor, each through its own door."""

# Standard
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.fp8 import (
    Fp8QuantizationDeserializer,
    Fp8QuantizationSerializer,
)
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
    reference,
)
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.kv_layout import kv_views
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS

SHAPE = (2, 32, 256, 1024)
HEAD_DIM = 128
THREADS = (1, 2)

_LEAST_COSINE = 0.97


class Codec(ABC):
    """Encodes ``tensor`` into ``payload`` and decodes that into ``restored``.

    Args:
        threads: Threads to work with, torch's included.
        shape: Shape of the KV tensor, Gaussian bfloat16.
    """

    def __init__(self, threads: int, shape: tuple[int, ...] = SHAPE) -> None:
        torch.set_num_threads(threads)
        self.threads = threads
        generator = torch.Generator().manual_seed(0)
        self.tensor = torch.randn(shape, generator=generator).bfloat16()
        self.restored = torch.zeros_like(self.tensor)
        self.payload = torch.zeros(self.tensor.nbytes, dtype=torch.uint8)
        self.payload_bytes = 0

    @abstractmethod
    def encode(self) -> None:
        """Fill the payload and set ``payload_bytes``."""

    @abstractmethod
    def decode(self) -> None:
        """Fill the restored tensor."""

    @property
    def ratio(self) -> float:
        """Bytes of the tensor over bytes of the payload."""
        return self.tensor.nbytes / self.payload_bytes

    @property
    def cosine(self) -> float:
        """Cosine between the tensor and what was restored."""
        exact, restored = self.tensor.double(), self.restored.double()
        return float(torch.cosine_similarity(exact.view(-1), restored.view(-1), dim=0))

    def check(self) -> None:
        """Raise RuntimeError unless a round trip does what the codec is for."""
        self.restored.fill_(float("nan"))
        self.encode()
        self.decode()
        if not self.cosine > _LEAST_COSINE:
            raise RuntimeError(f"{type(self).__name__} restored a cosine {self.cosine}")


class SerdePair(Codec):
    """A serializer and a deserializer that take objects with a tensor."""

    serializer: Any
    deserializer: Any
    key: tuple[ObjectKey | None, ...] = ()

    def encode(self) -> None:
        self.payload_bytes = self.serializer.serialize(
            SimpleNamespace(tensor=self.tensor),
            SimpleNamespace(tensor=self.payload),
            *self.key,
        )

    def decode(self) -> None:
        self.deserializer.deserialize(
            SimpleNamespace(tensor=self.payload[: self.payload_bytes]),
            SimpleNamespace(tensor=self.restored),
            *self.key,
        )


class TurboQuant(SerdePair):
    """This package's serde on the CPU, frame and checksum included."""

    key = (ObjectKey(chunk_hash=bytes(8), model_name="benchmark", kv_rank=0),)

    def __init__(
        self, threads: int, shape: tuple[int, ...] = SHAPE, *, preset: str
    ) -> None:
        super().__init__(threads, shape)
        config = TurboQuantSerdeConfig(
            preset=preset,
            head_dim=HEAD_DIM,
            skip_first_layers=0,
            skip_last_layers=0,
            framed=True,
            cpu_threads=threads,
        )
        self.frame = container_of(
            MemoryLayoutDesc([self.tensor.shape], [self.tensor.dtype]), config
        )
        self.serializer = TurboQuantSerializer(config)
        self.deserializer = TurboQuantDeserializer(config)

    def check(self) -> None:
        """Also compare every byte and number with the reference's."""
        super().check()
        layout, span = self.frame.layouts[0], self.frame.spans[0]
        specified = torch.zeros_like(self.payload[span])
        slots = specified[layout.slots_span].view(layout.compressed_shape)
        table = layout.side_table.parts(specified[layout.side_table_span])
        views = kv_views(self.tensor, layout.geometry)
        reference.encode_layers(views, slots, layout.slot, 0, table)
        if not torch.equal(self.payload[span], specified):
            raise RuntimeError("The payload differs from the reference's")
        restored = torch.empty_like(self.restored)
        views = kv_views(restored, layout.geometry)
        reference.decode_layers(slots, views, layout.slot, 0, table)
        if not torch.equal(restored, self.restored):
            raise RuntimeError("The restored tensor differs from the reference's")


class Fp8(SerdePair):
    """LMCache's fp8 serde."""

    serializer = Fp8QuantizationSerializer()
    deserializer = Fp8QuantizationDeserializer()
    key = (None,)


class Tqai(SerdePair):
    """tqai's plugin, called directly: it cannot run inside LMCache 0.5.6."""

    def __init__(self, threads: int, shape: tuple[int, ...] = SHAPE) -> None:
        super().__init__(threads, shape)
        # Third Party
        from lmcache_turbo_quant_serde import TqaiDeserializer, TqaiSerializer

        self.serializer = TqaiSerializer(head_dim=HEAD_DIM, bits=4)
        self.deserializer = TqaiDeserializer()


class Copy(Codec):
    """A copy of the raw bytes: the ceiling."""

    def encode(self) -> None:
        self.payload_bytes = self.tensor.nbytes
        self.payload.copy_(self.tensor.view(torch.uint8).view(-1))

    def decode(self) -> None:
        self.restored.view(torch.uint8).view(-1).copy_(self.payload)


FRAMED_PRESETS = ("turboquant_4bit_cc", "turboquant_4bit_tc", "turboquant_4bit_t")
"""Of the presets that LMCache 0.5.6 lacks, those that are timed."""

CODECS: dict[str, Callable[..., Codec]] = {
    preset: partial(TurboQuant, preset=preset) for preset in (*PRESETS, *FRAMED_PRESETS)
}
CODECS |= {"tqai 4-bit": Tqai, "LMCache fp8": Fp8, "memcpy": Copy}

MISSING = (
    {}
    if find_spec("lmcache_turbo_quant_serde") and find_spec("tqai")
    else {
        "tqai 4-bit": "pip install --no-deps "
        "lmcache-turbo-quant-serde==0.1.0 tqai==0.6.1"
    }
)
"""Codecs that are not installed, and what installs them."""
