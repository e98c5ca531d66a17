# SPDX-License-Identifier: Apache-2.0
"""A server that is a process of its own over a folder.

A server takes free ports when it is made and keeps them, so that one which was killed
comes back where LMCache looks for it.
"""

# Standard
from abc import ABC, abstractmethod
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
import socket
import subprocess
import time

START_SECONDS = 120.0
_POLL_SECONDS = 0.05
HOST = "127.0.0.1"


class ServerError(RuntimeError):
    """A storage server is not installed or does not start."""


class StorageServer(ABC):
    """A server process; a context manager that starts and ends it."""

    def __init__(self, folder: Path) -> None:
        """Prepare to serve a folder.

        Args:
            folder: Where the server keeps its data and ``server.log``.
        """
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def spec(self) -> dict[str, object]:
        """What ``--l2-adapter`` needs to know of the server."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that serves the folder.

        Returns:
            Program and arguments.

        Raises:
            ServerError: If the program is not installed.
        """

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server takes requests by now."""

    def __enter__(self) -> "StorageServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process and wait until it takes requests.

        Raises:
            ServerError: If it is not installed or does not get ready.
        """
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self._folder, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = (self._folder / "server.log").read_text(errors="replace")[-500:]
                raise ServerError(f"{self.command()[0]} does not start: {tail}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """End the process at once, as a power cut would; data stays in the folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_ports(count: int) -> list[int]:
    """Return that many TCP ports that nobody listens on."""
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in bound]


def program_of(name: str, package: str) -> Path:
    """Find a program that a package brings, without importing the package.

    Args:
        name: Name of its file.
        package: Name of the distribution.

    Returns:
        The program.

    Raises:
        ServerError: If the package or the program is missing.
    """
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        raise ServerError(f"no {name}: pip install {package}") from None
    for file in files:
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise ServerError(f"the package {package} has no {name} for this machine")
