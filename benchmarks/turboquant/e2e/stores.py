# SPDX-License-Identifier: Apache-2.0
"""The kinds of L2 that are measured, and their servers."""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# First Party
from l2_servers import RespServer, resp_programs

BANDWIDTHS = (0.5, 1.0, 5.0, 10.0)
"""Of the mocked stores, in 10^9 bytes a second."""

_MOCK_UNIT = 2**30
"""Bytes that LMCache's mock calls a gigabyte."""
_MOCK_SIZE = 4.0


class Store(NamedTuple):
    """A storage that runs.

    Attributes:
        name: What the table calls it.
        spec: What ``--l2-adapter`` says of it.
        gigabytes_per_second: Its bandwidth; 0 where only measuring tells.
    """

    name: str
    spec: dict[str, object]
    gigabytes_per_second: float = 0.0


def mock(gigabytes_per_second: float) -> Store:
    """Return memory that is reached at a bandwidth."""
    spec: dict[str, object] = {
        "type": "mock",
        "max_size_gb": _MOCK_SIZE,
        "mock_bandwidth_gb": gigabytes_per_second * 1e9 / _MOCK_UNIT,
    }
    name = f"mock {gigabytes_per_second:g} GB/s"
    return Store(name, spec, gigabytes_per_second)


@contextmanager
def running_stores(folder: Path) -> Iterator[list[Store]]:
    """Make every store in a folder, its server running meanwhile.

    Args:
        folder: Where files and the server's data go.

    Yields:
        The stores.

    Raises:
        ServerError: If Redis or Valkey is not installed or does not start.
    """
    files, data = folder / "fs", folder / "resp"
    files.mkdir()
    data.mkdir()
    name, program = next(iter(resp_programs().items()))
    with RespServer(data, program) as server:
        yield [
            Store("fs", {"type": "fs", "base_path": str(files)}),
            Store(name, server.spec),
            *(mock(bandwidth) for bandwidth in BANDWIDTHS),
        ]
