# SPDX-License-Identifier: Apache-2.0
"""Chunks go through the real StorageManager and come back, counted to the byte."""

# Standard
from collections.abc import Mapping
from pathlib import Path
import json
import os
import shutil

# Third Party
import pytest
import torch

# First Party
from kv_store import KVStore, KVStoreError
from quality import relative_error
from storage_config import parse_l2_adapter

SHAPE = torch.Size([2, 3, 256, 128])
RAW_BYTES = SHAPE.numel() * 2
TURBOQUANT = {
    "type": "turboquant",
    "preset": "turboquant_4bit_nc",
    "head_dim": 128,
    "skip_first_layers": 0,
    "skip_last_layers": 0,
}


def open_store(spec: Mapping[str, object]) -> KVStore:
    adapter = parse_l2_adapter(json.dumps(spec))
    return KVStore(adapter, SHAPE, torch.bfloat16, max_chunks=2)


@pytest.fixture
def chunks() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(SHAPE, generator=generator).bfloat16() for _ in range(2)]


@pytest.mark.parametrize(
    ("serde", "ratio", "error"),
    [
        pytest.param(None, (1.0, 1.0), (0.0, 0.0), id="none"),
        pytest.param({"type": "fp8"}, (2.0, 2.0), (0.02, 0.03), id="fp8"),
        # Lloyd-Max with 4 bits: mean squared error 0.0095 of the variance; the
        # per-token range of 4-bit values costs about the same.
        pytest.param(TURBOQUANT, (3.69, 3.70), (0.09, 0.11), id="turboquant"),
    ],
)
def test_round_trip_counts_every_byte_on_disk(
    tmp_path: Path,
    chunks: list[torch.Tensor],
    serde: dict[str, object] | None,
    ratio: tuple[float, float],
    error: tuple[float, float],
) -> None:
    with open_store(
        {"type": "fs", "base_path": str(tmp_path), "serde": serde}
    ) as store:
        stored = store.store(chunks)
        sizes = [entry.stat().st_size for entry in os.scandir(tmp_path)]
        loaded = store.load(stored)
        store.delete(stored)

    assert len(sizes) == len(chunks)
    assert (stored.num_bytes, stored.bytes_source) == (sum(sizes), "disk")
    assert ratio[0] <= len(chunks) * RAW_BYTES / sum(sizes) <= ratio[1]
    for chunk, restored in zip(chunks, loaded.chunks, strict=True):
        assert restored.dtype == chunk.dtype
        assert error[0] <= relative_error(chunk, restored) <= error[1]
    assert stored.seconds > 0 and loaded.seconds > 0
    assert not list(tmp_path.iterdir())


def test_files_of_others_are_neither_counted_nor_deleted(
    tmp_path: Path, chunks: list[torch.Tensor]
) -> None:
    other = tmp_path / "other.data"
    other.write_bytes(b"not ours")
    with open_store({"type": "fs", "base_path": str(tmp_path)}) as store:
        stored = store.store(chunks)
        store.delete(stored)
    assert stored.num_bytes == len(chunks) * RAW_BYTES
    assert list(tmp_path.iterdir()) == [other]


def test_adapter_without_files_reports_its_own_bytes(
    chunks: list[torch.Tensor],
) -> None:
    spec = {"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 10}
    with open_store({**spec, "serde": {"type": "fp8"}}) as store:
        stored = store.store(chunks)
    assert stored.bytes_source == "adapter"
    assert stored.num_bytes == len(chunks) * RAW_BYTES // 2


def test_failed_store_says_why(tmp_path: Path, chunks: list[torch.Tensor]) -> None:
    folder = tmp_path / "gone"
    with open_store({"type": "fs", "base_path": str(folder)}) as store:
        shutil.rmtree(folder)
        with pytest.raises(KVStoreError, match="0 of 2 chunks reached L2: .*No such"):
            store.store(chunks)


def test_truncated_file_does_not_come_back(
    tmp_path: Path, chunks: list[torch.Tensor]
) -> None:
    with open_store({"type": "fs", "base_path": str(tmp_path)}) as store:
        stored = store.store(chunks)
        first = next(tmp_path.glob(f"*{stored.keys[0].chunk_hash.hex()}*"))
        os.truncate(first, RAW_BYTES - 1)
        with pytest.raises(KVStoreError, match="0 of 2 chunks came back.*Incomplete"):
            store.load(stored)


@pytest.mark.parametrize(
    ("serde", "message"),
    [
        ({"type": "turboquant", "preset": "turboquant_5bit"}, "turboquant_5bit"),
        ({"type": "turboquant", "head_dim": 96}, "128.*96"),
        ({"type": "nothing"}, "nothing"),
    ],
)
def test_serde_that_cannot_store_the_chunk_is_refused_at_start(
    tmp_path: Path, serde: dict[str, object], message: str
) -> None:
    spec = {"type": "fs", "base_path": str(tmp_path), "serde": serde}
    with pytest.raises(ValueError, match=message):
        open_store(spec)
