# SPDX-License-Identifier: Apache-2.0
"""Many threads, first use included; workers; closing while tasks run."""

# Standard
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
import multiprocessing

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.serde import (
    SerdeConfig,
    SerdeProcessor,
    create_serde_processor,
)
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.storage_manager import StorageManager
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    memory_obj,
    object_key,
    restored_alone,
    unskipped,
)
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    FILE_ADAPTERS,
    clear,
    describe,
    load,
    prefetch_of,
    storage_manager,
    store,
    stored_count,
    wait_until,
    write,
)

NUM_THREADS = 64
SHAPE = (2, 4, 8, 2 * 192)
SETTINGS = {"preset": "turboquant_4bit_nc", "head_dim": 64, "skip_last_layers": 1}
CONFIGS = [
    unskipped(preset, head_dim, framed=True, skip_last_layers=1)
    for preset, head_dim in zip(PRESET_NAMES, (64, 96, 192, 48), strict=True)
]
"""Each preset with a width of its own, so that each fills tables of its own."""

RoundTrip = tuple[torch.Tensor, torch.Tensor]


def kv_of(seed: int) -> torch.Tensor:
    """A thread's tensor."""
    return gaussian(*SHAPE, seed=seed).bfloat16()


def expected_of(seed: int, config: TurboQuantSerdeConfig) -> RoundTrip:
    """Payload of a thread's tensor, and what it restores."""
    tensor = kv_of(seed)
    payload = encode(tensor, config, in_place=False)
    return payload, decode(payload, tensor, config, in_place=False)


def round_trips() -> list[RoundTrip]:
    """Payloads and what they restore, from threads that start at once.

    Threads of the same configuration share one serializer and one deserializer.
    """
    pairs = [(TurboQuantSerializer(c), TurboQuantDeserializer(c)) for c in CONFIGS]
    barrier = Barrier(NUM_THREADS)

    def round_trip(seed: int) -> RoundTrip:
        serializer, deserializer = pairs[seed % len(pairs)]
        tensor = kv_of(seed)
        size = serializer.estimate_serialized_size(describe(tensor))
        payload = torch.full((size,), 0xA5, dtype=torch.uint8)
        restored = torch.full_like(tensor, float("nan"))
        source, stored, target = map(memory_obj, (tensor, payload, restored))
        barrier.wait()
        serializer.serialize(source, stored, object_key())
        deserializer.deserialize(stored, target, object_key())
        return payload, restored

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(round_trip, range(NUM_THREADS)))


def first_round_trips() -> list[tuple[bytes, bytes]]:
    """The same as bytes, for a process that has not used the codec yet."""
    return [
        (payload.numpy().tobytes(), restored.view(torch.uint8).numpy().tobytes())
        for payload, restored in round_trips()
    ]


def test_64_threads_share_codecs() -> None:
    for seed, (payload, restored) in enumerate(round_trips()):
        expected = expected_of(seed, CONFIGS[seed % len(CONFIGS)])
        assert torch.equal(payload, expected[0])
        assert torch.equal(restored, expected[1])


def test_64_threads_may_be_the_first_to_use_it() -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        results = pool.submit(first_round_trips).result(timeout=120)
    for seed, (payload, restored) in enumerate(results):
        expected = expected_of(seed, CONFIGS[seed % len(CONFIGS)])
        assert payload == expected[0].numpy().tobytes()
        assert restored == expected[1].view(torch.uint8).numpy().tobytes()


def make_processor(max_workers: int, **settings: object) -> SerdeProcessor:
    """Create a processor as an adapter's configuration does."""
    kwargs = {"head_dim": 64, "max_workers": max_workers} | settings
    return create_serde_processor(SerdeConfig(type="turboquant", kwargs=kwargs))


def result_of(query: Callable[[int], bool | None], task: int) -> bool:
    """Wait for a task of a processor."""
    results: list[bool] = []

    def has_finished() -> bool:
        results.extend(result for result in [query(task)] if result is not None)
        return bool(results)

    wait_until(has_finished, f"task {task}")
    return results[0]


