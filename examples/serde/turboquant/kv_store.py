# SPDX-License-Identifier: Apache-2.0
"""KV chunks through LMCache's own StorageManager: into L2, out of L1, and back.

One :class:`KVStore` drives a storage manager with one L2 adapter as an engine does.
"""

# Standard
from contextlib import ExitStack
from dataclasses import dataclass
import hashlib
import queue
import time
import uuid

# Third Party
import torch

# First Party
from l2_bytes import BytesSource, L2ByteCounter
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.mp_observability.event import Event, EventType
from lmcache.v1.mp_observability.event_bus import EventBusConfig, init_event_bus
from lmcache_log import FailureLog
from storage_config import manager_config, serialized_bytes

TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.001
_MODEL_NAME = "turboquant-example"


class KVStoreError(RuntimeError):
    """LMCache did not store, load or release what it was given."""


@dataclass(frozen=True)
class StoredChunks:
    """Chunks that lie in L2.

    Attributes:
        keys: Their keys, in the order of the chunks.
        seconds: From finish_write to the last byte in L2.
        cpu_seconds: What all threads of this process computed meanwhile.
        num_bytes: Bytes they take there; None if nobody can tell.
        bytes_source: Who told: file sizes on the disk, or the adapter itself.
    """

    keys: list[ObjectKey]
    seconds: float
    cpu_seconds: float
    num_bytes: int | None
    bytes_source: BytesSource


@dataclass(frozen=True)
class LoadedChunks:
    """Chunks that came back from L2.

    Attributes:
        chunks: Copies of what LMCache restored, on the CPU.
        seconds: From submit_prefetch_task to the restored chunks in L1.
        cpu_seconds: What all threads of this process computed meanwhile.
    """

    chunks: list[torch.Tensor]
    seconds: float
    cpu_seconds: float


