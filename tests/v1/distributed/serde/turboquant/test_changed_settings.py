# SPDX-License-Identifier: Apache-2.0
"""A directory written with other settings: misses that say why, never garbage."""

# Standard
from pathlib import Path

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from tests.v1.distributed.serde.turboquant.helpers import gaussian, object_key
from tests.v1.distributed.serde.turboquant.log_recorder import recorded_log
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    files_of,
    load,
    storage_manager,
    store,
    stored_count,
    write,
)

SETTINGS: dict[str, object] = {
    "preset": "turboquant_4bit_nc",
    "head_dim": 64,
    "skip_first_layers": 1,
    "skip_last_layers": 1,
}
TENSOR = gaussian(2, 5, 16, 2 * 64).bfloat16()
OBJECTS: dict[ObjectKey, torch.Tensor] = {
    object_key(chunk): gaussian(*TENSOR.shape, seed=chunk).bfloat16()
    for chunk in range(3)
}

SMALLER_OR_EQUAL: dict[str, tuple[dict, str]] = {
    "preset": ({"preset": "turboquant_3bit_nc"}, "preset turboquant_4bit_nc"),
    "head_dim": ({"head_dim": 128}, "head_dim 64 (tensor 0), expected 128"),
    "skip_first_layers": ({"skip_first_layers": 0}, "quant_start 1 (tensor 0)"),
    "skip_last_layers": ({"skip_last_layers": 0}, "quant_end 4 (tensor 0)"),
    "moved skips": (
        {"skip_first_layers": 2, "skip_last_layers": 0},
        "quant_start 1 (tensor 0), expected 2",
    ),
    "groups": (
        {"groups": [{"preset": "turboquant_3bit_nc"}]},
        "preset turboquant_4bit_nc (tensor 0), expected turboquant_3bit_nc",
    ),
    "bare": ({"framed": False}, "set framed to true"),
}
"""Changes after which a reader asks for no more bytes than a file has."""

LARGER: dict[str, dict] = {
    "preset": {"preset": "turboquant_k8v4"},
    "skip_first_layers": {"skip_first_layers": 4},
    "kv_layout": {"kv_layout": "opaque"},
}
"""Changes after which the adapter already misses bytes in a file."""

REFUSED: dict[str, tuple[dict, str]] = {
    "head_dim": ({"head_dim": 192}, "128 must be divisible by head_dim=192"),
    "kv_layout": ({"kv_layout": "fused"}, "first of 4 dimensions must be 1"),
    "groups": ({"groups": [{}, {}]}, "groups has rules for 2 tensors"),
}
"""Changes after which the tensors fit no longer."""

TENSORS = {
    "dtype": (TENSOR.half(), "dtype torch.bfloat16 (tensor 0), expected torch.float16"),
    "tokens": (TENSOR[:, :, :12], "shape (2, 5, 16, 128) (tensor 0)"),
    "heads": (TENSOR[..., :64], "shape (2, 5, 16, 128) (tensor 0)"),
    "layers": (TENSOR[:, :4], "shape (2, 5, 16, 128) (tensor 0)"),
    "transposed": (TENSOR.view(2, 5, 8, 256), "shape (2, 5, 16, 128) (tensor 0)"),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of three objects; loads leave them as they are."""
    path = tmp_path_factory.mktemp("written")
    with storage_manager(ADAPTERS["fs"](path), **SETTINGS) as manager:
        store(manager, OBJECTS, stored_count(manager, path))
    return path


def load_with(
    directory: Path, settings: dict, like: torch.Tensor = TENSOR, reader: str = "fs"
) -> tuple[dict[ObjectKey, torch.Tensor], list[str]]:
    """What a new manager loads, and its log lines that concern the codec."""
    with storage_manager(ADAPTERS[reader](directory), **settings) as manager:
        with recorded_log() as log:
            loaded = load(manager, OBJECTS, like)
    return loaded, log.about("TurboQuant")


def assert_said(lines: list[str], message: str) -> None:
    """LMCache logged the error, and the serde said once what to do about it."""
    error, warning = sorted(lines, key=len)
    assert message in error
    assert message in warning and "What to do: " in warning


@pytest.mark.parametrize("change", SMALLER_OR_EQUAL)
def test_a_changed_setting_is_a_miss_with_its_name(
    directory: Path, change: str
) -> None:
    other, message = SMALLER_OR_EQUAL[change]
    loaded, lines = load_with(directory, SETTINGS | other)
    assert loaded == {}
    assert_said(lines, message)


def test_a_changed_preset_is_a_miss_for_the_native_adapter(directory: Path) -> None:
    other, message = SMALLER_OR_EQUAL["preset"]
    loaded, lines = load_with(directory, SETTINGS | other, reader="fs_native")
    assert loaded == {}
    assert_said(lines, message)


def test_a_changed_tensor_is_a_miss_with_its_name(directory: Path) -> None:
    with storage_manager(ADAPTERS["fs_native"](directory), **SETTINGS) as manager:
        for like, message in TENSORS.values():
            with recorded_log() as log:
                assert load(manager, OBJECTS, like) == {}
            lines = log.about("TurboQuant")
            assert lines and all(message in line for line in lines)
        assert load(manager, OBJECTS, TENSOR).keys() == OBJECTS.keys()


@pytest.mark.parametrize("change", REFUSED)
def test_a_misfit_is_a_miss_that_says_what_to_set(directory: Path, change: str) -> None:
    other, message = REFUSED[change]
    loaded, lines = load_with(directory, SETTINGS | other)
    assert loaded == {}
    assert_said(lines, message)


@pytest.mark.parametrize(
    ("change", "reader"),
    [*((change, "fs") for change in LARGER), ("preset", "fs_native")],
)
def test_too_small_files_are_misses(directory: Path, change: str, reader: str) -> None:
    loaded, lines = load_with(directory, SETTINGS | LARGER[change], reader=reader)
    assert (loaded, lines) == ({}, [])


def test_an_equal_description_is_read(directory: Path) -> None:
    group = {"kv_layout": "split", "head_dim": 64}
    settings = SETTINGS | {"head_dim": 128, "groups": [group], "max_workers": 3}
    loaded, lines = load_with(directory, settings)
    assert (loaded.keys(), lines) == (OBJECTS.keys(), [])


def test_uncompressed_files_are_misses(directory: Path, tmp_path: Path) -> None:
    for path in files_of(directory).values():
        (tmp_path / path.name).write_bytes(TENSOR.view(torch.uint8).numpy().tobytes())
    loaded, lines = load_with(tmp_path, SETTINGS)
    assert loaded == {}
    assert_said(lines, "not a framed TurboQuant payload")


def test_old_files_stay_until_they_are_removed(directory: Path) -> None:
    """LMCache's file adapters never overwrite: new settings need a new directory."""
    before = {path: path.read_bytes() for path in files_of(directory).values()}
    changed = SETTINGS | {"preset": "turboquant_3bit_nc"}
    with storage_manager(ADAPTERS["fs"](directory), **changed) as manager:
        write(manager, OBJECTS)
        assert load(manager, OBJECTS, TENSOR) == {}
    assert {p: p.read_bytes() for p in files_of(directory).values()} == before
