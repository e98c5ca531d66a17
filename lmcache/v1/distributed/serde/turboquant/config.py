# SPDX-License-Identifier: Apache-2.0
"""Configuration of the TurboQuant serde, checked when it is made."""

# Standard
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
import re

# First Party
from lmcache.v1.distributed.serde.turboquant.effort import DEFAULT_EFFORT, EFFORTS
from lmcache.v1.distributed.serde.turboquant.presets import (
    ALL_PRESETS,
    DEFAULT_PRESET,
    Preset,
)
from lmcache.v1.distributed.serde.turboquant.settings import (
    did_you_mean,
    reject_unknown_keys,
    require_head_dim,
    require_int,
    require_rope_theta,
)
from lmcache.v1.distributed.serde.turboquant.slot import (
    SlotLayout,
)

_DEVICE = re.compile(r"[a-z]+(:\d+)?")
_STAGING_DEVICE = re.compile(r"(\d+|[a-z]+(:\d+)?)?")

KV_LAYOUTS = {
    "auto": "what LMCache declares, else a split or an opaque tensor",
    "split": "[2, layers, tokens, heads * head_dim]",
    "fused": "[1, layers, tokens, heads * 2 * head_dim], K then V of each head",
    "fused_planes": "[1, layers, tokens, 2 * heads * head_dim], all K, then all V",
    "diff": "[1, layers, tokens, heads * (head_dim + value_head_dim)]",
    "latent": "[1, layers, tokens, head_dim + value_head_dim], keys only",
    "components": "[1, 2 * layers, tokens, heads * head_dim], K and V in turn",
    "opaque": "anything",
}
"""Shapes by ``kv_layout``. A leading 1 may be absent."""

DEFAULT_HEAD_DIM = 128

TWO_WIDTHS = ("diff", "latent")
"""Layouts of vectors of two widths, ``head_dim`` and ``value_head_dim``."""


@dataclass(frozen=True, kw_only=True)
class TensorRule:
    """What one tensor means and how it is quantised.

    Attributes:
        preset: Name of the bit widths, one of ``presets.ALL_PRESETS``.
        head_dim: Dimensions of a key of one head; None: those that LMCache declares,
            else ``DEFAULT_HEAD_DIM``.
        value_head_dim: Dimensions of a value of one head, where they differ
            (``diff``), or of a latent's second part (``latent``); 0: like keys.
        kv_layout: Where keys and values are, one of ``KV_LAYOUTS``. ``auto``: where
            LMCache declares them.
        skip_first_layers: Leading layers stored raw, bit for bit.
        skip_last_layers: Trailing layers stored raw, bit for bit.
        rope_theta: Base of the model's rotary embedding, where it turns dimension
            ``i`` together with ``i + head_dim / 2``; 0: none, or not known. Only
            calibrated presets use it, on layouts of keys and values.

    Raises:
        ValueError: If a field has the wrong type or is out of range.
    """

    preset: str = DEFAULT_PRESET
    head_dim: int | None = None
    value_head_dim: int = 0
    kv_layout: str = "auto"
    skip_first_layers: int = 2
    skip_last_layers: int = 2
    rope_theta: float = 0.0

    def __post_init__(self) -> None:
        require_head_dim("head_dim", self.key_dim, minimum=1)
        require_head_dim("value_head_dim", self.value_head_dim, minimum=0)
        require_int("skip_first_layers", self.skip_first_layers, minimum=0)
        require_int("skip_last_layers", self.skip_last_layers, minimum=0)
        require_rope_theta(self.rope_theta)
        if not isinstance(self.preset, str):
            raise ValueError(f"TurboQuant preset must be a name, got {self.preset!r}")
        if self.kv_layout not in KV_LAYOUTS:
            raise ValueError(
                f"TurboQuant kv_layout must be one of {', '.join(KV_LAYOUTS)}, got "
                f"{self.kv_layout!r}{did_you_mean(self.kv_layout, list(KV_LAYOUTS))}"
            )
        if self.value_head_dim and self.kv_layout not in TWO_WIDTHS:
            raise ValueError(
                f"TurboQuant value_head_dim belongs to kv_layout "
                f"{' or '.join(TWO_WIDTHS)}, got kv_layout {self.kv_layout!r}"
            )

    @property
    def key_dim(self) -> int:
        """``head_dim``, or its default where it is not set."""
        return DEFAULT_HEAD_DIM if self.head_dim is None else self.head_dim

    @cached_property
    def preset_bits(self) -> Preset:
        """Bit widths that ``preset`` names.

        Raises:
            ValueError: If there is no preset of that name.
        """
        if self.preset not in ALL_PRESETS:
            raise ValueError(
                f"Unsupported TurboQuant preset {self.preset!r}, expected one of "
                f"{', '.join(ALL_PRESETS)}{did_you_mean(self.preset, [*ALL_PRESETS])}"
            )
        return ALL_PRESETS[self.preset]