class KVStore:
    """One StorageManager with one L2 adapter; a context manager for one thread."""

    def __init__(
        self,
        adapter: L2AdapterConfigBase,
        chunk_shape: torch.Size,
        dtype: torch.dtype,
        max_chunks: int,
    ) -> None:
        """Start the storage manager.

        Args:
            adapter: Where and how L2 stores, its serde included.
            chunk_shape: Shape of every chunk.
            dtype: Type of every chunk.
            max_chunks: How many chunks L1 must hold at once.

        Raises:
            ValueError: If the adapter or its serde refuses the configuration or the
                shape.
        """
        self._layout = MemoryLayoutDesc(shapes=[chunk_shape], dtypes=[dtype])
        chunk_bytes = chunk_shape.numel() * dtype.itemsize
        chunk_bytes += serialized_bytes(adapter, self._layout)
        self._counter = L2ByteCounter(adapter)
        self._completed: queue.Queue[tuple[float, Event]] = queue.Queue()
        with ExitStack() as cleanup:
            event_bus = init_event_bus(EventBusConfig())
            cleanup.callback(init_event_bus, EventBusConfig(enabled=False))
            event_bus.subscribe(EventType.L2_KEYS_STORED, self._counter.on_keys_stored)
            event_bus.subscribe(EventType.L2_STORE_COMPLETED, self._on_completed)
            event_bus.start()
            cleanup.callback(event_bus.stop)
            self._manager = StorageManager(
                manager_config(adapter, max_chunks * chunk_bytes)
            )
            cleanup.callback(self._manager.close)
            self._failures = FailureLog("lmcache.v1.distributed")
            cleanup.callback(self._failures.close)
            self._cleanup = cleanup.pop_all()

    def __enter__(self) -> "KVStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the storage manager and give back its memory."""
        self._cleanup.close()

    def store(self, chunks: list[torch.Tensor]) -> StoredChunks:
        """Write chunks to L1, wait until they lie in L2, and clear L1.

        Args:
            chunks: Tensors of the shape and type this store was made for.

        Returns:
            Their keys, the time and the bytes that they take.

        Raises:
            KVStoreError: If LMCache did not take or store all of them.
        """
        keys = _fresh_keys(len(chunks))
        reserved = self._manager.reserve_write(keys, self._layout)
        if len(reserved) != len(keys):
            raise KVStoreError(f"L1 has room for {len(reserved)} of {len(keys)} chunks")
        for key, chunk in zip(keys, chunks, strict=True):
            _tensor_of(reserved[key]).copy_(chunk)
        started, cpu_started = time.perf_counter(), time.process_time()
        self._manager.finish_write(keys)
        seconds = self._wait_until_stored(len(keys)) - started
        cpu_seconds = time.process_time() - cpu_started
        self._manager.clear()
        self._require_empty_l1()
        return StoredChunks(keys, seconds, cpu_seconds, *self._counter.count(keys))

    def load(self, stored: StoredChunks) -> LoadedChunks:
        """Prefetch chunks from L2 to L1, copy them out, and release them.

        Args:
            stored: What :meth:`store` returned.

        Returns:
            The restored chunks and the time.

        Raises:
            KVStoreError: If a chunk does not come back or L1 stays in use.
        """
        keys = stored.keys
        group = GroupedObjectKeys(keys, object_group_id=0, layout_desc=self._layout)
        started, cpu_started = time.perf_counter(), time.process_time()
        handle = self._manager.submit_prefetch_task(PrefetchTaskSpec([group]))
        if not self._manager.wait_prefetch_status(handle, TIMEOUT_SECONDS):
            raise KVStoreError(f"no chunk loaded within {TIMEOUT_SECONDS:.0f} s")
        seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_started
        result = self._manager.query_prefetch_status(handle)
        hits = 0 if result is None else result.l2_hit_count
        if hits != len(keys):
            raise KVStoreError(
                f"{hits} of {len(keys)} chunks came back from L2: {self._failures}"
            )
        with self._manager.read_prefetched_results(keys) as objects:
            if objects is None:
                raise KVStoreError("prefetched chunks are gone from L1")
            chunks = [_tensor_of(memory_object).clone() for memory_object in objects]
        self._manager.finish_read_prefetched(keys)
        self._require_empty_l1()
        return LoadedChunks(chunks, seconds, cpu_seconds)

    def delete(self, stored: StoredChunks) -> None:
        """Remove chunks from L2.

        Args:
            stored: What :meth:`store` returned.
        """
        for _, adapter in self._manager.l2_adapters():
            adapter.delete(stored.keys)

    def _on_completed(self, event: Event) -> None:
        self._completed.put((time.perf_counter(), event))

    def _wait_until_stored(self, num_chunks: int) -> float:
        """Return when the last store task ended; one task may hold several chunks."""
        deadline = time.perf_counter() + TIMEOUT_SECONDS
        num_stored = num_failed = 0
        while num_stored + num_failed < num_chunks:
            try:
                left = max(0.0, deadline - time.perf_counter())
                ended, event = self._completed.get(timeout=left)
            except queue.Empty:
                break
            num_stored += event.metadata["succeeded_count"]
            num_failed += event.metadata["failed_count"]
        if num_stored != num_chunks:
            raise KVStoreError(
                f"{num_stored} of {num_chunks} chunks reached L2: {self._failures}"
            )
        return ended

    def _require_empty_l1(self) -> None:
        """Wait until L1 holds no object, so no lock either, and no byte."""
        deadline = time.perf_counter() + TIMEOUT_SECONDS
        while True:
            status = self._manager.report_status()["l1_manager"]
            if not (status["memory_used_bytes"] or status["total_object_count"]):
                return
            if time.perf_counter() > deadline:
                raise KVStoreError(
                    f"L1 still holds {status['memory_used_bytes']} bytes of chunks "
                    "that were released"
                )
            time.sleep(_POLL_SECONDS)


def _fresh_keys(count: int) -> list[ObjectKey]:
    """Keys that no earlier run has used, as adapters keep what they already hold."""
    nonce = uuid.uuid4().bytes
    return [
        ObjectKey(
            chunk_hash=hashlib.sha256(nonce + index.to_bytes(4, "big")).digest(),
            model_name=_MODEL_NAME,
            kv_rank=0,
        )
        for index in range(count)
    ]


def _tensor_of(memory_object: MemoryObj) -> torch.Tensor:
    if memory_object.tensor is None:
        raise KVStoreError("LMCache handed over a chunk without memory")
    return memory_object.tensor
