# SPDX-License-Identifier: Apache-2.0
"""Serializer and deserializer whose work shows in metrics and logs."""

# Standard
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
import logging
import math
import threading
import time

# First Party
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.turboquant.failures import reason_and_advice
from lmcache.v1.distributed.serde.turboquant.memory import describe
from lmcache.v1.distributed.serde.turboquant.metrics import (
    OperationName,
    SerdeMetrics,
    Series,
)
from lmcache.v1.memory_management import MemoryObj

logger = init_logger(__name__)

SECONDS_OF_SILENCE = 60.0
"""Between two warnings of failures of one kind."""

_CONSEQUENCES = {
    "encode": "nothing of its batch is stored",
    "decode": "its whole batch counts as a miss",
}
"""What LMCache makes of a failure."""


class Observer:
    """Counts and logs what a serde's two halves do. Thread-safe.

    Args:
        preset: Preset of the serde, for the metrics.
        metrics: What counts.
    """

    def __init__(self, preset: str, metrics: SerdeMetrics) -> None:
        self._preset = preset
        self._metrics = metrics
        self._lock = threading.Lock()
        self._last_warnings: dict[tuple[str, str], float] = {}
        self._unsaid: Counter[tuple[str, str]] = Counter()

    def completed(
        self,
        operation: OperationName,
        key: ObjectKey,
        *,
        raw_bytes: int,
        stored_bytes: int,
        seconds: float,
    ) -> None:
        """Count an operation, and say at DEBUG what it did.

        Args:
            operation: What was done.
            key: The object's key.
            raw_bytes: Bytes of its KV.
            stored_bytes: Bytes of its payload.
            seconds: What it took.
        """
        sizes = (raw_bytes, stored_bytes)
        sizes = sizes if operation == "encode" else sizes[::-1]
        series = Series(operation, self._preset, key.model_name)
        self._metrics.completed(series, *sizes, seconds)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "TurboQuant %sd %s: %d bytes of KV, %d stored, ratio %.2f, %.3f ms",
                operation,
                _name_of(key),
                raw_bytes,
                stored_bytes,
                raw_bytes / max(stored_bytes, 1),
                seconds * 1e3,
            )

    @contextmanager
    def reported(self, operation: OperationName, key: ObjectKey) -> Iterator[None]:
        """Count what is raised inside, warn of it, and let it pass.

        Args:
            operation: What is done inside.
            key: The object's key.
        """
        try:
            yield
        except Exception as error:
            self.failed(operation, key.model_name, _name_of(key), error)
            raise

    def failed(
        self, operation: OperationName, model_name: str, what: str, error: Exception
    ) -> None:
        """Count a failure, and warn of the first of a kind in a while.

        Args:
            operation: What was to be done.
            model_name: Model of the object; empty where that is not known.
            what: Names the object in the log.
            error: What was raised.
        """
        reason, advice = reason_and_advice(error)
        self._metrics.failed(Series(operation, self._preset, model_name), reason)
        kind, now = (operation, reason), time.monotonic()
        with self._lock:
            if now - self._last_warnings.get(kind, -math.inf) < SECONDS_OF_SILENCE:
                self._unsaid[kind] += 1
                return
            self._last_warnings[kind] = now
            unsaid = self._unsaid.pop(kind, 0)
        logger.warning(
            "TurboQuant cannot %s %s (%s; %s): %s. What to do: %s%s",
            operation,
            what,
            reason,
            _CONSEQUENCES[operation],
            error,
            advice,
            f" ({unsaid} more like it since the last such line)" if unsaid else "",
        )


class ObservedSerializer(Serializer):
    """A serializer whose work is observed. Thread-safe if ``inner`` is.

    Args:
        inner: What does the work.
        observer: What sees it.
    """

    def __init__(self, inner: Serializer, observer: Observer) -> None:
        self._inner = inner
        self._observer = observer

    def serialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> int:
        """Encode; arguments, result and errors are those of ``inner``."""
        started = time.perf_counter()
        with self._observer.reported("encode", key):
            written = self._inner.serialize(src, dst, key)
        seconds = time.perf_counter() - started
        self._observer.completed(
            "encode",
            key,
            raw_bytes=_logical_bytes(src),
            stored_bytes=written,
            seconds=seconds,
        )
        return written

    def estimate_serialized_size(
        self,
        layout_desc: MemoryLayoutDesc,
    ) -> int:
        """Estimate; argument, result and errors are those of ``inner``."""
        try:
            return self._inner.estimate_serialized_size(layout_desc)
        except Exception as error:
            shapes = [tuple(shape) for shape in layout_desc.shapes]
            self._observer.failed("encode", "", f"an object of {shapes}", error)
            raise


class ObservedDeserializer(Deserializer):
    """A deserializer whose work is observed. Thread-safe if ``inner`` is.

    Args:
        inner: What does the work.
        observer: What sees it.
    """

    def __init__(self, inner: Deserializer, observer: Observer) -> None:
        self._inner = inner
        self._observer = observer

    def deserialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> None:
        """Decode; arguments and errors are those of ``inner``."""
        started = time.perf_counter()
        with self._observer.reported("decode", key):
            self._inner.deserialize(src, dst, key)
        seconds = time.perf_counter() - started
        self._observer.completed(
            "decode",
            key,
            raw_bytes=_logical_bytes(dst),
            stored_bytes=_logical_bytes(src),
            seconds=seconds,
        )


def _logical_bytes(memory_obj: MemoryObj) -> int:
    """Return the bytes of an object's tensors."""
    description = describe(memory_obj, "object")
    pairs = zip(description.shapes, description.dtypes, strict=True)
    return sum(shape.numel() * dtype.itemsize for shape, dtype in pairs)


def _name_of(key: ObjectKey) -> str:
    """Name an object in the log as file adapters name it, the tenant left out."""
    return (
        f"{key.model_name}@{key.kv_rank:08x}@{key.object_group_id:x}@"
        f"{key.chunk_hash.hex()}"
    )
