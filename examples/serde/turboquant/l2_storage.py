# SPDX-License-Identifier: Apache-2.0
"""The kinds of L2 storage that the demo can make for itself."""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# First Party
from l2_servers import RespServer, S3Server, resp_programs

L2_KINDS = ("fs", "fs_native", "resp", "s3", "mock")

MOCK_GB_PER_SECOND = 1.0
_MOCK_SIZE_GB = 8.0


@contextmanager
def running_l2(kind: str, folder: Path) -> Iterator[dict[str, object]]:
    """Make a storage in a folder, its server running meanwhile.

    Args:
        kind: One of ``L2_KINDS``.
        folder: Where it keeps its data.

    Yields:
        What ``--l2-adapter`` says of it.

    Raises:
        ServerError: If its server is not installed or does not start.
    """
    if kind == "resp":
        program = next(iter(resp_programs().values()))
        with RespServer(folder, program) as server:
            yield server.spec
    elif kind == "s3":
        with S3Server(folder) as server:
            yield server.spec
    elif kind == "mock":
        yield {
            "type": kind,
            "max_size_gb": _MOCK_SIZE_GB,
            "mock_bandwidth_gb": MOCK_GB_PER_SECOND,
        }
    else:
        yield {"type": kind, "base_path": str(folder)}
