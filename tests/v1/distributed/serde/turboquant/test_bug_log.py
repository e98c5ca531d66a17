# SPDX-License-Identifier: Apache-2.0
"""Faults reported of such codecs in public that no other test here is about.

docs/design/v1/distributed/serde/turboquant-bugs.md lists all reports, and the test of
each.
"""

# Standard
from collections.abc import Sequence
from pathlib import Path
import subprocess
import zlib

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde import turboquant
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.config import TensorRule
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.kv_layout import geometry_of
from tests.v1.distributed.serde.turboquant.closeness import assert_restored_alike
from tests.v1.distributed.serde.turboquant.fuzz.subjects import Subject
from tests.v1.distributed.serde.turboquant.helpers import (
    LOW_BIT_PRESET_NAMES,
    POISONS,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    memory_obj,
    object_key,
    relative_error,
    unskipped,
)
from tests.v1.distributed.serde.turboquant.log_recorder import recorded_log

LARGEST_ERROR = {8: 0.0013, 4: 0.0115, 3: 0.041}
"""Relative to Gaussian keys: Lloyd-Max theory, or e4m3 rounding, and a fifth."""


def frame_bytes(
    groups: list[dict], shapes: Sequence[tuple[int, ...]], dtypes: list
) -> int:
    """Bytes of the frame of an object of several tensors."""
    config = TurboQuantSerdeConfig.from_kwargs(
        {"preset": "turboquant_4bit_nc", "framed": True, "groups": groups}
    )
    description = MemoryLayoutDesc(list(map(torch.Size, shapes)), dtypes)
    return TurboQuantSerializer(config).estimate_serialized_size(description)


@pytest.mark.parametrize("shape", [(1, 61, 256, 576), (61, 256, 576)])
def test_latents_are_never_taken_for_keys_and_values(shape: tuple[int, ...]) -> None:
    """576 is divisible by 2 * 96 and by 2 * 72: a shape alone fits too much."""
    with pytest.raises(ValueError, match="set it to one of fused, .* latent"):
        geometry_of(torch.Size(shape), torch.bfloat16, TensorRule(head_dim=96))
    rule = TensorRule(kv_layout="latent", head_dim=512)
    geometry = geometry_of(torch.Size(shape), torch.bfloat16, rule)
    assert (geometry.num_heads, geometry.key_dim, geometry.value_dim) == (1, 512, 64)


