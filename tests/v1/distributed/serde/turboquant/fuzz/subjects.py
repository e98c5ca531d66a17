# SPDX-License-Identifier: Apache-2.0
"""Small framed payloads of every layout and preset, and what a decoder does."""

# Standard
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import product
from typing import cast

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.kv_content import TensorFormats
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.memory_management import MemoryObj
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    POISONS,
    PRESET_NAMES,
    gaussian,
    memory_obj,
    object_key,
)

OWN_KEY, OTHER_KEY = object_key(0), object_key(1)

LAYOUTS: dict[str, tuple[dict, tuple[int, ...]]] = {
    "auto": ({"head_dim": 8}, (2, 3, 5, 2 * 8)),
    "split": ({"head_dim": 24, "kv_layout": "split"}, (2, 3, 4, 2 * 24)),
    "fused": ({"head_dim": 16, "kv_layout": "fused"}, (1, 3, 5, 2 * 2 * 16)),
    "fused 3-D": ({"head_dim": 16, "kv_layout": "fused"}, (3, 5, 2 * 2 * 16)),
    "planes": ({"head_dim": 16, "kv_layout": "fused_planes"}, (1, 3, 5, 2 * 2 * 16)),
    "diff": (
        {"head_dim": 24, "value_head_dim": 16, "kv_layout": "diff"},
        (1, 3, 5, 2 * (24 + 16)),
    ),
    "latent": (
        {"head_dim": 64, "value_head_dim": 8, "kv_layout": "latent"},
        (1, 3, 5, 64 + 8),
    ),
    "components": ({"head_dim": 16, "kv_layout": "components"}, (1, 6, 5, 2 * 16)),
    "opaque": ({"kv_layout": "opaque"}, (3, 5, 32)),
}
"""Settings and shape by layout; one layer of three is raw."""

OPAQUE_DTYPES = [torch.uint8, torch.float8_e4m3fn, torch.int64]


class Outcome(Enum):
    """What a decoder did with a payload."""

    REFUSED = "refused"
    EXACT = "exact"
    OTHER = "other"
    TOUCHED = "refused too late"
    CRASHED = "crashed"


class Tensors:
    """A memory object: tensors in one buffer, without padding."""

    def __init__(self, description: MemoryLayoutDesc) -> None:
        self._description = description
        self.raw_tensor = torch.empty(size_of(description), dtype=torch.uint8)
        self.tensor = self.raw_tensor

    def get_shapes(self) -> list[torch.Size]:
        """Shapes of the tensors."""
        return self._description.shapes

    def get_dtypes(self) -> list[torch.dtype]:
        """Element types of the tensors."""
        return self._description.dtypes

    def get_tensor_formats(self) -> TensorFormats | None:
        """What is declared of the tensors."""
        return self._description.tensor_formats


def size_of(description: MemoryLayoutDesc) -> int:
    """Bytes of the tensors."""
    pairs = zip(description.shapes, description.dtypes, strict=True)
    return sum(shape.numel() * dtype.itemsize for shape, dtype in pairs)


