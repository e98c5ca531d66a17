# SPDX-License-Identifier: Apache-2.0
"""KV through LMCache's StorageManager and a real L2 adapter, and back."""

# Standard
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
import time

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import (
    L2AdapterConfigBase,
    L2AdaptersConfig,
)
from lmcache.v1.distributed.l2_adapters.fs_l2_adapter import FSL2AdapterConfig
from lmcache.v1.distributed.l2_adapters.mock_l2_adapter import MockL2AdapterConfig
from lmcache.v1.distributed.serde import SerdeConfig
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import current_device_spec
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    object_key,
    unskipped,
)

NUM_LAYERS, SKIPPED = 7, 2
SHAPE = torch.Size([2, NUM_LAYERS, 256, 4 * 128])
DTYPE = torch.bfloat16
RAW_BYTES = SHAPE.numel() * DTYPE.itemsize
TIMEOUT_SECONDS = 60


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll ``condition``; fail with ``what`` was awaited."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.02)


@contextmanager
def storage_manager(
    adapter: L2AdapterConfigBase, preset: str
) -> Iterator[StorageManager]:
    """A manager whose single L2 adapter compresses with ``preset``."""
    adapter.serde_config = SerdeConfig(type="turboquant", kwargs={"preset": preset})
    memory = L1MemoryManagerConfig(
        size_in_bytes=64 << 20,
        use_lazy=current_device_spec.is_pin_supported,
        init_size_in_bytes=32 << 20,
    )
    manager = StorageManager(
        StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory),
            eviction_config=EvictionConfig(eviction_policy="LRU"),
            l2_adapter_config=L2AdaptersConfig(adapters=[adapter]),
        )
    )
    try:
        yield manager
    finally:
        manager.close()


def tensor_of(memory: MemoryObj) -> torch.Tensor:
    """The tensor of an object that must have one."""
    assert memory.tensor is not None
    return memory.tensor


def store(
    manager: StorageManager,
    objects: dict[ObjectKey, torch.Tensor],
    count_stored: Callable[[], int],
) -> None:
    """Write objects to L1 and wait until L2 has them."""
    reserved = manager.reserve_write(list(objects), MemoryLayoutDesc([SHAPE], [DTYPE]))
    for key, memory in reserved.items():
        tensor_of(memory).copy_(objects[key])
    manager.finish_write(list(objects))
    wait_until(lambda: count_stored() >= len(objects), "the store to L2")
    wait_until(lambda: is_idle(manager), "the release of temporary buffers")


def is_idle(manager: StorageManager) -> bool:
    """Whether no store is under way and nothing in L1 is locked."""
    status = manager.report_status()
    controller, l1 = status["store_controller"], status["l1_manager"]
    return not (
        controller["in_flight_task_count"]
        or controller["pending_keys_count"]
        or l1["read_locked_count"]
        or l1["write_locked_count"]
        or l1["temporary_count"]
    )


def load(manager: StorageManager, keys: list[ObjectKey]) -> list[torch.Tensor]:
    """Clear L1, prefetch the objects from L2 and return copies."""
    manager.clear(force=True)
    assert manager.report_status()["l1_manager"]["total_object_count"] == 0
    group = GroupedObjectKeys(
        keys=keys,
        object_group_id=0,
        layout_desc=MemoryLayoutDesc([SHAPE], [DTYPE]),
    )
    handle = manager.submit_prefetch_task(PrefetchTaskSpec(key_groups=[group]))
    results: list = []

    def finished() -> bool:
        status = manager.query_prefetch_status(handle)
        results.extend([] if status is None else [status])
        return bool(results)

    wait_until(finished, "the prefetch")
    assert results[0].hit_cells[0].count_leading_ones() == len(keys)
    with manager.read_prefetched_results(keys) as memories:
        restored = [tensor_of(memory).clone() for memory in memories or []]
    assert len(restored) == len(keys)
    manager.finish_read_prefetched(keys)
    wait_until(
        lambda: manager.report_status()["l1_manager"]["memory_used_bytes"] == 0,
        "L1 to be empty",
    )
    return restored


def assert_restored(
    originals: list[torch.Tensor], restored: list[torch.Tensor], preset: str
) -> None:
    """What came back is what the codec alone gives, and it was quantised."""
    config = unskipped(preset, skip_first_layers=SKIPPED, skip_last_layers=SKIPPED)
    for original, result in zip(originals, restored, strict=True):
        assert torch.equal(result, decode(encode(original, config), original, config))
        changed = (result != original).float().mean(dim=(0, 2, 3))
        assert not changed[:SKIPPED].any() and not changed[-SKIPPED:].any()
        assert (changed[SKIPPED:-SKIPPED] > 0.5).all()


def random_objects() -> dict[ObjectKey, torch.Tensor]:
    """Three objects of Gaussian KV."""
    return {
        object_key(chunk): gaussian(*SHAPE, seed=chunk).to(DTYPE) for chunk in range(3)
    }


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_through_the_filesystem(preset: str, tmp_path: Path) -> None:
    objects = random_objects()
    adapter = FSL2AdapterConfig(base_path=str(tmp_path), use_odirect=False)

    def payload_sizes() -> list[int]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return [path.stat().st_size for path in files if path.suffix != ".tmp"]

    with storage_manager(adapter, preset) as manager:
        store(manager, objects, lambda: len(payload_sizes()))
        restored = load(manager, list(objects))
    slot_bytes = unskipped(preset).slot_size_aligned
    quantised_layers = NUM_LAYERS - 2 * SKIPPED
    expected = RAW_BYTES * 2 * SKIPPED // NUM_LAYERS
    expected += quantised_layers * 256 * 4 * slot_bytes
    assert payload_sizes() == [expected] * 3
    assert_restored(list(objects.values()), restored, preset)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_through_the_mock_adapter(preset: str) -> None:
    objects = random_objects()
    adapter = MockL2AdapterConfig(max_size_gb=0.1, mock_bandwidth_gb=10.0)
    with storage_manager(adapter, preset) as manager:

        def count_stored() -> int:
            return manager.report_status()["l2_adapters"][0]["stored_object_count"]

        store(manager, objects, count_stored)
        restored = load(manager, list(objects))
    assert_restored(list(objects.values()), restored, preset)


def test_another_managers_files_are_read(tmp_path: Path) -> None:
    objects = random_objects()
    restored = []
    for store_first in (True, False):
        adapter = FSL2AdapterConfig(base_path=str(tmp_path), use_odirect=False)
        with storage_manager(adapter, "turboquant_4bit_nc") as manager:
            if store_first:
                store(manager, objects, lambda: len(list(tmp_path.glob("*.data"))))
            restored.append(load(manager, list(objects)))
    assert all(map(torch.equal, *restored))
