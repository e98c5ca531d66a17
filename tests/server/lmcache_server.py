# SPDX-License-Identifier: Apache-2.0
"""``lmcache server`` as a process of its own, and what it says over HTTP."""

# Standard
from pathlib import Path
from urllib.request import Request, urlopen
import json
import subprocess
import sys

# Third Party
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# First Party
from storage_server import StorageServer, free_ports

CHUNK_TOKENS = 64
STOP_SECONDS = 30
LOG_LEVEL = "DEBUG"


class LMCacheServer(StorageServer):
    """A server with one L2 adapter, on the CPU; ends as an operator ends it."""

    def __init__(self, folder: Path, adapter: dict[str, object], *options: str) -> None:
        """Prepare a server.

        Args:
            folder: Where ``server.log`` goes.
            adapter: What ``--l2-adapter`` says, its serde included.
            *options: Further options of ``lmcache server``.
        """
        super().__init__(folder)
        self._adapter = adapter
        self._options = options
        self._port, self._http_port = free_ports(2)

    @property
    def spec(self) -> dict[str, object]:
        """What ``--l2-adapter`` says."""
        return self._adapter

    @property
    def url(self) -> str:
        """Where engines reach the server."""
        return f"tcp://127.0.0.1:{self._port}"

    def command(self) -> list[str]:
        """Return the command that serves."""
        log_level = f"LMCACHE_LOG_LEVEL={LOG_LEVEL}"
        return [
            *("env", log_level, sys.executable, "-m", "lmcache.cli.main", "server"),
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--http-host", "127.0.0.1", "--http-port", str(self._http_port)),
            *("--l1-size-gb", "0.25", "--no-l1-use-lazy"),
            *("--supported-transfer-mode", "auto", "--eviction-policy", "LRU"),
            *("--chunk-size", str(CHUNK_TOKENS)),
            *("--l2-adapter", json.dumps(self._adapter), *self._options),
        ]

    def is_ready(self) -> bool:
        """Whether the server takes requests by now."""
        try:
            return self._http("GET", "/healthcheck") != ""
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask the server to end; end it if it does not."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    @property
    def log(self) -> str:
        """What the server has logged."""
        return (self._folder / "server.log").read_text(errors="replace")

    def lines(self, text: str) -> list[str]:
        """The lines of the log that hold a text."""
        return [line for line in self.log.splitlines() if text in line]

    def status(self) -> dict:
        """The storage manager's status."""
        return json.loads(self._http("GET", "/status"))["storage_manager"]

    def clear_l1(self) -> None:
        """Empty L1."""
        self._http("POST", "/cache/clear")

    def samples(self, name: str) -> list[Sample]:
        """Samples of a metric of the serde, as Prometheus reads them."""
        families = text_string_to_metric_families(self._http("GET", "/metrics"))
        return [
            sample
            for family in families
            for sample in family.samples
            if sample.name == f"lmcache_mp_serde_{name}"
        ]

    def _http(self, method: str, path: str) -> str:
        """Send a request; return the answer."""
        url = f"http://127.0.0.1:{self._http_port}{path}"
        with urlopen(Request(url, method=method), timeout=10) as answer:
            return answer.read().decode()
