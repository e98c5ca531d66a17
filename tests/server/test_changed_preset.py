# SPDX-License-Identifier: Apache-2.0
"""A server that comes back with another preset over the same directory."""

# Standard
from pathlib import Path

# Third Party
import torch

# First Party
from tests.server.engine import Engine
from tests.server.lmcache_server import LMCacheServer
from tests.server.test_lmcache_server import (
    TOKENS,
    WIDTHS,
    adapter,
    assert_idle,
    files_in,
    restored,
    value,
)
from tests.v1.distributed.serde.turboquant.storage import wait_until

SMALLER, LARGER = "turboquant_3bit_nc", "turboquant_k8v4"


def test_old_payloads_are_misses_until_the_preset_is_back(tmp_path: Path) -> None:
    with LMCacheServer(tmp_path, adapter(tmp_path)) as server:
        with Engine(server.url, WIDTHS) as engine:
            engine.fill(1)
            assert engine.store(TOKENS)
            expected = restored(engine.chunks(3))
            wait_until(lambda: len(files_in(tmp_path)) == 3, "the stores to L2")
    before = {path: path.read_bytes() for path in files_in(tmp_path)}

    with LMCacheServer(tmp_path, adapter(tmp_path, preset=SMALLER)) as server:
        with Engine(server.url, WIDTHS) as engine:
            assert_misses(engine)
        (warning,) = server.lines("TurboQuant cannot decode")
        assert "written with preset turboquant_4bit_nc (tensor 0), expected turb" in (
            warning
        )
        assert "What to do: what other settings wrote stays until it is" in warning
        assert value(server, "failures_total", reason="changed_settings") >= 1
        assert_idle(server)

    with LMCacheServer(tmp_path, adapter(tmp_path, preset=LARGER)) as server:
        with Engine(server.url, WIDTHS) as engine:
            assert_misses(engine)
        # The adapter finds files too short before it asks the serde.
        assert "another serde, preset" in server.lines("Incomplete read")[0]
        assert_idle(server)

    assert {path: path.read_bytes() for path in files_in(tmp_path)} == before
    with LMCacheServer(tmp_path, adapter(tmp_path)) as server:
        with Engine(server.url, WIDTHS) as engine:
            assert engine.fetch(TOKENS) == 3
            assert all(map(torch.equal, engine.chunks(3), expected))
        assert_idle(server)


def assert_misses(engine: Engine) -> None:
    """Nothing hits, and the engine's KV stays as it is."""
    engine.fill(2)
    before = engine.chunks(3)
    assert engine.fetch(TOKENS) == 0
    assert all(map(torch.equal, engine.chunks(3), before))