@dataclass(frozen=True)
class Subject:
    """Payloads of two objects, and the decoder that reads the first.

    Attributes:
        name: What makes it different.
        config: The codec's configuration.
        description: The objects' tensors.
    """

    name: str
    config: TurboQuantSerdeConfig
    description: MemoryLayoutDesc

    def payload_of(self, key: ObjectKey, seed: int) -> bytes:
        """Encode random tensors."""
        source = Tensors(self.description)
        start = 0
        shapes, dtypes = self.description.shapes, self.description.dtypes
        for shape, dtype in zip(shapes, dtypes, strict=True):
            numbers = gaussian(*shape, seed=seed + start).clamp(-3, 3)
            data = numbers.to(dtype).reshape(-1).view(torch.uint8)
            source.raw_tensor[start : start + data.numel()] = data
            start += data.numel()
        serializer = TurboQuantSerializer(self.config)
        size = serializer.estimate_serialized_size(self.description)
        payload = torch.full((size,), 0xA5, dtype=torch.uint8)
        serializer.serialize(cast(MemoryObj, source), memory_obj(payload), key)
        return payload.numpy().tobytes()

    @cached_property
    def own(self) -> bytes:
        """The payload that the decoder is asked for."""
        return self.payload_of(OWN_KEY, seed=1)

    @cached_property
    def other(self) -> bytes:
        """The payload of another object."""
        return self.payload_of(OTHER_KEY, seed=2)

    @cached_property
    def used_bytes(self) -> int:
        """Bytes before the zeros that fill the last page."""
        return container_of(self.description, self.config).spans[-1].stop

    @cached_property
    def deserializer(self) -> TurboQuantDeserializer:
        """The decoder."""
        return TurboQuantDeserializer(self.config)

    @cached_property
    def destination(self) -> Tensors:
        """What is decoded into, again and again."""
        return Tensors(self.description)

    def decode(self, payload: bytes, poison: int) -> torch.Tensor:
        """Decode into tensors full of ``poison``; return their bytes, not a copy."""
        self.destination.raw_tensor.fill_(poison)
        # A buffer that cannot be empty: torch has no view of no bytes.
        source = torch.frombuffer(bytearray(payload + b"\0"), dtype=torch.uint8)[:-1]
        self.deserializer.deserialize(
            memory_obj(source), cast(MemoryObj, self.destination), OWN_KEY
        )
        return self.destination.raw_tensor

    @cached_property
    def restored(self) -> torch.Tensor:
        """What the payload restores, as bytes."""
        return self.decode(self.own, POISONS[0]).clone()

    def outcome_of(self, payload: bytes) -> Outcome:
        """Give a payload to the decoder.

        A payload that is accepted is decoded twice, into tensors full of other
        bytes, which must not show.
        """
        expected = self.restored
        try:
            first = self.decode(payload, POISONS[0]).clone()
            second = self.decode(payload, POISONS[1])
        except ValueError:
            untouched = (self.destination.raw_tensor == POISONS[0]).all()
            return Outcome.REFUSED if untouched else Outcome.TOUCHED
        except Exception:
            return Outcome.CRASHED
        if not torch.equal(first, second):
            return Outcome.CRASHED
        return Outcome.EXACT if torch.equal(first, expected) else Outcome.OTHER


def subject(name: str, shape: tuple[int, ...], dtype: torch.dtype, **settings: object):
    """A subject of one tensor."""
    kwargs = {"framed": True, "skip_first_layers": 1, "skip_last_layers": 0} | settings
    return Subject(
        name=name,
        config=TurboQuantSerdeConfig.from_kwargs(kwargs),
        description=MemoryLayoutDesc([torch.Size(shape)], [dtype]),
    )


def grouped_subject(preset: str) -> Subject:
    """Three tensors in one object, two of them at odd addresses."""
    groups = [{}, {"kv_layout": "fused", "head_dim": 16}, {}]
    kwargs = {"preset": preset, "head_dim": 8, "framed": True, "groups": groups}
    shapes = [(1, 1, 3, 13), (1, 5, 3, 2 * 16), (2, 5, 3, 8)]
    return Subject(
        name=f"groups {preset}",
        config=TurboQuantSerdeConfig.from_kwargs(kwargs),
        description=MemoryLayoutDesc(
            list(map(torch.Size, shapes)), [torch.uint8, torch.half, torch.bfloat16]
        ),
    )


@cache
def all_subjects() -> list[Subject]:
    """Every layout with every preset and dtype, integers, and several tensors."""
    subjects = [
        subject(f"{name} {preset} {dtype}", shape, dtype, preset=preset, **settings)
        for (name, (settings, shape)), preset, dtype in product(
            LAYOUTS.items(), PRESET_NAMES, KV_DTYPES
        )
    ]
    subjects += [subject(f"auto {t}", (1, 2, 3, 13), t) for t in OPAQUE_DTYPES]
    subjects += [grouped_subject(preset) for preset in PRESET_NAMES]
    subjects += [subject("no tokens", (2, 3, 0, 128), torch.half)]
    calibrated = {"preset": "turboquant_3bit_cc", "head_dim": 8, "rope_theta": 1e4}
    subjects += [subject("calibrated", (2, 3, 64, 8), torch.half, **calibrated)]
    trellis = calibrated | {"preset": "turboquant_2bit_tc"}
    subjects += [subject("trellis", (2, 3, 64, 8), torch.half, **trellis)]
    return subjects
