# SPDX-License-Identifier: Apache-2.0
"""What cannot be stored is refused in one line, and leaves nothing behind."""

# Standard
from dataclasses import replace
from pathlib import Path

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerializer
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    gaussian,
    memory_obj,
    object_key,
    restored_alone,
    unskipped,
)
from tests.v1.distributed.serde.turboquant.log_recorder import recorded_log
from tests.v1.distributed.serde.turboquant.small_objects import (
    CONFIG,
    LIKE,
    SETTINGS,
    assert_right,
    expected_of,
    random_objects,
)
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    clear,
    describe,
    load,
    prefetch,
    storage_manager,
    store,
    stored_count,
    tensor_of,
    wait_until,
    wait_until_idle,
    write,
)


@pytest.mark.parametrize("adapter", ["fs", "mock"])
def test_objects_of_two_sizes_share_a_task(adapter: str, tmp_path: Path) -> None:
    """Every buffer has the size of its own object (#4408)."""
    ((small, kv), *_) = random_objects().items()
    large = replace(object_key(9), object_group_id=1)
    objects = {small: kv, large: kv.repeat(1, 1, 10, 1)}
    with storage_manager(ADAPTERS[adapter](tmp_path), **SETTINGS) as manager:
        count = stored_count(manager, tmp_path)
        for key, tensor in objects.items():
            memory = manager.reserve_write([key], describe(tensor))[key]
            tensor_of(memory).copy_(tensor)
        manager.finish_write(list(objects))
        wait_until(lambda: count() == 2, "both objects to be stored")
        clear(manager)
        groups = [
            GroupedObjectKeys([key], key.object_group_id, layout_desc=describe(tensor))
            for key, tensor in objects.items()
        ]
        prefetch(manager, PrefetchTaskSpec(groups, fetching_policy="full"))
        for key, tensor in objects.items():
            with manager.read_prefetched_results([key]) as memories:
                (restored,) = [tensor_of(memory).clone() for memory in memories or []]
            manager.finish_read_prefetched([key])
            assert torch.equal(restored, restored_alone(tensor, CONFIG))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_batch_with_one_misfit_is_not_stored(adapter: str, tmp_path: Path) -> None:
    """LMCache stores a task's objects all or none; the rest can be stored later."""
    objects = random_objects()
    small, *others = objects
    fused = ObjectKey(small.chunk_hash, small.model_name, 0, object_group_id=1)
    with storage_manager(ADAPTERS[adapter](tmp_path), **SETTINGS) as manager:
        count = stored_count(manager, tmp_path)
        reserved = manager.reserve_write([small], describe(LIKE))
        reserved |= manager.reserve_write([fused], describe(LIKE[:1]))
        with recorded_log() as log:
            manager.finish_write(list(reserved))
            wait_until(lambda: bool(log.about("kv_layout")), "the store to fail")
            wait_until_idle(manager)
        assert count() == 0
        clear(manager)
        good = {key: objects[key] for key in others}
        store(manager, good, count)
        assert_right(load(manager, others, LIKE), expected_of(good))
        assert count() == len(others)


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("framed", [False, True])
def test_a_small_destination_is_refused_untouched(preset: str, framed: bool) -> None:
    config = unskipped(preset, 64, framed=framed)
    tensor = gaussian(*LIKE.shape).to(LIKE.dtype)
    serializer = TurboQuantSerializer(config)
    size = serializer.estimate_serialized_size(describe(LIKE))
    arena = torch.full((size + 64,), 0xA5, dtype=torch.uint8)
    for room in (0, 1, 64, 128, size // 2, size - 1):
        with pytest.raises(ValueError, match=f"too small: needs {size} bytes, got "):
            serializer.serialize(
                memory_obj(tensor), memory_obj(arena[:room]), object_key()
            )
    assert (arena == 0xA5).all()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_what_the_estimate_refuses_is_not_stored(adapter: str, tmp_path: Path) -> None:
    fused = {key: t[:1].contiguous() for key, t in random_objects().items()}
    with storage_manager(ADAPTERS[adapter](tmp_path), **SETTINGS) as manager:
        with recorded_log() as log:
            write(manager, fused)
            wait_until(lambda: bool(log.about("kv_layout")), "the refusal")
            wait_until_idle(manager)
        lines = log.about("TurboQuant")
        assert lines and all("set it to one of fused" in line for line in lines)
        assert stored_count(manager, tmp_path)() == 0
        clear(manager)
