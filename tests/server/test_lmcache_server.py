# SPDX-License-Identifier: Apache-2.0
"""``lmcache server`` on a host without a GPU, driven by LMCache's own clients."""

# Standard
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import subprocess
import sys

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from tests.server.engine import Engine
from tests.server.lmcache_server import CHUNK_TOKENS, LMCacheServer
from tests.v1.distributed.serde.turboquant.helpers import (
    restored_alone,
)
from tests.v1.distributed.serde.turboquant.storage import wait_until

WIDTHS = [(2, 64)] * 6
TOKENS = list(range(3 * CHUNK_TOKENS))
SETTINGS: dict[str, object] = {
    "preset": "turboquant_4bit_nc",
    "head_dim": 64,
    "skip_first_layers": 1,
    "skip_last_layers": 1,
}
RAW_BYTES = 2 * 6 * CHUNK_TOKENS * 2 * 64 * 2
STORED_BYTES = 102_400
"""A chunk's header of 128 bytes, two layers of 32,768 and four of 128 slots of 70, in
pages of 4,096."""


def adapter(folder: Path, **settings: object) -> dict[str, object]:
    """Files in a folder, compressed."""
    serde = {"type": "turboquant"} | SETTINGS | settings
    return {"type": "fs", "base_path": str(folder / "l2"), "serde": serde}


def files_in(folder: Path) -> list[Path]:
    """The complete files of the adapter."""
    return list((folder / "l2").glob("*.data"))


def restored(chunks: list[torch.Tensor], **settings: object) -> list[torch.Tensor]:
    """What the codec alone makes of chunks."""
    config = TurboQuantSerdeConfig.from_kwargs({**SETTINGS, "framed": True, **settings})
    return [restored_alone(chunk, config) for chunk in chunks]


def assert_idle(server: LMCacheServer) -> None:
    """No lock is held, and L1 is empty when it is cleared."""

    def is_idle() -> bool:
        server.clear_l1()
        l1 = server.status()["l1_manager"]
        locks = ("read_locked_count", "write_locked_count", "temporary_count")
        return not any(
            l1[name] for name in (*locks, "total_object_count", "memory_used_bytes")
        )

    wait_until(is_idle, "L1 to be empty and unlocked")


def value(server: LMCacheServer, name: str, **labels: str) -> float:
    """Sum of a metric's samples with those labels."""
    wanted = labels.items()
    samples = server.samples(name)
    return sum(s.value for s in samples if wanted <= s.labels.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the servers of this module keep files and logs."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LMCacheServer]:
    """A server with a compressed ``fs`` adapter."""
    with LMCacheServer(folder, adapter(folder)) as running:
        yield running


Stored = list[tuple[list[int], list[torch.Tensor]]]
"""Tokens, and the chunks of KV that were stored under them."""


def serve_tenant(url: str, tenant: str, seed: int, rounds: int) -> Stored:
    """Store a tenant's KV in rounds, each under tokens of its own."""
    stored: Stored = []
    with Engine(url, WIDTHS, model="shared") as engine:
        for round_ in range(rounds):
            engine.fill(seed + 100 * round_)
            tokens = [token + 1000 * round_ for token in TOKENS]
            assert engine.store(tokens, tenant)
            stored.append((tokens, engine.chunks(3)))
    return stored


def fetch_tenant(url: str, tenant: str, stored: Stored) -> None:
    """Fetch a tenant's KV, and more tokens than were stored."""
    with Engine(url, WIDTHS, model="shared") as engine:
        for tokens, chunks in stored:
            engine.fill(0)
            more = [*tokens, *range(5000, 5000 + CHUNK_TOKENS)]
            assert engine.fetch(more, tenant) == len(chunks)
            found = engine.chunks(3)
            assert all(map(torch.equal, found, restored(chunks)))
            assert engine.fetch([token + 7 for token in tokens], tenant) == 0


def test_tenants_store_and_fetch_at_once(server: LMCacheServer, folder: Path) -> None:
    tenants = {"alice": 10, "bob": 20}
    with ThreadPoolExecutor(2) as pool:
        jobs = {
            tenant: pool.submit(serve_tenant, server.url, tenant, seed, 2)
            for tenant, seed in tenants.items()
        }
        stored = {tenant: job.result() for tenant, job in jobs.items()}
    wait_until(lambda: len(files_in(folder)) == 12, "the stores to L2")
    assert_idle(server)
    with ThreadPoolExecutor(3) as pool:
        # New stores meet the prefetches.
        more = pool.submit(serve_tenant, server.url, "carol", 30, 2)
        for job in [
            pool.submit(fetch_tenant, server.url, tenant, stored[tenant])
            for tenant in tenants
        ]:
            job.result()
        more.result()
    with Engine(server.url, WIDTHS, model="shared") as engine:
        assert engine.fetch(TOKENS, "mallory") == 0
    wait_until(lambda: len(files_in(folder)) == 18, "carol's stores to L2")
    assert {path.stat().st_size for path in files_in(folder)} == {STORED_BYTES}
    assert_idle(server)


def test_metrics_tell_what_was_done(server: LMCacheServer, folder: Path) -> None:
    with Engine(server.url, WIDTHS, model="counted") as engine:
        engine.fill(1)
        assert engine.store(TOKENS)
        encoded = {"operation": "encode", "model_name": "counted"}
        wait_until(
            lambda: value(server, "input_bytes_total", **encoded) == 3 * RAW_BYTES,
            "the stores to L2",
        )
        assert_idle(server)
        assert engine.fetch(TOKENS) == 3
    labels = {"model_name": "counted", "preset": "turboquant_4bit_nc"}
    decoded = labels | {"operation": "decode"}
    assert value(server, "output_bytes_total", **encoded) == 3 * STORED_BYTES
    assert value(server, "input_bytes_total", **decoded) == 3 * STORED_BYTES
    assert value(server, "output_bytes_total", **decoded) == 3 * RAW_BYTES
    assert value(server, "compression_ratio", **labels) == RAW_BYTES / STORED_BYTES
    for operation in ("encode", "decode"):
        name = f"{operation}_duration_seconds"
        assert value(server, f"{name}_count", **labels) == 3
        assert value(server, f"{name}_sum", **labels) > 0
    assert server.samples("failures_total") == []


def test_the_log_tells_what_was_done(server: LMCacheServer) -> None:
    (announced,) = [
        line for line in server.lines("TurboQuant serde: ") if "INFO" in line
    ]
    assert "float16 and bfloat16 KV shrink 3.66 times but for the first 1" in announced
    sizes = f": {RAW_BYTES} bytes of KV, {STORED_BYTES} stored, ratio 1.92, "
    for verb in ("encoded", "decoded"):
        lines = server.lines(f"TurboQuant {verb} counted@")
        assert len(lines) == 3 and all(sizes in line for line in lines)


def test_lmcaches_own_benchmark_finds_no_fault(server: LMCacheServer) -> None:
    command = [
        *(sys.executable, "-m", "lmcache.cli.main", "bench", "server"),
        *("--rpc-url", server.url, "--mode", "cpu"),
        *("--transfer-mode", "engine_driven", "--num-tokens", str(2 * CHUNK_TOKENS)),
        *("--kvcache-shape-spec", "(2,64,16,2,64):bfloat16:6"),
        *("--start", "0", "--end", "3", "--interval", "0"),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-2000:]
    wait_until(
        lambda: value(server, "input_bytes_total", model_name="test-model") > 0,
        "the benchmark's stores to L2",
    )
    assert server.samples("failures_total") == []
    assert_idle(server)
