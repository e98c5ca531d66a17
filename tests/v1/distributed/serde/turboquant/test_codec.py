# SPDX-License-Identifier: Apache-2.0
"""The serde's contract with memory objects: sizes, bytes, errors, threads."""

# Standard
from concurrent.futures import ThreadPoolExecutor

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from tests.v1.distributed.serde.turboquant.closeness import (
    assert_payloads_alike,
    assert_restored_alike,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    POISONS,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    memory_obj,
    object_key,
    unskipped,
)


def serializer_and_objects(config: TurboQuantSerdeConfig, tensor: torch.Tensor):
    """A serializer, its source, and the payload's size."""
    serializer = TurboQuantSerializer(config)
    description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
    size = serializer.estimate_serialized_size(description)
    return serializer, memory_obj(tensor), size


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
def test_every_byte_and_element_is_written(
    preset: str, dtype: torch.dtype, device: torch.device
) -> None:
    config = unskipped(preset, skip_first_layers=1, skip_last_layers=1)
    tensor = gaussian(2, 4, 21, 2 * 128).to(device, dtype)
    payloads = [encode(tensor, config, poison) for poison in POISONS]
    assert torch.equal(*payloads)
    restored = decode(payloads[0], tensor, config)
    assert restored.isfinite().all()
    for raw_layer in (0, 3):
        assert torch.equal(restored[:, raw_layer], tensor[:, raw_layer])


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_every_device_writes_and_restores_alike(
    preset: str, device: torch.device
) -> None:
    """A CPU gives the same bits, an accelerator's kernels those of ``closeness``."""
    config = unskipped(preset, head_dim=64)
    tensor = gaussian(2, 3, 40, 4 * 64).bfloat16()
    payload = encode(tensor, config)
    on_device = encode(tensor.to(device), config).cpu()
    restored = decode(payload, tensor, config)
    restored_there = decode(payload.to(device), tensor, config).cpu()
    if device.type == "cpu":
        assert torch.equal(on_device, payload)
        assert torch.equal(restored_there, restored)
    else:
        assert_payloads_alike(on_device, payload, tensor, config)
        assert_restored_alike(restored_there, restored, 64)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_source_and_destination_may_be_on_different_devices(
    preset: str, device: torch.device
) -> None:
    config = unskipped(preset)
    tensor = gaussian(2, 2, 16, 128).half()
    expected = encode(tensor.to(device), config).cpu()
    specified = decode(expected, tensor, config)
    for source, target in ((tensor, device), (tensor.to(device), "cpu")):
        payload = torch.empty_like(expected, device=target)
        TurboQuantSerializer(config).serialize(
            memory_obj(source), memory_obj(payload), object_key()
        )
        assert torch.equal(payload.cpu(), expected)
        restored = torch.empty_like(tensor, device=source.device)
        TurboQuantDeserializer(config).deserialize(
            memory_obj(payload), memory_obj(restored), object_key()
        )
        assert_restored_alike(restored.cpu(), specified, 128)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_a_row_does_not_depend_on_its_neighbours(preset: str) -> None:
    config = unskipped(preset, block_size=1)
    tensor = gaussian(2, 1, 24, 2 * 128).half()
    whole = encode(tensor, config)
    tokens = (tensor[:, :, token : token + 1].contiguous() for token in range(24))
    parts = [encode(token, config) for token in tokens]
    assert torch.equal(whole, torch.cat(parts))


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_padding_tokens_are_zero_bytes(preset: str) -> None:
    config = unskipped(preset)
    tensor = gaussian(2, 2, 17, 3 * 128).bfloat16()
    slots = encode(tensor, config).view(2, 32, 3, config.slot_size_aligned)
    assert not slots[:, 17:].any()
    assert slots[:, :17].any(dim=-1).all()


def test_odd_slots_are_padded_with_a_zero_byte() -> None:
    config = unskipped("turboquant_k3v4_nc", head_dim=8)
    assert config.slot_size == 13
    tensor = gaussian(2, 1, 16, 8).half()
    assert not encode(tensor, config).view(-1, 14)[:, 13].any()


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_short_objects(num_tokens: int) -> None:
    config = unskipped("turboquant_4bit_nc", skip_first_layers=1)
    tensor = gaussian(2, 3, num_tokens, 128).half()
    payload = encode(tensor, config)
    assert payload.numel() == num_tokens * (512 + 2 * 16 * 134)
    assert torch.equal(decode(payload, tensor, config)[:, 0], tensor[:, 0])


