# SPDX-License-Identifier: Apache-2.0
"""What the first steps let an operator try: KV in Redis over restarts and presets."""

# Standard
from collections.abc import Iterator
from pathlib import Path
import re

# Third Party
import pytest
import torch

# First Party
from l2_servers import RespServer, resp_programs
from store_and_fetch import main
from tests.server.lmcache_server import CHUNK_TOKENS, LMCacheServer
from tests.v1.distributed.serde.turboquant.storage import wait_until
import engine_client

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="covers hosts without a GPU"
)

SERDE = {
    "type": "turboquant",
    "preset": "turboquant_4bit_nc",
    "skip_first_layers": 1,
    "skip_last_layers": 1,
}
SHAPE = ("--layers", "6", "--heads", "2", "--head-dim", "64")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RespServer]:
    """A server that speaks Redis's protocol."""
    folder = tmp_path / "redis"
    folder.mkdir()
    program, *_ = resp_programs().values()
    with RespServer(folder, program) as running:
        yield running


def values_in(redis: RespServer) -> dict[bytes, bytes]:
    """What the store holds."""
    client = redis.client
    return {key: client.get(key) for key in client.scan_iter()}


def run(server: LMCacheServer, action: str, *options: str) -> int:
    """Run the command against a server; return its exit status."""
    tokens = ("--tokens", str(3 * CHUNK_TOKENS))
    return main([action, "--url", server.url, *tokens, *SHAPE, *options])


def test_kv_outlives_restarts_and_other_settings(
    tmp_path: Path, redis: RespServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def server(**settings: str) -> LMCacheServer:
        return LMCacheServer(tmp_path, redis.spec | {"serde": SERDE | settings})

    with server() as first:
        assert run(first, "store") == 0
        assert "stored 3 chunks, 589,824 bytes of KV" in capsys.readouterr().out
        wait_until(lambda: len(values_in(redis)) == 3, "the stores to L2")
        stored = values_in(redis)
        assert run(first, "fetch", "--seed", "1") == 1
        assert "0 of 3 chunks hit" in capsys.readouterr().out
        assert run(first, "store", "--tokens", "100") == 2
        assert "chunk of 64, got 100" in capsys.readouterr().err
    with server() as again:
        assert run(again, "fetch") == 0
        restored = capsys.readouterr().out
        assert "3 of 3 chunks hit" in restored
        keys, values = map(float, re.findall(r"0\.\d{4}", restored))
        # Four of six layers have 4-bit keys and values of 64 Gaussian numbers.
        assert 0.06 < keys < 0.09 and 0.06 < values < 0.1
        assert again.samples("failures_total") == []
    with server(preset="turboquant_3bit_nc") as other:
        assert run(other, "fetch") == 1
        # LMCache's client finds another size before it asks the serde.
        assert len(other.lines("size header mismatch")) == 3
    with LMCacheServer(tmp_path, redis.spec) as bare:
        assert run(bare, "fetch") == 1
    assert capsys.readouterr().out.count("0 of 3 chunks hit") == 2
    assert values_in(redis) == stored
    with server() as back:
        assert run(back, "fetch") == 0
    assert capsys.readouterr().out.splitlines()[1] == restored.splitlines()[1]


def test_what_is_wrong_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(engine_client, "_CONNECT_SECONDS", 0.2)
    assert main(["fetch", "--url", "tcp://127.0.0.1:9", "--tokens", "64"]) == 2
    nobody = "error: no LMCache server answers at tcp://127.0.0.1:9\n"
    assert capsys.readouterr().err.endswith(nobody)
    assert main(["store", "--heads", "0"]) == 2
    assert "must be positive" in capsys.readouterr().err
