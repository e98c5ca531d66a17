# SPDX-License-Identifier: Apache-2.0
"""Configuration of the TurboQuant serde, checked when it is made."""

# Standard
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
import re

# First Party
from lmcache.v1.distributed.serde.turboquant.slot import (
    DEFAULT_PRESET,
    INDICES_PER_PACK,
    MAX_HEAD_DIM,
    PRESETS,
    Preset,
    SlotLayout,
)

_DEVICE_NAME = re.compile(r"(\d+|[a-z]+(:\d+)?)?")


@dataclass(frozen=True, kw_only=True)
class TurboQuantSerdeConfig:
    """What the TurboQuant serde does with a KV tensor.

    The preset's name is resolved when a serde is made from the configuration
    or one of the derived properties is read; everything else is checked here.

    Attributes:
        preset: Name of the bit widths, one of ``slot.PRESETS``.
        head_dim: Dimensions of one head vector.
        block_size: Tokens a block of the compressed layout; the last block
            is padded with zero bytes.
        skip_first_layers: Leading layers stored raw, bit for bit.
        skip_last_layers: Trailing layers stored raw, bit for bit.
        cuda_device: Accelerator that works on host tensors: ``"1"``,
            ``"cuda"`` or ``"cuda:1"``; empty leaves the choice to the serde.

    Raises:
        ValueError: If a field has the wrong type or is out of range.
    """

    preset: str = DEFAULT_PRESET
    head_dim: int = 128
    block_size: int = 16
    skip_first_layers: int = 2
    skip_last_layers: int = 2
    cuda_device: str = ""

    def __post_init__(self) -> None:
        require_int("head_dim", self.head_dim, minimum=1)
        require_int("block_size", self.block_size, minimum=1)
        require_int("skip_first_layers", self.skip_first_layers, minimum=0)
        require_int("skip_last_layers", self.skip_last_layers, minimum=0)
        if self.head_dim % INDICES_PER_PACK or self.head_dim > MAX_HEAD_DIM:
            raise ValueError(
                f"TurboQuant head_dim must be a multiple of {INDICES_PER_PACK} "
                f"up to {MAX_HEAD_DIM}, got {self.head_dim}"
            )
        if not isinstance(self.preset, str):
            raise ValueError(f"TurboQuant preset must be a name, got {self.preset!r}")
        device_is_text = isinstance(self.cuda_device, str)
        if not device_is_text or not _DEVICE_NAME.fullmatch(self.cuda_device):
            raise ValueError(
                "TurboQuant cuda_device must look like '1', 'cuda' or 'cuda:1', "
                f"got {self.cuda_device!r}"
            )

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, object]) -> "TurboQuantSerdeConfig":
        """Build a configuration from the keys of an adapter's serde JSON.

        Args:
            kwargs: Field names and values; absent fields take their defaults.

        Returns:
            The configuration, its preset resolved.

        Raises:
            ValueError: If a key is unknown or a value is invalid.
        """
        reject_unknown_keys(kwargs, [field.name for field in fields(cls)])
        config = cls(**kwargs)  # type: ignore[arg-type]
        _ = config.slot
        return config

    @cached_property
    def preset_bits(self) -> Preset:
        """Bit widths that ``preset`` names.

        Raises:
            ValueError: If there is no preset of that name.
        """
        if self.preset not in PRESETS:
            raise ValueError(
                f"Unsupported TurboQuant preset {self.preset!r}, expected one of "
                f"{', '.join(PRESETS)}{did_you_mean(self.preset, list(PRESETS))}"
            )
        return PRESETS[self.preset]

    @cached_property
    def slot(self) -> SlotLayout:
        """Byte layout of one slot; raises ValueError like ``preset_bits``."""
        return SlotLayout(preset=self.preset_bits, head_dim=self.head_dim)

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
        return self.slot.key_bytes

    @property
    def value_packed_size(self) -> int:
        """Bytes of a value in a slot."""
        return self.slot.value_bytes

    @property
    def slot_size(self) -> int:
        """Bytes of key and value in a slot."""
        return self.slot.used_bytes

    @property
    def slot_size_aligned(self) -> int:
        """Bytes from one slot to the next."""
        return self.slot.slot_bytes


def require_int(name: str, value: object, *, minimum: int) -> int:
    """Check that a setting is an integer of at least ``minimum``.

    Args:
        name: The setting's name, for the message.
        value: What was given; ``bool`` does not count as an integer.
        minimum: Smallest value allowed.

    Returns:
        ``value``.

    Raises:
        ValueError: If ``value`` is anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(
            f"TurboQuant {name} must be an integer >= {minimum}, got {value!r}"
        )
    return value


def reject_unknown_keys(kwargs: Mapping[str, object], known: list[str]) -> None:
    """Check that every key of a serde JSON is one that the serde reads.

    Args:
        kwargs: The keys given.
        known: The keys that exist.

    Raises:
        ValueError: If a key is unknown; the message suggests the nearest.
    """
    for key in kwargs:
        if key not in known:
            raise ValueError(
                f"Unknown TurboQuant setting {key!r}, expected one of "
                f"{', '.join(known)}{did_you_mean(key, known)}"
            )


def did_you_mean(name: str, known: list[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest known name, or ``""``."""
    nearest = get_close_matches(name, known, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