def test_longer_buffers_are_left_alone_beyond_the_payload() -> None:
    config = unskipped("turboquant_3bit_nc")
    tensor = gaussian(2, 2, 16, 128).half()
    serializer, source, size = serializer_and_objects(config, tensor)
    buffer = torch.full((size + 100,), 0xA5, dtype=torch.uint8)
    assert serializer.serialize(source, memory_obj(buffer), object_key()) == size
    assert (buffer[size:] == 0xA5).all()
    restored = decode(buffer, tensor, config)
    assert torch.equal(restored, decode(buffer[:size].clone(), tensor, config))


def test_non_contiguous_tensors_are_refused() -> None:
    config = unskipped("turboquant_k8v4")
    tensor = gaussian(2, 16, 3, 128).half().transpose(1, 2)
    buffer = memory_obj(torch.empty(1 << 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="source must be contiguous, got strides"):
        TurboQuantSerializer(config).serialize(memory_obj(tensor), buffer, object_key())
    with pytest.raises(ValueError, match="destination must be contiguous"):
        TurboQuantDeserializer(config).deserialize(
            buffer, memory_obj(tensor), object_key()
        )


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_a_second_generation_is_close_to_the_first(preset: str) -> None:
    config = unskipped(preset)
    tensor = gaussian(2, 2, 64, 4 * 128)
    first = decode(encode(tensor, config), tensor, config)
    second = decode(encode(first, config), tensor, config)
    change = (second - first).norm() / (first - tensor).norm()
    assert change < 0.05


def test_threads_share_one_codec() -> None:
    config = unskipped("turboquant_4bit_nc", head_dim=64)
    tensors = [gaussian(2, 2, 32, 2 * 64, seed=seed).half() for seed in range(16)]
    expected = [encode(tensor, config) for tensor in tensors]
    with ThreadPoolExecutor(max_workers=8) as pool:
        payloads = list(pool.map(lambda tensor: encode(tensor, config), tensors))
    assert all(map(torch.equal, payloads, expected))


def test_missing_tensors_are_refused() -> None:
    config = unskipped("turboquant_k8v4")
    buffer = torch.empty(10, dtype=torch.uint8)
    with pytest.raises(ValueError, match="source holds no tensor"):
        TurboQuantSerializer(config).serialize(
            memory_obj(None), memory_obj(buffer), object_key()
        )
    with pytest.raises(ValueError, match="destination holds no tensor"):
        TurboQuantDeserializer(config).deserialize(
            memory_obj(buffer), memory_obj(None), object_key()
        )


def test_unfit_buffers_are_refused() -> None:
    config = unskipped("turboquant_k8v4")
    tensor = gaussian(2, 1, 16, 128).half()
    serializer, source, size = serializer_and_objects(config, tensor)
    short = memory_obj(torch.empty(size - 1, dtype=torch.uint8))
    message = f"too small: needs {size} bytes, got {size - 1}"
    with pytest.raises(ValueError, match="destination buffer " + message):
        serializer.serialize(source, short, object_key())
    with pytest.raises(ValueError, match="source buffer " + message):
        TurboQuantDeserializer(config).deserialize(short, source, object_key())
    wrong_dtype = memory_obj(torch.empty(size, dtype=torch.int8))
    with pytest.raises(ValueError, match="torch.uint8 buffer, got torch.int8"):
        serializer.serialize(source, wrong_dtype, object_key())


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 2, 16, 128), "kv_size=2"), ((2, 2, 16, 96), "divisible by head_dim=128")],
)
def test_estimate_and_serialize_refuse_alike(
    shape: tuple[int, ...], message: str
) -> None:
    serializer = TurboQuantSerializer(unskipped("turboquant_k8v4"))
    tensor = torch.zeros(shape, dtype=torch.half)
    buffer = memory_obj(torch.empty(1 << 20, dtype=torch.uint8))
    with pytest.raises(ValueError, match=message):
        serializer.estimate_serialized_size(
            MemoryLayoutDesc([tensor.shape], [tensor.dtype])
        )
    with pytest.raises(ValueError, match=message):
        serializer.serialize(memory_obj(tensor), buffer, object_key())


@pytest.mark.parametrize("serde", [TurboQuantSerializer, TurboQuantDeserializer])
def test_an_unknown_preset_is_refused_when_the_serde_is_made(serde: type) -> None:
    with pytest.raises(ValueError, match="Unsupported TurboQuant preset 'k8v4'"):
        serde(TurboQuantSerdeConfig(preset="k8v4"))