def test_indexer_and_latent_share_an_object_to_the_byte() -> None:
    shapes = [(1, 78, 256, 132), (1, 78, 256, 576)]
    groups = [{}, {"kv_layout": "latent", "head_dim": 512}]
    size = frame_bytes(groups, shapes, [torch.uint8, torch.bfloat16])
    indexer, raw_layers = 78 * 256 * 132, 4 * 256 * 576 * 2
    payloads = indexer + raw_layers + 74 * 256 * (256 + 2 + 32 + 2)
    assert size == -(-(192 + payloads) // 4096) * 4096


def test_local_and_global_heads_of_other_widths_share_an_object() -> None:
    shapes = [(1, 5, 16, 2 * 2 * 256), (1, 5, 16, 2 * 2 * 512)]
    groups = [{"kv_layout": "fused", "head_dim": dim} for dim in (256, 512)]
    size = frame_bytes(groups, shapes, [torch.bfloat16] * 2)
    raw_layers = 4 * 16 * (1024 + 2048) * 2
    payloads = raw_layers + 16 * 2 * (128 + 2 + 128 + 4 + 256 + 2 + 256 + 4)
    assert size == -(-(192 + payloads) // 4096) * 4096


def test_tensors_of_one_shape_in_one_object_are_as_if_alone() -> None:
    """Layers count from the start of their own tensor, whatever comes before."""
    tensors = [gaussian(1, 3, 16, 64, seed=seed).bfloat16() for seed in range(3)]
    config = unskipped("turboquant_3bit_nc", 16, kv_layout="fused", block_size=1)
    alone = [encode(tensor, config) for tensor in tensors]
    description = MemoryLayoutDesc([t.shape for t in tensors], [torch.bfloat16] * 3)
    together = container_of(description, config)
    assert together.total_bytes == sum(payload.numel() for payload in alone)
    assert [together.layouts[0]] * 3 == list(together.layouts)
    assert alone[0].numel() == together.spans[0].stop == together.spans[1].start


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("head_dim", [80, 96, 112, 192, 576])
def test_widths_that_are_no_power_of_two(preset: str, head_dim: int) -> None:
    config = unskipped(preset, head_dim, framed=True)
    tensor = gaussian(2, 2, 64, 3 * head_dim).bfloat16()
    keys, _ = decode(encode(tensor, config), tensor, config)
    error = relative_error(tensor[0], keys)
    assert 0 < error < LARGEST_ERROR[config.key_quant_bits]


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("num_heads", [1, 3, 5, 7, 12])
def test_any_number_of_heads(preset: str, num_heads: int) -> None:
    config = unskipped(preset, 64)
    tensor = gaussian(2, 2, 20, num_heads * 64).half()
    restored = decode(encode(tensor, config), tensor, config)
    for head in range(num_heads):
        alone = tensor[..., head * 64 : (head + 1) * 64].contiguous()
        expected = decode(encode(alone, config), alone, config)
        assert torch.equal(restored[..., head * 64 : (head + 1) * 64], expected)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_a_wrong_width_restores_what_was_stored(preset: str) -> None:
    """Heads of 64 read as heads of 128 lose nothing but the choice of the rows."""
    config = unskipped(preset, 128, framed=True)
    tensor = gaussian(2, 2, 64, 8 * 64).bfloat16()
    keys, _ = decode(encode(tensor, config), tensor, config)
    assert relative_error(tensor[0], keys) < LARGEST_ERROR[config.key_quant_bits]


@pytest.mark.parametrize("preset", LOW_BIT_PRESET_NAMES)
def test_a_shared_offset_costs_its_share_of_the_error(preset: str) -> None:
    """The error follows the whole key, so it can exceed what differs between tokens.

    Models whose keys have such a bias need 8-bit keys or those layers skipped.
    """
    config = unskipped(preset, 128)
    tensor = gaussian(2, 1, 512, 128)
    tensor[0, ..., [3, 40, 77, 101]] += 50
    keys, _ = decode(encode(tensor, config), tensor, config)
    relative = relative_error(tensor[0], keys)
    assert relative < 1.3 * LARGEST_ERROR[config.key_quant_bits]
    varying = tensor[0] - tensor[0].mean(dim=1, keepdim=True)
    noise = (keys - tensor[0]).square().sum() / varying.square().sum()
    assert noise > 0.1
    finer = unskipped("turboquant_k8v4")
    fp8, _ = decode(encode(tensor, finer), tensor, finer)
    fp8_noise = (fp8 - tensor[0]).square().sum() / varying.square().sum()
    assert fp8_noise < noise / 3


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("constant", [1.0, -7.0, 100.0])
def test_constant_rows(preset: str, constant: float) -> None:
    config = unskipped(preset, 128)
    tensor = torch.full((2, 1, 4, 128), constant)
    keys, values = decode(encode(tensor, config), tensor, config)
    assert torch.equal(values, tensor[1])
    assert relative_error(tensor[0], keys) < 1.5 * LARGEST_ERROR[config.key_quant_bits]


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-6, 1e-8])
def test_tiny_values_lose_only_what_float16_rounds(preset: str, scale: float) -> None:
    config = unskipped(preset, 128)
    tensor = scale * gaussian(2, 1, 200, 128)
    _, values = decode(encode(tensor, config), tensor, config)
    top_level = 2**config.value_quant_bits - 1
    steps = (tensor[1].amax(-1) - tensor[1].amin(-1)) / top_level
    half_subnormal = 2.0**-25
    relative = 2.0**-10 * tensor[1].abs().amax(-1)
    bound = steps / 2 + relative + half_subnormal * (top_level + 1)
    assert ((values - tensor[1]).abs().amax(-1) <= bound).all()


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_ten_generations_do_not_drift(preset: str) -> None:
    config = unskipped(preset, 128)
    tensor = gaussian(2, 1, 64, 4 * 128)
    generations = []
    for _ in range(10):
        tensor = decode(encode(tensor, config), tensor, config)
        generations.append(tensor)
    ratio = generations[-1].norm() / generations[0].norm()
    assert abs(ratio - 1) < 0.001
    drift = relative_error(generations[0], generations[-1])
    assert drift < LARGEST_ERROR[min(config.key_quant_bits, config.value_quant_bits)]