@pytest.mark.parametrize("max_workers", range(1, 9))
def test_every_number_of_workers_gives_the_same(max_workers: int) -> None:
    tensors = [kv_of(seed) for seed in range(8)]
    for preset in PRESET_NAMES:
        config = TurboQuantSerdeConfig(preset=preset, head_dim=64, framed=True)
        processor = make_processor(max_workers, preset=preset)
        size = processor.estimate_serialized_size(describe(tensors[0]))
        payloads = [torch.full((size,), 0xA5, dtype=torch.uint8) for _ in tensors]
        restored = [torch.full_like(tensor, float("nan")) for tensor in tensors]
        kv, stored = map(memory_obj, tensors), map(memory_obj, payloads)
        tasks = [
            processor.submit_serialize([source], [target], [object_key()])
            for source, target in zip(kv, stored, strict=True)
        ]
        assert all(result_of(processor.query_serialize_result, t) for t in tasks)
        stored, kv = map(memory_obj, payloads), map(memory_obj, restored)
        tasks = [
            processor.submit_deserialize([source], [target], [object_key()])
            for source, target in zip(stored, kv, strict=True)
        ]
        assert all(result_of(processor.query_deserialize_result, t) for t in tasks)
        processor.close()
        for tensor, payload, result in zip(tensors, payloads, restored, strict=True):
            assert torch.equal(payload, encode(tensor, config, in_place=False))
            assert torch.equal(result, restored_alone(tensor, config))


@pytest.mark.parametrize("max_workers", [1, 8])
def test_closing_a_processor_completes_its_tasks(max_workers: int) -> None:
    config = TurboQuantSerdeConfig(head_dim=64, framed=True)
    processor = make_processor(max_workers)
    tensors = [kv_of(seed) for seed in range(40)]
    size = processor.estimate_serialized_size(describe(tensors[0]))
    payloads = [torch.full((size,), 0xA5, dtype=torch.uint8) for _ in tensors]
    tasks = [
        processor.submit_serialize([memory_obj(t)], [memory_obj(p)], [object_key()])
        for t, p in zip(tensors, payloads, strict=True)
    ]
    processor.close()
    assert all(processor.query_serialize_result(task) for task in tasks)
    for tensor, payload in zip(tensors, payloads, strict=True):
        assert torch.equal(payload, encode(tensor, config, in_place=False))


def objects_of_many_keys() -> dict[ObjectKey, torch.Tensor]:
    """Objects in an order in which eight threads can take turns."""
    return {object_key(chunk): kv_of(chunk) for chunk in range(64)}


def write_from_threads(manager: StorageManager, objects: dict) -> None:
    """Write objects from eight threads at once."""
    parts = [dict(list(objects.items())[start::8]) for start in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: write(manager, part), parts))


def assert_restored(loaded: dict, objects: dict) -> None:
    """What was loaded is what the codec alone gives."""
    config = TurboQuantSerdeConfig.from_kwargs({**SETTINGS, "framed": True})
    for key, restored in loaded.items():
        tensor = objects[key]
        assert torch.equal(restored, restored_alone(tensor, config))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_manager_is_used_by_many_threads(adapter: str, tmp_path: Path) -> None:
    objects, config = objects_of_many_keys(), ADAPTERS[adapter](tmp_path)
    with storage_manager(config, **SETTINGS, max_workers=8) as manager:
        write_from_threads(manager, objects)
        count = stored_count(manager, tmp_path)
        wait_until(lambda: count() == len(objects), "the stores to L2")
        loaded = load(manager, objects, kv_of(0))
    assert loaded.keys() == objects.keys()
    assert_restored(loaded, objects)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_closing_a_manager_while_it_stores(adapter: str, tmp_path: Path) -> None:
    objects = objects_of_many_keys()
    with storage_manager(ADAPTERS[adapter](tmp_path), **SETTINGS) as manager:
        write_from_threads(manager, objects)
    if adapter in FILE_ADAPTERS:
        with storage_manager(ADAPTERS[adapter](tmp_path), **SETTINGS) as manager:
            assert_restored(load(manager, objects, kv_of(0)), objects)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_closing_a_manager_while_it_loads(adapter: str, tmp_path: Path) -> None:
    objects, config = objects_of_many_keys(), ADAPTERS[adapter](tmp_path)
    with storage_manager(config, **SETTINGS) as manager:
        store(manager, objects, stored_count(manager, tmp_path))
        clear(manager)
        manager.submit_prefetch_task(prefetch_of(objects, kv_of(0)))
