# SPDX-License-Identifier: Apache-2.0
"""KV through LMCache's StorageManager and a real L2 adapter, and back."""

# Standard
from pathlib import Path
import math
import os

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    gaussian,
    object_key,
    restored_alone,
    unskipped,
)
from tests.v1.distributed.serde.turboquant.log_recorder import recorded_log
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    FILE_ADAPTERS,
    files_of,
    load,
    storage_manager,
    store,
    stored_count,
)

NUM_LAYERS, SKIPPED = 7, 2
NUM_HEADS = 2
SHAPE = torch.Size([2, NUM_LAYERS, 256, NUM_HEADS * 128])
DTYPE = torch.bfloat16
RAW_BYTES = SHAPE.numel() * DTYPE.itemsize
HEADER_BYTES = 128


def random_objects() -> dict[ObjectKey, torch.Tensor]:
    """Three objects of Gaussian KV."""
    return {
        object_key(chunk): gaussian(*SHAPE, seed=chunk).to(DTYPE) for chunk in range(3)
    }


def assert_restored(
    originals: dict[ObjectKey, torch.Tensor],
    restored: dict[ObjectKey, torch.Tensor],
    preset: str,
) -> None:
    """What came back is what the codec alone gives, and it was quantised."""
    config = TurboQuantSerdeConfig(preset=preset)
    assert restored.keys() == originals.keys()
    for key, original in originals.items():
        result = restored[key]
        assert torch.equal(result, restored_alone(original, config))
        changed = (result != original).float().mean(dim=(0, 2, 3))
        assert not changed[:SKIPPED].any() and not changed[-SKIPPED:].any()
        assert (changed[SKIPPED:-SKIPPED] > 0.5).all()


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_round_trip(preset: str, adapter: str, tmp_path: Path) -> None:
    objects = random_objects()
    like = torch.empty(SHAPE, dtype=DTYPE)
    with storage_manager(ADAPTERS[adapter](tmp_path), preset=preset) as manager:
        store(manager, objects, stored_count(manager, tmp_path))
        restored = load(manager, objects, like)
    assert_restored(objects, restored, preset)
    if adapter in FILE_ADAPTERS:
        sizes = [path.stat().st_size for path in files_of(tmp_path).values()]
        assert sizes == [frame_bytes(preset)] * 3


def frame_bytes(preset: str) -> int:
    """Bytes of an object's frame, from the definition of the format."""
    slot_bytes = unskipped(preset).slot_size_aligned
    quantised_layers = NUM_LAYERS - 2 * SKIPPED
    payload_bytes = RAW_BYTES * 2 * SKIPPED // NUM_LAYERS
    payload_bytes += quantised_layers * 256 * NUM_HEADS * slot_bytes
    return 4096 * math.ceil((HEADER_BYTES + payload_bytes) / 4096)


@pytest.mark.parametrize("reader", FILE_ADAPTERS)
def test_another_managers_files_are_read(reader: str, tmp_path: Path) -> None:
    objects, settings = random_objects(), {"preset": "turboquant_4bit_nc"}
    like = torch.empty(SHAPE, dtype=DTYPE)
    with storage_manager(ADAPTERS["fs"](tmp_path), **settings) as manager:
        store(manager, objects, stored_count(manager, tmp_path))
    with storage_manager(ADAPTERS[reader](tmp_path), **settings) as manager:
        restored = load(manager, objects, like)
    assert_restored(objects, restored, settings["preset"])


def test_o_direct_takes_whole_pages(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    objects = {object_key(0): gaussian(2, 5, 17, 128).bfloat16()}
    adapter = FSL2AdapterConfig(base_path=str(tmp_path), use_odirect=True)
    with storage_manager(adapter, preset="turboquant_3bit_nc") as manager:
        with recorded_log() as log:
            store(manager, objects, stored_count(manager, tmp_path))
            loaded = load(manager, objects, objects[object_key(0)])
    assert not log.about("O_DIRECT")
    assert loaded.keys() == objects.keys()
