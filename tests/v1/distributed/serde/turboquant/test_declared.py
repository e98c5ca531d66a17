# SPDX-License-Identifier: Apache-2.0
"""What LMCache declares of a tensor, through its own detection and grouping."""

# Standard

# Third Party
import pytest
import torch

# First Party
from lmcache.lmcache_native import EngineKVFormat
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.kv_content import OPAQUE, KVContent, TensorFormat
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantSerdeConfig,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.declared import (
    ONE_VECTOR_FORMATS,
    OPAQUE_LAYOUT,
    PACKED_FORMATS,
    PAIRED_FORMATS,
    SPLIT_FORMATS,
    UNDECLARED_FORMATS,
    DeclaredLayout,
    declared_layout,
)
from lmcache.v1.distributed.serde.turboquant.layout import layouts_of
from lmcache.v1.gpu_connector.kv_format.specs import get_spec_class
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from tests.v1.distributed.serde.turboquant.kv_groups import (
    HEAD_SIZE,
    NUM_HEADS,
    NUM_LAYERS,
    caches_of,
    describe_caches,
)

FORMATS = list(EngineKVFormat.__members__.values())
UNGROUPED = [
    engine_format
    for engine_format in FORMATS
    for spec in [get_spec_class(engine_format)]
    if spec.is_pbs_fused or spec.is_cross_layer
]
"""Block counts of these are read in another way than LMCache's grouping does."""

GROUPED = [each for each in FORMATS if each not in UNGROUPED]
PLACES = [
    SPLIT_FORMATS,
    PAIRED_FORMATS,
    PACKED_FORMATS,
    ONE_VECTOR_FORMATS,
    UNDECLARED_FORMATS,
]
ZERO_CONFIG = TurboQuantSerdeConfig.from_kwargs({"framed": True})
PACKED = EngineKVFormat.NL_X_NB_NH_BS_CS
SPLIT = EngineKVFormat.NL_X_NB_TWO_BS_NH_HS


def infos_of(content: KVContent | None, **settings: object) -> list[EngineGroupInfo]:
    """One group of all layers, of that content."""
    layers = tuple(range(NUM_LAYERS))
    return [EngineGroupInfo(0, layers, content=content, **settings)]  # type: ignore[arg-type]


def describe_group(
    engine_format: EngineKVFormat,
    content: KVContent | None,
    num_heads: int = NUM_HEADS,
    head_size: int = HEAD_SIZE,
    dtype: torch.dtype = torch.bfloat16,
    **settings: object,
) -> MemoryLayoutDesc:
    """Describe the object of one group of layers."""
    caches = caches_of(engine_format, num_heads, head_size, dtype)
    infos = infos_of(content, **settings)
    (description,) = describe_caches(caches, [engine_format] * NUM_LAYERS, infos)
    return description


def declared_of(description: MemoryLayoutDesc) -> DeclaredLayout | None:
    """What is declared of an object's only tensor."""
    assert description.tensor_formats is not None
    (tensor_format,) = description.tensor_formats
    return declared_layout(tensor_format)


def expected_layout(engine_format: EngineKVFormat) -> DeclaredLayout | None:
    """What a format alone declares, of heads of ``HEAD_SIZE``."""
    name = engine_format.name
    if name in SPLIT_FORMATS:
        return DeclaredLayout(kv_layout="split", head_dim=HEAD_SIZE)
    if name in PAIRED_FORMATS:
        return DeclaredLayout(kv_layout="fused", head_dim=HEAD_SIZE)
    return OPAQUE_LAYOUT if name in ONE_VECTOR_FORMATS else None


def test_every_format_of_lmcache_has_one_place() -> None:
    assert sorted(name for place in PLACES for name in place) == sorted(
        engine_format.name for engine_format in FORMATS
    )


@pytest.mark.parametrize("engine_format", GROUPED, ids=lambda each: each.name)
def test_what_each_format_declares_alone(engine_format: EngineKVFormat) -> None:
    (description,) = describe_caches(
        caches_of(engine_format), [engine_format] * NUM_LAYERS
    )
    expected = expected_layout(engine_format)
    assert declared_of(description) == expected
    if expected is None:
        with pytest.raises(ValueError, match="set it to one of fused, fused_planes"):
            TurboQuantSerializer(ZERO_CONFIG).estimate_serialized_size(description)
        return
    (layout,) = layouts_of(description, ZERO_CONFIG)
    assert layout.geometry.kv_layout == expected.kv_layout
    if not layout.geometry.is_opaque:
        assert (layout.geometry.key_dim, layout.geometry.value_dim) == (HEAD_SIZE,) * 2


@pytest.mark.parametrize("engine_format", UNGROUPED, ids=lambda each: each.name)
def test_formats_that_lmcache_does_not_group(engine_format: EngineKVFormat) -> None:
    with pytest.raises((ValueError, AttributeError), match="undefined|shape"):
        describe_caches(caches_of(engine_format), [engine_format] * NUM_LAYERS)
    tensor_format = TensorFormat(engine_format.name, NUM_HEADS, HEAD_SIZE)
    assert declared_layout(tensor_format) == expected_layout(engine_format)


