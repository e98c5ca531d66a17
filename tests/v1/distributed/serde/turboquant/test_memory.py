# SPDX-License-Identifier: Apache-2.0
"""Several tensors in one memory object, without padding, at any address."""

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
from lmcache.v1.memory_management import (
    MemoryFormat,
    MemoryObjMetadata,
    TensorMemoryObj,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    gaussian,
    memory_obj,
    object_key,
)

SHAPES = [
    torch.Size([1, 1, 3, 133]),
    torch.Size([2, 5, 20, 2 * 64]),
    torch.Size([1, 5, 20, 512 + 64]),
    torch.Size([2, 4, 16, 100]),
]
DTYPES = [torch.uint8, torch.bfloat16, torch.float16, torch.float32]
GROUPS = [
    {"kv_layout": "opaque"},
    {"head_dim": 64, "preset": "turboquant_3bit_nc"},
    {"kv_layout": "latent", "head_dim": 512, "value_head_dim": 64},
    {"kv_layout": "opaque"},
]
SETTINGS = {"preset": "turboquant_4bit_nc", "skip_first_layers": 1}


def make_object() -> TensorMemoryObj:
    """An object of four tensors; all but the first begin at odd addresses."""
    sizes = [s.numel() * d.itemsize for s, d in zip(SHAPES, DTYPES, strict=True)]
    metadata = MemoryObjMetadata(
        shape=SHAPES[0],
        dtype=DTYPES[0],
        address=0,
        phy_size=sum(sizes),
        ref_count=1,
        fmt=MemoryFormat.KV_2LTD,
        shapes=SHAPES,
        dtypes=DTYPES,
    )
    buffer = torch.full((sum(sizes),), 0xA5, dtype=torch.uint8)
    return TensorMemoryObj(buffer, metadata, parent_allocator=None)


def fill(memory: TensorMemoryObj) -> list[torch.Tensor]:
    """Write random tensors into an object and return them."""
    tensors, start = [], 0
    assert memory.raw_tensor is not None
    for seed, (shape, dtype) in enumerate(zip(SHAPES, DTYPES, strict=True)):
        numbers = gaussian(*shape, seed=seed)
        tensor = (
            (numbers * 20).to(torch.int32).to(dtype) if seed == 0 else numbers.to(dtype)
        )
        data = tensor.reshape(-1).view(torch.uint8)
        memory.raw_tensor[start : start + data.numel()] = data
        tensors.append(tensor)
        start += data.numel()
    return tensors


def read(memory: TensorMemoryObj) -> list[torch.Tensor]:
    """Copies of an object's tensors."""
    tensors, start = [], 0
    assert memory.raw_tensor is not None
    for shape, dtype in zip(SHAPES, DTYPES, strict=True):
        stop = start + shape.numel() * dtype.itemsize
        data = memory.raw_tensor[start:stop].clone()
        tensors.append(data.view(dtype).view(shape))
        start = stop
    return tensors


@pytest.mark.parametrize("framed", [False, True])
def test_each_tensor_follows_its_own_rule(framed: bool) -> None:
    settings = SETTINGS | {"groups": GROUPS, "framed": framed}
    config = TurboQuantSerdeConfig.from_kwargs(settings)
    source, target = make_object(), make_object()
    tensors = fill(source)
    serializer = TurboQuantSerializer(config)
    size = serializer.estimate_serialized_size(MemoryLayoutDesc(SHAPES, DTYPES))
    payload = torch.full((size,), 0x5A, dtype=torch.uint8)
    assert serializer.serialize(source, memory_obj(payload), object_key()) == size
    TurboQuantDeserializer(config).deserialize(
        memory_obj(payload), target, object_key()
    )
    state, split, latent, opaque = read(target)
    assert torch.equal(state, tensors[0]) and torch.equal(opaque, tensors[3])
    for restored, original in ((split, tensors[1]), (latent, tensors[2])):
        changed = (restored != original).transpose(0, 1).flatten(1)
        share = changed.double().mean(dim=1)
        assert share[0] == 0 and share[-2:].max() == 0
        assert share[1:-2].min() > 0.5
        assert (restored - original).norm() < 0.3 * original.norm()


def test_a_rule_is_needed_for_every_tensor() -> None:
    config = TurboQuantSerdeConfig.from_kwargs({"groups": GROUPS[:2]})
    message = "groups has rules for 2 tensors, the memory object holds 4"
    with pytest.raises(ValueError, match=message):
        TurboQuantSerializer(config).estimate_serialized_size(
            MemoryLayoutDesc(SHAPES, DTYPES)
        )


def test_without_groups_one_rule_is_for_all() -> None:
    config = TurboQuantSerdeConfig(head_dim=64)
    shapes = [torch.Size([2, 6, 16, 64]), torch.Size([1, 6, 16, 132])]
    size = TurboQuantSerializer(config).estimate_serialized_size(
        MemoryLayoutDesc(shapes, [torch.half, torch.uint8])
    )
    raw_layers = 4 * 2 * 16 * 64 * 2
    assert size == raw_layers + 2 * 16 * config.slot_size_aligned + 6 * 16 * 132


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("fused", "groups must be a list with an object for each tensor"),
        ([1], "groups must be a list"),
        ([{"head_dims": 64}], "Unknown TurboQuant setting 'head_dims'.*'head_dim'"),
        ([{"block_size": 1}], "Unknown TurboQuant setting 'block_size'"),
        ([{"preset": "turboquant"}], "Unsupported TurboQuant preset 'turboquant'"),
    ],
)
def test_invalid_groups_are_refused(groups: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TurboQuantSerdeConfig.from_kwargs({"groups": groups})
