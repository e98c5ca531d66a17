# SPDX-License-Identifier: Apache-2.0
"""What a chunk of KV goes through: the serde under test, and others."""

# Standard
from dataclasses import dataclass, fields
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
)
from lmcache.v1.distributed.serde.turboquant.presets import ALL_PRESETS, PRESETS

CALIBRATED_SUFFIXES = ("_cc", "_tc")
EFFORTS = ("fast", "balanced", "best")
TQAI_BITS = (4, 3, 2)
NO_SERDE = "no serde"
FP8 = "LMCache fp8"
SKIPS = "skips"
"""What follows the name of a preset that keeps outer layers raw."""

MISSING = (
    {}
    if find_spec("lmcache_turbo_quant_serde") and find_spec("tqai")
    else {"tqai": "pip install --no-deps lmcache-turbo-quant-serde==0.1.0 tqai==0.6.1"}
)
"""What is not installed, and what installs it."""

_KEY = ObjectKey(chunk_hash=bytes(8), model_name="quality", kv_rank=0)


@dataclass(frozen=True)
class Restored:
    """A chunk that came back.

    Attributes:
        chunk: Of the shape and type of the one that was stored.
        payload_bytes: What storage had to hold.
    """

    chunk: torch.Tensor
    payload_bytes: int


@dataclass(frozen=True)
class Scheme:
    """One row of the comparison: a serializer and a deserializer.

    Attributes:
        name: What reports call it.
        serializer: None stores a chunk as it is.
        deserializer: Its counterpart.
        object_key: The key as arguments; none for a serde that takes no key.
        preset: The turboquant preset; empty for others.
        effort: What ``effort`` is set to; empty where it is left alone.
        skip_layers: Layers that are kept raw at each end.
    """

    name: str
    serializer: Any = None
    deserializer: Any = None
    object_key: tuple[ObjectKey, ...] = (_KEY,)
    preset: str = ""
    effort: str = ""
    skip_layers: int = 0

    @property
    def is_calibrated(self) -> bool:
        """Whether the serde adapts to each chunk."""
        return self.preset.endswith(CALIBRATED_SUFFIXES)

    def round_trip(self, chunk: torch.Tensor) -> Restored:
        """Store a chunk and restore it.

        Args:
            chunk: ``[2, layers, tokens, hidden]`` on the CPU.

        Returns:
            What came back, and the bytes in between.
        """
        if self.serializer is None:
            return Restored(chunk.clone(), chunk.nbytes)
        layout = MemoryLayoutDesc([chunk.shape], [chunk.dtype])
        size = self.serializer.estimate_serialized_size(layout)
        payload = torch.zeros(size, dtype=torch.uint8)
        written = self.serializer.serialize(
            SimpleNamespace(tensor=chunk),
            SimpleNamespace(tensor=payload),
            *self.object_key,
        )
        restored = torch.full_like(chunk, float("nan"))
        self.deserializer.deserialize(
            SimpleNamespace(tensor=payload[:written]),
            SimpleNamespace(tensor=restored),
            *self.object_key,
        )
        return Restored(restored, written)


def has_effort() -> bool:
    """Whether the serde lets the user choose how hard its encoder tries."""
    return "effort" in {field.name for field in fields(TurboQuantSerdeConfig)}


def turboquant(
    preset: str,
    head_dim: int,
    effort: str = "",
    skip_layers: int = 0,
    rope_theta: float = 0.0,
    device: str = "cpu",
    threads: int = 0,
) -> Scheme:
    """Make a scheme of this package's serde, with frame and checksum.

    Args:
        preset: One of ``presets.ALL_PRESETS``.
        head_dim: Width of the model's heads.
        effort: Setting of that name; empty leaves the default.
        skip_layers: Layers to keep raw at each end.
        rope_theta: Base of the model's rotary embedding, for calibrated presets.
        device: Setting of that name; the same device gives the same bytes.
        threads: Threads on the CPU; 0: all cores.

    Returns:
        The scheme.

    Raises:
        ValueError: If the configuration refuses a setting.
    """
    settings: dict[str, Any] = {
        "preset": preset,
        "kv_layout": "split",
        "head_dim": head_dim,
        "skip_first_layers": skip_layers,
        "skip_last_layers": skip_layers,
        "framed": True,
        "device": device,
        "cpu_threads": threads,
    }
    name = preset
    if preset.endswith(CALIBRATED_SUFFIXES):
        settings["rope_theta"] = rope_theta
    if effort:
        settings["effort"] = effort
        name += f", {effort}"
    if skip_layers:
        name += f", {SKIPS} {skip_layers}+{skip_layers}"
    config = TurboQuantSerdeConfig.from_kwargs(settings)
    return Scheme(
        name=name,
        serializer=TurboQuantSerializer(config),
        deserializer=TurboQuantDeserializer(config),
        preset=preset,
        effort=effort,
        skip_layers=skip_layers,
    )


def all_schemes(
    head_dim: int,
    num_layers: int,
    skip_layers: int = 2,
    rope_theta: float = 0.0,
    device: str = "cpu",
    threads: int = 0,
) -> list[Scheme]:
    """List every preset in every effort, with and without raw layers, and peers.

    Args:
        head_dim: Width of the model's heads.
        num_layers: Layers of the model.
        skip_layers: Layers to keep raw at each end, in the schemes that do.
        rope_theta: Base of the model's rotary embedding; 0 where it has none.
        device: Where our serde works; as it is set.
        threads: Of our serde on the CPU; 0: all cores.

    Returns:
        The schemes, peers first.
    """
    fp8 = Scheme(FP8, Fp8QuantizationSerializer(), Fp8QuantizationDeserializer())
    ours = []
    for preset in ALL_PRESETS:
        efforts = EFFORTS if has_effort() and preset in PRESETS else ("",)
        make = partial(
            turboquant,
            preset,
            head_dim,
            rope_theta=rope_theta,
            device=device,
            threads=threads,
        )
        ours += [make(effort=effort) for effort in efforts]
        if num_layers > 2 * skip_layers:
            ours.append(make(skip_layers=skip_layers))
    return [Scheme(NO_SERDE), fp8, *_tqai(head_dim), *ours]


def _tqai(head_dim: int) -> list[Scheme]:
    """List tqai's schemes; none where it is not installed."""
    if MISSING:
        return []
    # Third Party
    from lmcache_turbo_quant_serde import TqaiDeserializer, TqaiSerializer

    return [
        Scheme(
            f"tqai {bits}-bit",
            TqaiSerializer(head_dim=head_dim, bits=bits),
            TqaiDeserializer(),
            object_key=(),
        )
        for bits in TQAI_BITS
    ]
