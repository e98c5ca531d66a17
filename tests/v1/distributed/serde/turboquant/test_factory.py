# SPDX-License-Identifier: Apache-2.0
"""The registered serde type: what it accepts, and its asynchronous processor."""

# Standard
import select

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde import (
    SerdeConfig,
    SerdeProcessor,
    create_serde_processor,
    get_registered_serde_types,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    encode,
    gaussian,
    memory_obj,
    object_key,
    restored_alone,
    unskipped,
)


def make_processor(**kwargs: object) -> SerdeProcessor:
    """Create the processor as an adapter's configuration does."""
    return create_serde_processor(SerdeConfig(type="turboquant", kwargs=kwargs))


def wait_for(event_fd: int) -> None:
    """Wait until a processor signals a completion."""
    assert select.select([event_fd], [], [], 30)[0]


def test_type_is_registered() -> None:
    assert "turboquant" in get_registered_serde_types()


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"presett": "turboquant_k8v4"}, "did you mean 'preset'"),
        ({"max_worker": 2}, "Unknown TurboQuant setting 'max_worker'"),
        ({"preset": "turboquant_4bit"}, "did you mean 'turboquant_4bit_nc'"),
        ({"head_dim": 0}, "head_dim must be an integer >= 1"),
        ({"max_workers": 0}, "max_workers must be an integer >= 1, got 0"),
        ({"max_workers": "2"}, "max_workers must be an integer >= 1, got '2'"),
        ({"cuda_device": "cuda:99"}, "cuda_device 'cuda:99' is not"),
    ],
)
def test_invalid_settings_are_refused_when_the_serde_is_made(
    kwargs: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_processor(**kwargs)


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("max_workers", [1, 4])
def test_processor_round_trip(preset: str, max_workers: int) -> None:
    config = unskipped(preset, framed=True)
    processor = make_processor(
        preset=preset,
        skip_first_layers=0,
        skip_last_layers=0,
        max_workers=max_workers,
    )
    tensors = [gaussian(2, 2, 20, 128, seed=seed).half() for seed in range(6)]
    description = MemoryLayoutDesc([tensors[0].shape], [torch.half])
    size = processor.estimate_serialized_size(description)
    payloads = [torch.empty(size, dtype=torch.uint8) for _ in tensors]
    restored = [torch.empty_like(tensor) for tensor in tensors]
    keys = [object_key(index) for index in range(len(tensors))]
    try:
        task = processor.submit_serialize(
            [memory_obj(t) for t in tensors], [memory_obj(p) for p in payloads], keys
        )
        wait_for(processor.get_serialize_event_fd())
        assert processor.query_serialize_result(task) is True
        task = processor.submit_deserialize(
            [memory_obj(p) for p in payloads], [memory_obj(t) for t in restored], keys
        )
        wait_for(processor.get_deserialize_event_fd())
        assert processor.query_deserialize_result(task) is True
    finally:
        processor.close()
    for tensor, payload, result, key in zip(
        tensors, payloads, restored, keys, strict=True
    ):
        assert torch.equal(payload, encode(tensor, config, key=key, in_place=False))
        assert torch.equal(result, restored_alone(tensor, config, key))
