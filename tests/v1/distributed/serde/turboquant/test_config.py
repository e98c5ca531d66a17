# SPDX-License-Identifier: Apache-2.0
"""Configuration: defaults, LMCache's names, and what is refused when."""

# Standard
from dataclasses import FrozenInstanceError

# Third Party
import pytest

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from tests.v1.distributed.serde.turboquant.helpers import PRESET_NAMES


def test_defaults_are_the_documented_ones() -> None:
    config = TurboQuantSerdeConfig.from_kwargs({})
    assert config == TurboQuantSerdeConfig(
        preset="turboquant_k8v4",
        head_dim=None,
        block_size=16,
        skip_first_layers=2,
        skip_last_layers=2,
        device="auto",
        cuda_device="",
        staging_mib=64,
    )
    assert config.key_dim == 128


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_lmcache_names_follow_the_preset(preset: str) -> None:
    config = TurboQuantSerdeConfig(preset=preset, head_dim=64)
    key_bits, value_bits = {
        "turboquant_k8v4": (8, 4),
        "turboquant_4bit_nc": (4, 4),
        "turboquant_k3v4_nc": (3, 4),
        "turboquant_3bit_nc": (3, 3),
    }[preset]
    assert config.key_quant_bits == key_bits
    assert config.value_quant_bits == value_bits
    assert config.key_fp8 is (key_bits == 8)
    assert config.norm_correction is (key_bits < 8)
    assert config.key_mse_bits == (0 if key_bits == 8 else key_bits)
    assert config.key_packed_size == 8 * key_bits + (0 if key_bits == 8 else 2)
    assert config.value_packed_size == 8 * value_bits + 4
    assert config.slot_size == config.key_packed_size + config.value_packed_size
    assert config.slot_size_aligned - config.slot_size == config.slot_size % 2


def test_is_frozen_and_hashable() -> None:
    config = TurboQuantSerdeConfig()
    with pytest.raises(FrozenInstanceError):
        config.head_dim = 64  # type: ignore[misc]
    assert hash(config) == hash(TurboQuantSerdeConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head_dim": 0}, "head_dim must be an integer >= 1, got 0"),
        ({"head_dim": -128}, "head_dim must be an integer >= 1, got -128"),
        ({"head_dim": 12}, "multiple of 8 up to 1024, got 12"),
        ({"head_dim": 2048}, "multiple of 8 up to 1024, got 2048"),
        ({"head_dim": "128"}, "head_dim must be an integer >= 1, got '128'"),
        ({"head_dim": True}, "head_dim must be an integer >= 1, got True"),
        ({"head_dim": 128.0}, "head_dim must be an integer >= 1, got 128.0"),
        ({"block_size": 0}, "block_size must be an integer >= 1, got 0"),
        ({"block_size": -16}, "block_size must be an integer >= 1, got -16"),
        ({"skip_first_layers": -1}, "skip_first_layers must be an integer >= 0"),
        ({"skip_last_layers": None}, "skip_last_layers must be an integer >= 0"),
        ({"preset": 4}, "preset must be a name, got 4"),
        ({"cuda_device": 1}, "cuda_device must look like '1', 'cuda' or 'cuda:1'"),
        ({"cuda_device": ":1"}, "cuda_device must look like"),
        ({"cuda_device": "cuda:one"}, "cuda_device must look like"),
        ({"device": "0"}, "device must be 'auto', 'cpu' or look like 'cuda'"),
        ({"device": ""}, "device must be 'auto'"),
        ({"device": None}, "device must be 'auto'"),
        ({"staging_mib": 0}, "staging_mib must be an integer >= 1, got 0"),
    ],
)
def test_invalid_fields_are_refused_at_once(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TurboQuantSerdeConfig(**settings)  # type: ignore[arg-type]


def test_unknown_preset_is_refused_with_the_nearest_name() -> None:
    expected = "Unsupported TurboQuant preset 'turboquant_4bit', expected one of .*"
    expected += "did you mean 'turboquant_4bit_nc'"
    with pytest.raises(ValueError, match=expected):
        TurboQuantSerdeConfig.from_kwargs({"preset": "turboquant_4bit"})


@pytest.mark.parametrize(
    ("key", "nearest"), [("presett", "preset"), ("skip_layers", "skip_last_layers")]
)
def test_unknown_key_is_refused_with_the_nearest_name(key: str, nearest: str) -> None:
    expected = f"Unknown TurboQuant setting '{key}'.*did you mean '{nearest}'"
    with pytest.raises(ValueError, match=expected):
        TurboQuantSerdeConfig.from_kwargs({key: 1})


def test_unlike_key_is_refused_without_a_guess() -> None:
    with pytest.raises(ValueError, match=r"'xyzzy', expected one of [a-z_, ]+$"):
        TurboQuantSerdeConfig.from_kwargs({"xyzzy": 1})
