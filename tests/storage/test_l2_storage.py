# SPDX-License-Identifier: Apache-2.0
"""Every kind of L2 storage, real disks and servers: what is stored comes back."""

# Standard
from collections.abc import Iterator
from pathlib import Path

# Third Party
import pytest
import torch

# First Party
from tests.storage.objects import (
    LIKE,
    PAYLOAD_BYTES,
    RAW_LAYERS,
    assert_equal,
    expected_of,
    random_objects,
    settings_of,
)
from tests.storage.other_process import load_elsewhere, storing_elsewhere
from tests.storage.stores import (
    PERSISTENT_STORES,
    SERVER_STORES,
    STORES,
    Store,
    open_store,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    object_key,
    relative_error,
)
from tests.v1.distributed.serde.turboquant.log_recorder import recorded_log
from tests.v1.distributed.serde.turboquant.storage import (
    load,
    store,
    wait_until,
    wait_until_idle,
    write,
)

SETTINGS = settings_of()

ERRORS = {
    "turboquant_k8v4": (0.003, 0.008),
    "turboquant_4bit_nc": (0.007, 0.013),
    "turboquant_k3v4_nc": (0.018, 0.026),
    "turboquant_3bit_nc": (0.03, 0.05),
}
"""Bounds of the relative squared error of compressed layers of Gaussian KV: the mean
of keys (Lloyd-Max distortion 0.0345 and 0.0095 with 3 and 4 bits; e4m3 0.0007) and of
values (uniform steps over the range of 64 numbers: 0.044 and 0.0096)."""