def test_growing_and_shrinking_objects_share_nothing(device: torch.device) -> None:
    config = unskipped("turboquant_4bit_nc", 64, framed=True)
    tensors = [
        gaussian(2, 2, num_tokens, 64, seed=num_tokens).half().to(device)
        for num_tokens in (1, 300, 2, 700, 0, 16)
    ]
    first = [encode(tensor, config) for tensor in tensors]
    for tensor, payload in reversed(list(zip(tensors, first, strict=True))):
        assert torch.equal(encode(tensor, config), payload)
        restored = decode(payload, tensor, config).cpu()
        assert_restored_alike(restored, decode(payload.cpu(), tensor, config), 64)


@pytest.mark.parametrize("position", [12, 13], ids=["rotation", "key encoding"])
def test_other_encodings_are_refused(position: int) -> None:
    """The writer's hardware cannot decide what bytes mean without a mark."""
    config = unskipped("turboquant_k8v4", framed=True)
    tensor = gaussian(2, 1, 4, 128).half()
    data = bytearray(encode(tensor, config).numpy().tobytes())
    data[position] += 1
    data[124:128] = zlib.crc32(data[:124]).to_bytes(4, "little")
    changed = torch.frombuffer(data, dtype=torch.uint8)
    with pytest.raises(ValueError, match="rotation and key encoding"):
        decode(changed, tensor, config)


def test_an_object_that_is_not_compressed_is_warned_of_once() -> None:
    serializer = TurboQuantSerializer(TurboQuantSerdeConfig())
    tensor = gaussian(2, 4, 8, 128).half()
    payload = torch.empty(tensor.nbytes, dtype=torch.uint8)
    with recorded_log() as log:
        for _ in range(3):
            serializer.serialize(memory_obj(tensor), memory_obj(payload), object_key())
    assert len(log.about("without compression")) == 1


def test_an_operation_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"started a process: {args}")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    config = unskipped("turboquant_4bit_nc")
    tensor = gaussian(2, 1, 8, 128).half()
    assert decode(encode(tensor, config), tensor, config).isfinite().all()


def test_no_module_sets_the_current_device() -> None:
    package = Path(turboquant.__file__).parent
    modules = {path: path.read_text() for path in package.rglob("*.py")}
    assert modules and not [p for p, text in modules.items() if "set_device" in text]


def test_a_frame_of_more_tensors_says_so() -> None:
    """Objects hold other tensors after LMCache's object groups are split."""
    shapes = [torch.Size([1, 2, 4, 32]), torch.Size([1, 2, 4, 16])]
    config = TurboQuantSerdeConfig.from_kwargs({"framed": True})
    both = Subject("two", config, MemoryLayoutDesc(shapes, [torch.uint8] * 2))
    one = Subject("one", config, MemoryLayoutDesc(shapes[:1], [torch.uint8]))
    with pytest.raises(ValueError, match="holds 2 tensors, expected 1"):
        one.decode(both.own, POISONS[0])
    with pytest.raises(ValueError, match="holds 1 tensors, expected 2"):
        both.decode(one.own, POISONS[0])
