# SPDX-License-Identifier: Apache-2.0
"""What storage does to payloads: a load gives exactly the right data, or misses."""

# Standard
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Third Party
import pytest

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.fault_inject_l2_adapter import (
    FaultInjectL2AdapterConfig,
)
from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper
from lmcache.v1.distributed.storage_manager import StorageManager
from tests.v1.distributed.serde.turboquant.faulty_adapter import (
    BUFFER_FAULTS,
    FaultyL2Adapter,
    faulty_adapter_config,
)
from tests.v1.distributed.serde.turboquant.small_objects import (
    LIKE,
    SETTINGS,
    Objects,
    assert_right,
    expected_of,
    random_objects,
)
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    FILE_ADAPTERS,
    files_of,
    load,
    storage_manager,
    store,
    stored_count,
)


def file_of(directory: Path, key: ObjectKey) -> Path:
    """An object's file."""
    return files_of(directory)[key.chunk_hash.hex()]


@dataclass(frozen=True)
class Store:
    """A manager over a directory, and what L2 holds.

    Attributes:
        manager: The manager.
        directory: Where a file adapter keeps its files.
        expected: What loads should give.
    """

    manager: StorageManager
    directory: Path
    expected: Objects

    def load(self, keys: list[ObjectKey] | None = None) -> Objects:
        """Load objects, all unless told otherwise, in one task."""
        return load(self.manager, keys or self.expected, LIKE)


@pytest.fixture(scope="module", params=FILE_ADAPTERS)
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """A store of four objects in files; a test leaves it as it found it."""
    directory, objects = tmp_path_factory.mktemp(request.param), random_objects()
    with storage_manager(ADAPTERS[request.param](directory), **SETTINGS) as manager:
        store(manager, objects, stored_count(manager, directory))
        yield Store(manager, directory, expected_of(objects))


Spoil = Callable[[bytes, bytes], bytes]

FILE_FAULTS: dict[str, Spoil] = {
    "empty": lambda own, other: b"",
    "header only": lambda own, other: own[:128],
    "half": lambda own, other: own[: len(own) // 2],
    "a byte short": lambda own, other: own[:-1],
    "half zeros": lambda own, other: own[: len(own) // 2].ljust(len(own), b"\0"),
    "zeros": lambda own, other: bytes(len(own)),
    "a header bit": lambda own, other: own[:40] + bytes([own[40] ^ 1]) + own[41:],
    "a payload bit": lambda own, other: own[:999] + bytes([own[999] ^ 1]) + own[1000:],
    "another's start": lambda own, other: other[:4096] + own[4096:],
    "another's end": lambda own, other: own[:4096] + other[4096:],
    "another's": lambda own, other: other,
}
"""What stands in an object's file, from its own and another object's bytes."""


@pytest.mark.parametrize("fault", FILE_FAULTS)
def test_a_spoilt_file_is_a_miss(filled: Store, fault: str) -> None:
    bad, *good = filled.expected
    path, other = (file_of(filled.directory, key) for key in (bad, good[0]))
    own = path.read_bytes()
    path.write_bytes(FILE_FAULTS[fault](own, other.read_bytes()))
    try:
        assert_right(filled.load(), filled.expected)
        assert filled.load([bad]) == {}
        without_it = filled.load(good)
        assert without_it.keys() == set(good)
        assert_right(without_it, filled.expected)
    finally:
        path.write_bytes(own)
    again = filled.load()
    assert again.keys() == filled.expected.keys()
    assert_right(again, filled.expected)


def test_longer_files_are_read(filled: Store) -> None:
    key = next(iter(filled.expected))
    path = file_of(filled.directory, key)
    own = path.read_bytes()
    path.write_bytes(own + bytes(range(256)) * 16)
    try:
        loaded = filled.load()
    finally:
        path.write_bytes(own)
    assert loaded.keys() == filled.expected.keys()
    assert_right(loaded, filled.expected)


def test_a_removed_file_is_a_miss(filled: Store) -> None:
    gone, *kept = filled.expected
    path = file_of(filled.directory, gone)
    own = path.read_bytes()
    path.unlink()
    try:
        loaded = filled.load()
    finally:
        path.write_bytes(own)
    assert loaded.keys() == set(kept)
    assert_right(loaded, filled.expected)


@pytest.fixture(scope="module")
def lying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store whose adapter can be told to spoil what it loads."""
    directory, objects = tmp_path_factory.mktemp("unused"), random_objects()
    with storage_manager(faulty_adapter_config(), **SETTINGS) as manager:
        store(manager, objects, stored_count(manager, directory))
        yield Store(manager, directory, expected_of(objects))


@pytest.mark.parametrize("fault", BUFFER_FAULTS)
def test_a_lying_adapter_gives_misses(lying: Store, fault: str) -> None:
    [(_, wrapper)] = lying.manager.l2_adapters()
    assert isinstance(wrapper, SerdeL2AdapterWrapper)
    adapter = wrapper.inner_adapter
    assert isinstance(adapter, FaultyL2Adapter)
    keys = list(lying.expected)
    # Leaves every temporary buffer with another object's bytes than the next load.
    assert len(lying.load([*keys[1:], keys[0]])) == len(keys)
    adapter.fault = fault
    try:
        loaded = lying.load()
    finally:
        adapter.fault = ""
    assert loaded == {}
    again = lying.load()
    assert again.keys() == lying.expected.keys()
    assert_right(again, lying.expected)


@pytest.mark.parametrize("inner", ADAPTERS)
def test_dropped_loads_are_misses(inner: str, tmp_path: Path) -> None:
    objects = random_objects()
    expected, keys = expected_of(objects), list(objects)
    adapter = FaultInjectL2AdapterConfig(
        ADAPTERS[inner](tmp_path), rate=0.0, seed=0, gap_indices=(1,)
    )
    with storage_manager(adapter, **SETTINGS) as manager:
        store(manager, objects, stored_count(manager, tmp_path))
        loaded = load(manager, objects, LIKE)
        assert list(loaded) == [keys[0], *keys[2:]]
        assert_right(loaded, expected)
        assert load(manager, keys[:1], LIKE).keys() == {keys[0]}


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_randomly_dropped_loads_are_misses(rate: float, tmp_path: Path) -> None:
    objects = random_objects(12)
    expected = expected_of(objects)
    adapter = FaultInjectL2AdapterConfig(
        ADAPTERS["fs_native"](tmp_path), rate=rate, seed=1, gap_indices=()
    )
    with storage_manager(adapter, **SETTINGS, max_workers=4) as manager:
        store(manager, objects, stored_count(manager, tmp_path))
        loaded = load(manager, objects, LIKE)
    assert len(loaded) == 0 if rate == 1.0 else 0 < len(loaded) < len(objects)
    assert_right(loaded, expected)
