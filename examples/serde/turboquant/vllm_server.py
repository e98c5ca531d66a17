# SPDX-License-Identifier: Apache-2.0
"""``lmcache server`` with a turboquant L2, and what its metrics say."""

# Standard
from pathlib import Path
from urllib.request import Request, urlopen
import json
import sys
import time

# Third Party
from prometheus_client.parser import text_string_to_metric_families

# First Party
from storage_server import HOST, ServerError, StorageServer, free_ports

_SETTLED_SECONDS = 3.0
_POLL_SECONDS = 0.25
_TIMEOUT_SECONDS = 300.0


class TurboQuantServer(StorageServer):
    """A server whose L2 is files in its folder; a context manager."""

    def __init__(self, folder: Path, serde: dict[str, object], l1_size_gb: float):
        """Prepare to serve.

        Args:
            folder: Where L2 and ``server.log`` go.
            serde: The adapter's serde.
            l1_size_gb: Size of L1.
        """
        super().__init__(folder)
        self._serde = serde
        self._l1_size_gb = l1_size_gb
        self.port, self._http_port = free_ports(2)

    @property
    def spec(self) -> dict[str, object]:
        """What ``--l2-adapter`` says."""
        base_path = str(self._folder / "l2")
        return {"type": "fs", "base_path": base_path, "serde": self._serde}

    @property
    def connector(self) -> dict[str, object]:
        """What vLLM's ``--kv-transfer-config`` says to reach the server."""
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "lmcache.mp.host": HOST,
                "lmcache.mp.port": self.port,
            },
        }

    def command(self) -> list[str]:
        """Return the command that serves."""
        return [
            *(sys.executable, "-m", "lmcache.cli.main", "server"),
            *("--host", HOST, "--port", str(self.port)),
            *("--http-host", HOST, "--http-port", str(self._http_port)),
            *("--l1-size-gb", str(self._l1_size_gb), "--eviction-policy", "LRU"),
            *("--l2-adapter", json.dumps(self.spec)),
        ]

    def is_ready(self) -> bool:
        """Whether the server takes requests by now."""
        try:
            return bool(self._http("GET", "/healthcheck"))
        except OSError:
            return False

    def clear_l1(self) -> None:
        """Remove everything from L1."""
        self._http("POST", "/cache/clear")

    def metric(self, name: str) -> float:
        """Return one of the serde's metrics, summed over its labels.

        Args:
            name: Its name without prefix, such as ``encode_duration_seconds_count``.

        Returns:
            The sum; 0 where nothing was counted yet.
        """
        return metric_sum(self._http("GET", "/metrics"), f"lmcache_mp_serde_{name}")

    def wait_until_stored(self) -> None:
        """Wait until objects were encoded and no more come.

        Raises:
            ServerError: If nothing is encoded.
        """
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        count, since = 0.0, time.monotonic()
        while not count or time.monotonic() - since < _SETTLED_SECONDS:
            if time.monotonic() > deadline:
                raise ServerError(f"{count:.0f} objects encoded, still not settled")
            time.sleep(_POLL_SECONDS)
            encoded = self.metric("encode_duration_seconds_count")
            if encoded != count:
                count, since = encoded, time.monotonic()

    def _http(self, method: str, path: str) -> str:
        """Ask the server's HTTP port."""
        request = Request(f"http://{HOST}:{self._http_port}{path}", method=method)
        with urlopen(request, timeout=10) as response:
            return response.read().decode()


def metric_sum(exposition: str, name: str) -> float:
    """Sum the samples of a metric.

    Args:
        exposition: Text in Prometheus's format.
        name: Full name of the samples.

    Returns:
        The sum; 0 where there are none.
    """
    families = text_string_to_metric_families(exposition)
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    )
