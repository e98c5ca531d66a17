# SPDX-License-Identifier: Apache-2.0
"""What a process of its own does with a storage that a test opened."""

# Standard
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
import multiprocessing
import threading

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from tests.storage.objects import LIKE, Objects, random_objects, settings_of
from tests.storage.stores import Store
from tests.v1.distributed.serde.turboquant.storage import load, write

SECONDS = 120
SPAWN = multiprocessing.get_context("spawn")


def load_elsewhere(spec: dict[str, object], keys: list[ObjectKey]) -> Objects:
    """Load objects in another process."""
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        arrays = pool.submit(_load, spec, keys).result(timeout=SECONDS)
    return {
        key: torch.frombuffer(bytearray(data), dtype=LIKE.dtype).view(LIKE.shape)
        for key, data in arrays.items()
    }


@contextmanager
def storing_elsewhere(spec: dict[str, object]) -> Iterator[None]:
    """Another process stores ``random_objects`` and lives on until it is killed."""
    process = SPAWN.Process(target=_store_and_stay, args=(spec,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _load(spec: dict[str, object], keys: list[ObjectKey]) -> dict[ObjectKey, bytes]:
    """Load objects; return their bytes."""
    with Store(spec).manager(settings_of()) as manager:
        loaded = load(manager, keys, LIKE)
    return {
        key: tensor.view(torch.uint8).numpy().tobytes()
        for key, tensor in loaded.items()
    }


def _store_and_stay(spec: dict[str, object]) -> None:
    """Store objects, and wait to be killed."""
    with Store(spec).manager(settings_of()) as manager:
        write(manager, random_objects())
        threading.Event().wait()
