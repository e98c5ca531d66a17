# SPDX-License-Identifier: Apache-2.0
"""The kinds of L2 storage that are tested, each made for one test."""

# Standard
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen
from xml.etree import ElementTree
import json
import os

# First Party
from l2_servers import RespServer, S3Server, resp_programs
from lmcache.v1.distributed.storage_manager import StorageManager
from storage_config import parse_l2_adapter
from storage_server import StorageServer
from tests.v1.distributed.serde.turboquant import storage

Inventory = Callable[[], dict[str, int]]


@dataclass(frozen=True)
class Store:
    """An L2 storage.

    Attributes:
        spec: What ``--l2-adapter`` says of it.
        server: Its server, where it has one.
        inventory: Asks the storage itself for names and sizes of what it holds;
            None where only the adapter knows.
        counted_as: Where the adapter's status counts objects, without inventory.
    """

    spec: dict[str, object]
    server: StorageServer | None = None
    inventory: Inventory | None = None
    counted_as: str = ""

    @contextmanager
    def manager(
        self, settings: dict[str, object], **adapter: object
    ) -> Iterator[StorageManager]:
        """A manager over this storage.

        Args:
            settings: Settings of its serde.
            **adapter: What the adapter is told beside ``spec``.
        """
        config = parse_l2_adapter(json.dumps(self.spec | adapter))
        with storage.storage_manager(config, **settings) as manager:
            yield manager

    def count(self, manager: StorageManager) -> int:
        """How many objects the storage holds."""
        if self.inventory is not None:
            return len(self.inventory())
        return manager.report_status()["l2_adapters"][0][self.counted_as]


@contextmanager
def _files(adapter_type: str, folder: Path) -> Iterator[Store]:
    """Files in a folder."""

    def inventory() -> dict[str, int]:
        files = [path for path in folder.rglob("*.data") if path.is_file()]
        return {path.stem: path.stat().st_size for path in files}

    yield Store({"type": adapter_type, "base_path": str(folder)}, inventory=inventory)


@contextmanager
def _resp(name: str, folder: Path) -> Iterator[Store]:
    """A server that speaks Redis's protocol."""
    server = RespServer(folder, resp_programs()[name])

    def inventory() -> dict[str, int]:
        client = server.client
        return {key.decode(): client.strlen(key) for key in client.scan_iter()}

    with server:
        yield Store(server.spec, server, inventory)


@contextmanager
def _s3(folder: Path) -> Iterator[Store]:
    """A bucket of an S3 server."""
    server = S3Server(folder)

    def inventory() -> dict[str, int]:
        with urlopen(f"{server.url}/?list-type=2", timeout=10) as answer:
            listing = ElementTree.parse(answer)
        return {
            str(entry.findtext("{*}Key")): int(entry.findtext("{*}Size") or 0)
            for entry in listing.iterfind("{*}Contents")
        }

    with server:
        yield Store(server.spec, server, inventory)


@contextmanager
def _dax(folder: Path) -> Iterator[Store]:
    """A mapped file in place of a DAX device."""
    path, size = folder / "device", 32 << 20
    path.touch()
    os.truncate(path, size)
    spec = {
        "type": "dax",
        "device_path": str(path),
        "max_dax_size_gb": size / (1 << 30),
        "slot_bytes": 1 << 20,
    }
    yield Store(spec, counted_as="live_slot_count")


@contextmanager
def _mock(folder: Path) -> Iterator[Store]:
    """Memory of the process, reached at 0.5 GB/s."""
    spec = {"type": "mock", "max_size_gb": 0.1, "mock_bandwidth_gb": 0.5}
    yield Store(spec, counted_as="stored_object_count")


RESP_STORES = list(resp_programs())
PERSISTENT_STORES = ["fs", "fs_native", *RESP_STORES, "s3"]
SERVER_STORES = [*RESP_STORES, "s3"]
STORES = [*PERSISTENT_STORES, "dax", "mock"]


@contextmanager
def open_store(name: str, folder: Path) -> Iterator[Store]:
    """Open one of ``STORES``, its data in ``folder``."""
    makers = {
        "fs": lambda: _files("fs", folder),
        "fs_native": lambda: _files("fs_native", folder),
        "s3": lambda: _s3(folder),
        "dax": lambda: _dax(folder),
        "mock": lambda: _mock(folder),
    }
    maker = makers.get(name, lambda: _resp(name, folder))
    with maker() as store:
        yield store