CONTENTS = {
    "fused": (4, 128, KVContent("fused", 4, 64, 64), "fused", 64, 0),
    "fused-by-sizes": (4, 128, KVContent("attention", 4, 64, 64), "fused", 64, 0),
    "fused-one-head": (1, 128, KVContent("attention", 1, 64, 64), "fused", 64, 0),
    "two-kv-heads-fused": (2, 128, KVContent("fused", 2, 64, 64), "fused", 64, 0),
    "two-kv-heads-planes": (
        *(2, 128, KVContent("fused_planes", 2, 64, 64)),
        *("fused_planes", 64, 0),
    ),
    "planes": (2, 512, KVContent("fused_planes", 8, 64, 64), "fused_planes", 64, 0),
    "planes-by-sizes": (
        2,
        512,
        KVContent("attention", 8, 64, 64),
        "fused_planes",
        64,
        0,
    ),
    "diff": (4, 320, KVContent("attention", 4, 192, 128), "diff", 192, 128),
    "latent-in-a-head": (1, 576, KVContent("latent"), "opaque", 0, 0),
    "opaque": (4, 128, OPAQUE, "opaque", 0, 0),
    "other-heads": (4, 128, KVContent("fused", 8, 64, 64), "opaque", 0, 0),
    "other-order": (4, 128, KVContent("fused_planes", 4, 64, 64), "opaque", 0, 0),
    "odd-width": (4, 24, KVContent("fused", 4, 12, 12), "opaque", 0, 0),
    "too-wide": (1, 4096, KVContent("fused", 1, 2048, 2048), "opaque", 0, 0),
}


@pytest.mark.parametrize("case", CONTENTS)
@pytest.mark.parametrize("name", sorted(PACKED_FORMATS))
def test_what_an_engine_says_of_a_packed_plane(case: str, name: str) -> None:
    heads, width, content, kv_layout, head_dim, value_head_dim = CONTENTS[case]
    engine_format = EngineKVFormat.__members__[name]
    description = describe_group(engine_format, content, heads, width)
    assert declared_of(description) == DeclaredLayout(
        kv_layout=kv_layout, head_dim=head_dim, value_head_dim=value_head_dim
    )
    assert layouts_of(description, ZERO_CONFIG)[0].geometry.kv_layout == kv_layout


@pytest.mark.parametrize(
    "content", [None, KVContent("attention", 2, 64, 64)], ids=["unsaid", "two heads"]
)
def test_what_has_two_meanings_is_refused_as_ever(content: KVContent | None) -> None:
    description = describe_group(PACKED, content, num_heads=2, head_size=128)
    assert declared_of(description) is None
    with pytest.raises(ValueError, match="unless the serde setting kv_layout"):
        layouts_of(description, ZERO_CONFIG)


@pytest.mark.parametrize("engine_format", [SPLIT, PACKED], ids=lambda each: each.name)
@pytest.mark.parametrize(
    "settings", [{"recurrent_state": True}, {"extra_object_group_tag": 1}], ids=str
)
def test_state_of_the_shape_of_attention_is_opaque(
    engine_format: EngineKVFormat, settings: dict[str, object]
) -> None:
    attention = KVContent("attention", NUM_HEADS, HEAD_SIZE, HEAD_SIZE)
    description = describe_group(
        engine_format,
        attention,
        **settings,  # type: ignore[arg-type]
    )
    assert declared_of(description) == OPAQUE_LAYOUT


def test_split_pages_that_are_no_heads_of_the_engine_are_opaque() -> None:
    content = KVContent("attention", 4, 64, 64)
    as_said = describe_group(SPLIT, content, num_heads=4, head_size=64)
    viewed_anew = describe_group(SPLIT, content, num_heads=1, head_size=256)
    assert as_said.shapes == viewed_anew.shapes
    assert declared_of(as_said) == DeclaredLayout(kv_layout="split", head_dim=64)
    assert declared_of(viewed_anew) == OPAQUE_LAYOUT


@pytest.mark.parametrize("engine_format", [SPLIT, PACKED], ids=lambda each: each.name)
def test_float8_kv_is_opaque(engine_format: EngineKVFormat) -> None:
    content = KVContent("fused", NUM_HEADS, HEAD_SIZE // 2, HEAD_SIZE // 2)
    description = describe_group(engine_format, content, dtype=torch.uint8)
    (layout,) = layouts_of(description, ZERO_CONFIG)
    assert layout.geometry.is_opaque


def test_a_hybrid_model_has_a_rule_for_each_of_its_tensors() -> None:
    caches = [
        *caches_of(PACKED, num_heads=2, head_size=256),
        *caches_of(PACKED, num_heads=1, head_size=512),
        *caches_of(EngineKVFormat.NL_X_NB_BSV_BSS, head_size=132, dtype=torch.uint8),
    ]
    formats = [PACKED] * 4 + [EngineKVFormat.NL_X_NB_BSV_BSS] * 2
    infos = [
        EngineGroupInfo(0, (0, 1), content=KVContent("fused", 2, 128, 128)),
        EngineGroupInfo(1, (2, 3), content=OPAQUE, recurrent_state=True),
        EngineGroupInfo(2, (4, 5), content=KVContent("latent")),
    ]
    (description,) = describe_caches(caches, formats, infos)
    layouts = layouts_of(description, ZERO_CONFIG)
    assert [layout.geometry.kv_layout for layout in layouts] == [
        *("fused", "opaque", "opaque")
    ]
    apart = describe_caches(caches, formats, infos, separate=True)
    assert [len(each.tensor_formats or ()) for each in apart] == [2, 1]