@dataclass(frozen=True, kw_only=True)
class TurboQuantSerdeConfig(TensorRule):
    """What the TurboQuant serde does with memory objects.

    The preset's name is resolved when a serde is made from the configuration
    or one of the derived properties is read; everything else is checked here.

    Attributes:
        groups: A rule for each tensor of an object, in order. Empty: the
            configuration itself is the rule of every tensor.
        framed: Whether payloads carry a header that describes them and a
            checksum. The bare layout is that of LMCache 0.5.6.
        block_size: Tokens a block of the bare layout; the last block is padded
            with zero bytes. A framed payload has no padding.
        device: What works on host tensors: ``"cpu"``, ``"cuda"`` (the accelerator
            that is least used), ``"cuda:1"``, or ``"auto"``: an accelerator where
            the kernels run on one, else the CPU.
        cuda_device: The accelerator to stage host tensors on, as ``"1"``,
            ``"cuda"`` (the current one) or ``"cuda:1"``; empty where ``device``
            tells.
        staging_mib: Most MiB of accelerator memory, and of pinned host memory, that
            one worker stages host tensors with.
        effort: How hard the encoder looks for the numbers that it stores, one of
            ``effort.EFFORTS``. Payloads can be read whatever it was. Presets that
            need a frame are always ``fast``.
        cpu_threads: Threads of one operation on the CPU; 0: as many as there
            are cores, shared among the serde's workers.

    Raises:
        ValueError: If a field has the wrong type or is out of range.
    """

    groups: tuple[TensorRule, ...] = ()
    framed: bool = False
    block_size: int = 16
    device: str = "auto"
    cuda_device: str = ""
    staging_mib: int = 64
    effort: str = DEFAULT_EFFORT
    cpu_threads: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_int("cpu_threads", self.cpu_threads, minimum=0)
        require_int("block_size", self.block_size, minimum=1)
        if self.effort not in list(EFFORTS):
            raise ValueError(
                f"TurboQuant effort must be one of {', '.join(EFFORTS)}, got "
                f"{self.effort!r}"
            )
        if not isinstance(self.framed, bool):
            raise ValueError(
                f"TurboQuant framed must be true or false, got {self.framed!r}"
            )
        require_int("staging_mib", self.staging_mib, minimum=1)
        if not _matches(_DEVICE, self.device):
            raise ValueError(
                "TurboQuant device must be 'auto', 'cpu' or look like 'cuda' or "
                f"'cuda:1', got {self.device!r}"
            )
        if not _matches(_STAGING_DEVICE, self.cuda_device):
            raise ValueError(
                "TurboQuant cuda_device must look like '1', 'cuda' or 'cuda:1', "
                f"got {self.cuda_device!r}"
            )

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, object]) -> "TurboQuantSerdeConfig":
        """Build a configuration from the keys of an adapter's serde JSON.

        Args:
            kwargs: Field names and values; absent fields take their defaults.
                ``groups`` is a list of objects with the fields of
                :class:`TensorRule`, which default to the outer ones.

        Returns:
            The configuration, its presets resolved.

        Raises:
            ValueError: If a key is unknown or a value is invalid.
        """
        reject_unknown_keys(kwargs, [field.name for field in fields(cls)])
        settings = dict(kwargs)
        settings["groups"] = _group_rules(settings.pop("groups", []), settings)
        config = cls(**settings)  # type: ignore[arg-type]
        config.require_presets()
        return config

    def require_presets(self) -> None:
        """Check that every preset that is named exists and can be stored.

        Raises:
            ValueError: If one does not, or needs a frame and ``framed`` is false.
        """
        for rule in (self, *self.groups):
            if rule.preset_bits.needs_frame and not self.framed:
                raise ValueError(
                    f"TurboQuant preset {rule.preset!r} needs framed payloads: set "
                    "framed to true"
                )

    @cached_property
    def slot(self) -> SlotLayout:
        """Slot of equally wide keys and values; raises like ``preset_bits``."""
        return SlotLayout.for_preset(
            self.preset_bits, self.key_dim, self.key_dim, keys_only=False
        )

    # The names below are LMCache's: its tests and users read them.

    @property
    def key_fp8(self) -> bool:
        """Whether keys are stored as float8 e4m3."""
        return self.preset_bits.key_is_fp8

    @property
    def key_quant_bits(self) -> int:
        """Bits a key dimension."""
        return self.preset_bits.key_bits

    @property
    def key_mse_bits(self) -> int:
        """Bits of a key's codebook index; 0 where keys are float8."""
        return 0 if self.key_fp8 else self.key_quant_bits

    @property
    def value_quant_bits(self) -> int:
        """Bits a value dimension."""
        return self.preset_bits.value_bits

    @property
    def norm_correction(self) -> bool:
        """Whether the decoder scales centroid vectors to unit norm."""
        return not self.key_fp8

    @property
    def key_packed_size(self) -> int:
        """Bytes of a key in a slot."""
        return self.slot.key.num_bytes

    @property
    def value_packed_size(self) -> int:
        """Bytes of a value in a slot."""
        return self.slot.used_bytes - self.slot.value_offset

    @property
    def slot_size(self) -> int:
        """Bytes of key and value in a slot."""
        return self.slot.used_bytes

    @property
    def slot_size_aligned(self) -> int:
        """Bytes from one slot to the next."""
        return self.slot.slot_bytes


def _matches(pattern: re.Pattern[str], setting: object) -> bool:
    """Return whether a setting is a text of that pattern."""
    return isinstance(setting, str) and pattern.fullmatch(setting) is not None


def _group_rules(groups: object, outer: Mapping[str, object]) -> tuple[TensorRule, ...]:
    """Build the rules of ``groups``; absent fields take the outer settings."""
    known = [field.name for field in fields(TensorRule)]
    inherited = {key: value for key, value in outer.items() if key in known}
    if not isinstance(groups, list) or not all(isinstance(x, dict) for x in groups):
        raise ValueError(
            "TurboQuant groups must be a list with an object for each tensor, got "
            f"{groups!r}"
        )
    for group in groups:
        reject_unknown_keys(group, known)
    return tuple(TensorRule(**(inherited | group)) for group in groups)
