# SPDX-License-Identifier: Apache-2.0
"""Models of several KV groups: one object of several tensors, or one for each group."""

# Standard
from pathlib import Path

# Third Party
import torch

# First Party
from engine_client import Engine
from tests.server.lmcache_server import CHUNK_TOKENS, LMCacheServer
from tests.server.test_lmcache_server import (
    TOKENS,
    adapter,
    assert_idle,
    files_in,
    restored,
)
from tests.v1.distributed.serde.turboquant.storage import wait_until

NARROW, WIDE = slice(0, 4), slice(4, 8)


def test_one_object_of_two_widths(tmp_path: Path) -> None:
    groups = [{"head_dim": 64}, {"head_dim": 128, "preset": "turboquant_k8v4"}]
    with LMCacheServer(tmp_path, adapter(tmp_path, groups=groups)) as server:
        widths = [(2, 64)] * 4 + [(2, 128)] * 4
        with Engine(server.url, widths, mode="lmcache_driven") as engine:
            engine.fill(1)
            assert engine.store(TOKENS)
            expected = [
                *restored(engine.chunks(3, NARROW)),
                *restored(engine.chunks(3, WIDE), **groups[1]),
            ]
            wait_until(lambda: len(files_in(tmp_path)) == 3, "the stores to L2")
            assert_idle(server)
            engine.fill(2)
            assert engine.fetch(TOKENS) == 3
            found = [*engine.chunks(3, NARROW), *engine.chunks(3, WIDE)]
            assert all(map(torch.equal, found, expected))
        assert_idle(server)


def test_an_object_for_each_group(tmp_path: Path) -> None:
    options = ("--separate-object-groups",)
    with LMCacheServer(tmp_path, adapter(tmp_path), *options) as server:
        windows = [-1] * 4 + [CHUNK_TOKENS] * 4
        with Engine(
            server.url, [(2, 64)] * 8, mode="lmcache_driven", windows=windows
        ) as engine:
            engine.fill(1)
            assert engine.store(TOKENS)
            full = restored(engine.chunks(3, NARROW))
            last_window = restored(engine.chunks(3, WIDE))[-1]
            wait_until(lambda: len(files_in(tmp_path)) == 6, "the stores to L2")
            assert {path.stem.split("@")[2] for path in files_in(tmp_path)} == {
                "0",
                "1",
            }
            assert_idle(server)
            engine.fill(2)
            assert engine.fetch(TOKENS) == 3
            assert all(map(torch.equal, engine.chunks(3, NARROW), full))
            assert torch.equal(engine.chunks(3, WIDE)[-1], last_window)
        assert_idle(server)
