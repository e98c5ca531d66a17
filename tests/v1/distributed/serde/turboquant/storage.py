# SPDX-License-Identifier: Apache-2.0
"""KV through LMCache's StorageManager: managers, adapters, stores and loads."""

# Standard
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
import time

# Third Party
import torch

# First Party
from lmcache.lmcache_native import Bitmap
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
from lmcache.v1.distributed.l2_adapters.fs_native_l2_adapter import (
    FSNativeL2AdapterConfig,
)
from lmcache.v1.distributed.l2_adapters.mock_l2_adapter import MockL2AdapterConfig
from lmcache.v1.distributed.serde import SerdeConfig
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import current_device_spec

ADAPTERS: dict[str, Callable[[Path], L2AdapterConfigBase]] = {
    "fs": lambda path: FSL2AdapterConfig(base_path=str(path)),
    "fs_native": lambda path: FSNativeL2AdapterConfig(base_path=str(path)),
    "mock": lambda path: MockL2AdapterConfig(max_size_gb=0.1, mock_bandwidth_gb=10.0),
}
"""LMCache's L2 adapters that need no server, by type, over a directory."""

FILE_ADAPTERS = ["fs", "fs_native"]

TIMEOUT_SECONDS = 60


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll ``condition``; fail with ``what`` was awaited."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.005)


@contextmanager
def short_waits() -> Iterator[None]:
    """Let LMCache's loops look every 20 ms, not twice a second, whether to stop."""
    package = "lmcache.v1.distributed"
    quick_time = SimpleNamespace(
        sleep=lambda seconds: time.sleep(seconds / 50), monotonic=time.monotonic
    )
    with (
        patch(f"{package}.l2_adapters.serde_wrapper._POLL_TIMEOUT_MS", 20),
        patch(
            f"{package}.storage_controllers.prefetch_controller"
            ".PREFETCH_LOOP_POLL_TIMEOUT_MS",
            20,
        ),
        patch(f"{package}.storage_controllers.eviction_controller.time", quick_time),
    ):
        yield


@contextmanager
def storage_manager(
    adapter: L2AdapterConfigBase, **settings: object
) -> Iterator[StorageManager]:
    """A manager whose single L2 adapter compresses with those serde settings."""
    adapter.serde_config = SerdeConfig(type="turboquant", kwargs=settings)
    memory = L1MemoryManagerConfig(
        size_in_bytes=64 << 20,
        use_lazy=current_device_spec.is_pin_supported,
        init_size_in_bytes=32 << 20,
        shm_name="",  # the default names the process: two managers would share it
    )
    config = StorageManagerConfig(
        l1_manager_config=L1ManagerConfig(memory_config=memory),
        eviction_config=EvictionConfig(eviction_policy="LRU"),
        l2_adapter_config=L2AdaptersConfig(adapters=[adapter]),
    )
    with short_waits():
        manager = StorageManager(config)
        try:
            yield manager
        finally:
            manager.close()


def describe(tensor: torch.Tensor) -> MemoryLayoutDesc:
    """Describe an object that holds such a tensor."""
    return MemoryLayoutDesc([tensor.shape], [tensor.dtype])


def tensor_of(memory: MemoryObj) -> torch.Tensor:
    """The tensor of an object that must have one."""
    assert memory.tensor is not None
    return memory.tensor


def write(manager: StorageManager, objects: dict[ObjectKey, torch.Tensor]) -> None:
    """Write objects of one shape to L1, from where they go to L2."""
    keys, (first, *_) = list(objects), objects.values()
    reserved = manager.reserve_write(keys, describe(first))
    assert len(reserved) == len(keys)
    for key, memory in reserved.items():
        tensor_of(memory).copy_(objects[key])
    manager.finish_write(keys)


def store(
    manager: StorageManager,
    objects: dict[ObjectKey, torch.Tensor],
    count_stored: Callable[[], int],
) -> None:
    """Write objects to L1 and wait until L2 has them."""
    wanted = count_stored() + len(objects)
    write(manager, objects)
    wait_until(lambda: count_stored() >= wanted, "the store to L2")
    wait_until_idle(manager)


def files_of(directory: Path) -> dict[str, Path]:
    """The complete files of a file adapter, by the hexadecimal chunk hash."""
    return {path.stem.split("@")[3]: path for path in directory.glob("*.data")}


def stored_count(manager: StorageManager, directory: Path) -> Callable[[], int]:
    """What counts a manager's objects in L2."""

    def count() -> int:
        status = manager.report_status()["l2_adapters"][0]
        return status.get("stored_object_count", 0) or len(files_of(directory))

    return count


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


def wait_until_idle(manager: StorageManager) -> None:
    """Wait for stores under way and for the release of locks.

    For a moment LMCache counts a key neither as pending nor as in flight; that is
    over at the second look.
    """
    for _ in range(2):
        wait_until(lambda: is_idle(manager), "the release of locks")
        time.sleep(0.01)


def clear(manager: StorageManager) -> None:
    """Empty L1 when nothing in it is locked any more."""
    wait_until_idle(manager)
    manager.clear()
    l1 = manager.report_status()["l1_manager"]
    assert (l1["total_object_count"], l1["memory_used_bytes"]) == (0, 0)


def load(
    manager: StorageManager, keys: Iterable[ObjectKey], like: torch.Tensor
) -> dict[ObjectKey, torch.Tensor]:
    """Empty L1, prefetch objects from L2 in one task, and copy those that hit.

    No object, lock or byte is left in L1.
    """
    clear(manager)
    keys = list(keys)
    hit_bits = prefetch(manager, prefetch_of(keys, like))
    hits = [keys[index] for index in hit_bits.get_indices_list()]
    with manager.read_prefetched_results(hits) as memories:
        restored = [tensor_of(memory).clone() for memory in memories or []]
    manager.finish_read_prefetched(hits)
    wait_until(
        lambda: manager.report_status()["l1_manager"]["memory_used_bytes"] == 0,
        "L1 to be empty",
    )
    assert is_idle(manager)
    return dict(zip(hits, restored, strict=True))


def prefetch_of(keys: Iterable[ObjectKey], like: torch.Tensor) -> PrefetchTaskSpec:
    """A task that fetches what there is of objects of one shape."""
    group = GroupedObjectKeys(
        keys=list(keys), object_group_id=0, layout_desc=describe(like)
    )
    return PrefetchTaskSpec([group], fetching_policy="full")


def prefetch(manager: StorageManager, task: PrefetchTaskSpec) -> Bitmap:
    """Run a prefetch of one group; return the bitmap of its hits."""
    handle = manager.submit_prefetch_task(task)
    results: list = []

    def has_finished() -> bool:
        result = manager.query_prefetch_status(handle)
        results.extend([] if result is None else [result])
        return bool(results)

    wait_until(has_finished, "the prefetch")
    return results[0].hit_cells[0]