def opened(name: str, factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A storage for the tests of a module."""
    with open_store(name, factory.mktemp(name)) as opened_store:
        yield opened_store


@pytest.fixture(params=STORES)
def any_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """Each kind of storage."""
    yield from opened(request.param, tmp_path_factory)


@pytest.fixture(params=PERSISTENT_STORES)
def persistent_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """Each kind of storage that outlives the process that wrote to it."""
    yield from opened(request.param, tmp_path_factory)


@pytest.fixture(params=SERVER_STORES)
def server_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """Each kind of storage that has a server."""
    yield from opened(request.param, tmp_path_factory)


def test_every_preset_survives_a_restart(persistent_store: Store) -> None:
    for preset in PRESET_NAMES:
        objects, settings = random_objects(2, model=preset), settings_of(preset)
        with persistent_store.manager(settings) as manager:
            store(manager, objects, lambda: persistent_store.count(manager))
        with persistent_store.manager(settings) as manager:
            loaded = load(manager, objects, LIKE)
        assert_equal(loaded, expected_of(objects, preset))
        assert_close(objects, loaded, preset)
        assert_sizes(persistent_store, preset, len(objects))


def assert_close(objects: dict, loaded: dict, preset: str) -> None:
    """Raw layers are exact, and the others as close as the preset makes them."""
    low, high = ERRORS[preset]
    for key, original in objects.items():
        restored = loaded[key]
        assert torch.equal(original[:, RAW_LAYERS], restored[:, RAW_LAYERS])
        error = relative_error(original[:, 1:-1], restored[:, 1:-1])
        assert low < error < high


def assert_sizes(l2: Store, preset: str, count: int) -> None:
    """The storage holds the objects of a preset in as many bytes as they take."""
    assert l2.inventory is not None
    held = {name: size for name, size in l2.inventory().items() if preset in name}
    assert list(held.values()) == [PAYLOAD_BYTES[preset]] * count


def test_objects_come_back_in_part_and_are_deleted(any_store: Store) -> None:
    objects = random_objects()
    expected, keys = expected_of(objects), list(objects)
    absent = [object_key(100), object_key(101)]
    with any_store.manager(SETTINGS) as manager:
        store(manager, objects, lambda: any_store.count(manager))
        asked = [absent[0], keys[2], keys[0], absent[1], keys[3]]
        loaded = load(manager, asked, LIKE)
        assert list(loaded) == [keys[2], keys[0], keys[3]]
        assert_equal(loaded, {key: expected[key] for key in loaded})
        assert load(manager, absent, LIKE) == {}
        [(_, adapter)] = manager.l2_adapters()
        adapter.delete(keys[:2])
        wait_until(lambda: any_store.count(manager) == 2, "the deletion")
        left = load(manager, keys, LIKE)
        assert_equal(left, {key: expected[key] for key in keys[2:]})
        again = {key: objects[key] for key in keys[:2]}
        store(manager, again, lambda: any_store.count(manager))
        assert_equal(load(manager, keys, LIKE), expected)


def test_another_process_reads_what_this_one_wrote(persistent_store: Store) -> None:
    objects = random_objects()
    with persistent_store.manager(SETTINGS) as manager:
        store(manager, objects, lambda: persistent_store.count(manager))
        loaded = load_elsewhere(persistent_store.spec, list(objects))
    assert_equal(loaded, expected_of(objects))


def test_what_a_killed_process_stored_is_there(persistent_store: Store) -> None:
    inventory = persistent_store.inventory
    assert inventory is not None
    with storing_elsewhere(persistent_store.spec):
        wait_until(lambda: len(inventory()) == 4, "the stores of the other process")
    with persistent_store.manager(SETTINGS) as manager:
        loaded = load(manager, random_objects(), LIKE)
    assert_equal(loaded, expected_of(random_objects()))


def test_nothing_is_lost_when_the_server_is_killed(server_store: Store) -> None:
    server, objects = server_store.server, random_objects()
    assert server is not None
    with server_store.manager(SETTINGS) as manager:
        store(manager, objects, lambda: server_store.count(manager))
        server.kill()
    server.start()
    assert server_store.count(manager) == len(objects)
    with server_store.manager(SETTINGS) as manager:
        assert_equal(load(manager, objects, LIKE), expected_of(objects))


def test_a_server_that_is_down_gives_misses(server_store: Store) -> None:
    """LMCache's ``resp`` client stays without the server until LMCache restarts."""
    server, objects = server_store.server, random_objects()
    assert server is not None
    expected = expected_of(objects)
    with server_store.manager(SETTINGS) as manager:
        store(manager, objects, lambda: server_store.count(manager))
        server.kill()
        with recorded_log() as log:
            assert load(manager, objects, LIKE) == {}
            write(manager, random_objects(2, first=10))
            wait_until_idle(manager)
        assert not log.about("TurboQuant")
        server.start()
        survivor = load(manager, objects, LIKE)
        assert_equal(survivor, {key: expected[key] for key in survivor})
    with server_store.manager(SETTINGS) as manager:
        assert_equal(load(manager, objects, LIKE), expected)


@pytest.mark.parametrize("name", [name for name in STORES if name != "fs"])
def test_a_full_storage_evicts(name: str, tmp_path: Path) -> None:
    """Six objects of eight fit, a seventh is too many; ``fs`` knows no capacity."""
    capacity = 8 * PAYLOAD_BYTES["turboquant_4bit_nc"] / (1 << 30)
    limits = {
        "mock": {"max_size_gb": capacity},
        "dax": {"max_dax_size_gb": 8 * (1 << 20) / (1 << 30)},
    }
    eviction = {
        "eviction_policy": "LRU",
        "trigger_watermark": 0.8,
        "eviction_ratio": 0.5,
    }
    limit = limits.get(name, {"max_capacity_gb": capacity})
    objects = random_objects(6)
    with open_store(name, tmp_path) as full:
        with full.manager(SETTINGS, eviction=eviction, **limit) as manager:
            write(manager, objects)
            wait_until(lambda: full.count(manager) == 6, "the stores")
            more = random_objects(1, first=6)
            write(manager, more)
            wait_until(lambda: 0 < full.count(manager) < 6, "the eviction")
            wait_until_idle(manager)
            objects |= more
            loaded = load(manager, objects, LIKE)
    expected = expected_of(objects)
    assert 0 < len(loaded) < len(objects)
    assert_equal(loaded, {key: expected[key] for key in loaded})
