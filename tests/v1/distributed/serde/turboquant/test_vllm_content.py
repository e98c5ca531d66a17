# SPDX-License-Identifier: Apache-2.0
"""What vLLM's specs and attention backends say, through LMCache's own conversion."""

# Standard
from dataclasses import dataclass, field
from types import SimpleNamespace

# Third Party
import pytest
import torch

# First Party
from lmcache.integration.vllm.kv_cache_groups import (
    create_engine_group_infos_from_vllm,
)
from lmcache.utils import EngineType
from lmcache.v1.distributed.kv_content import OPAQUE, KVContent
from lmcache.v1.distributed.serde.turboquant.declared import declared_layout
from lmcache.v1.gpu_connector.utils import (
    LayoutHints,
    normalize_and_discover_per_layer_formats,
)
from lmcache.v1.multiprocess.group_view import engine_group_layer_indices
from tests.v1.distributed.serde.turboquant.kv_groups import DEVICE, describe_caches

HND: LayoutHints = {"kv_layout": "HND"}
NHD: LayoutHints = {"kv_layout": "NHD"}

# vLLM's classes are told by their names.


@dataclass
class AttentionSpec:
    block_size: int = 16
    num_kv_heads: int = 4
    head_size: int = 64
    head_size_v: int | None = None


@dataclass
class FullAttentionSpec(AttentionSpec):
    tokens_per_state: int = 1


@dataclass
class MLAAttentionSpec(AttentionSpec):
    pass


@dataclass
class MambaSpec:
    block_size: int = 16
    mamba_cache_mode: str = "align"


@dataclass
class UniformTypeKVCacheSpecs:
    block_size: int = 16
    kv_cache_specs: dict[str, object] = field(default_factory=dict)


def layer_of(*names: str):
    """A layer whose backend's cache has these sizes."""

    def shape(num_blocks: int, block_size: int, heads: int, head_size: int):
        sizes = {"NB": num_blocks, "BS": block_size, "NH": heads, "TWO": 2}
        sizes |= {"2HS": 2 * head_size, "NH*HS": heads * head_size}
        return tuple(sizes[name] for name in names)

    backend = SimpleNamespace(get_kv_cache_shape=shape)
    return SimpleNamespace(get_attn_backend=lambda: backend)


FUSED_LAYER = layer_of("NB", "NH", "BS", "2HS")
PLANES_LAYER = layer_of("NB", "BS", "TWO", "NH*HS")


def convert(groups, caches, layers=None, hints=HND):
    """Let LMCache turn vLLM's groups into its own."""
    config = SimpleNamespace(
        kv_cache_groups=[
            SimpleNamespace(layer_names=names, kv_cache_spec=spec)
            for names, spec in groups
        ]
    )
    return create_engine_group_infos_from_vllm(
        config, caches, hints, attention_layers=layers
    )


def cache(*shape: int, device: str = DEVICE) -> torch.Tensor:
    """A registered cache."""
    return torch.empty(shape, dtype=torch.bfloat16, device=device)


CASES = {
    "fused": (FullAttentionSpec(), (3, 4, 16, 128), FUSED_LAYER, "fused"),
    "planes": (FullAttentionSpec(), (3, 2, 16, 256), PLANES_LAYER, "fused_planes"),
    "two-heads": (
        *(FullAttentionSpec(num_kv_heads=2), (3, 2, 16, 128)),
        *(FUSED_LAYER, "fused"),
    ),
    "two-heads-planes": (
        *(FullAttentionSpec(num_kv_heads=2), (3, 2, 16, 128)),
        *(PLANES_LAYER, "fused_planes"),
    ),
    "no-backend": (FullAttentionSpec(), (3, 4, 16, 128), None, "fused"),
    "diff": (FullAttentionSpec(head_size_v=32), (3, 4, 16, 96), None, "diff"),
    "split": (FullAttentionSpec(), (3, 2, 4, 16, 64), None, "split"),
    "latent": (MLAAttentionSpec(num_kv_heads=1), (3, 1, 16, 576), None, "opaque"),
    "latent-rank-3": (MLAAttentionSpec(num_kv_heads=1), (3, 16, 576), None, "opaque"),
    "recurrent": (MambaSpec(), (3, 1, 16, 128), None, "opaque"),
    "compressed": (
        *(FullAttentionSpec(tokens_per_state=4), (3, 4, 16, 128)),
        *(FUSED_LAYER, "opaque"),
    ),
    "unknown": (SimpleNamespace(block_size=16), (3, 4, 16, 128), None, None),
    "two-heads-unsaid": (
        *(FullAttentionSpec(num_kv_heads=2), (3, 2, 16, 128)),
        *(None, None),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_group_declares(case: str) -> None:
    spec, shape, layer, kv_layout = CASES[case]
    names = ["layer.0", "layer.1"]
    caches = {name: cache(*shape) for name in names}
    layers = dict.fromkeys(names, layer) if layer else {}
    infos = convert([(names, spec)], caches, layers)
    normalized, formats = normalize_and_discover_per_layer_formats(
        list(caches.values()), engine_group_layer_indices(infos), EngineType.VLLM, HND
    )
    (description,) = describe_caches(normalized, formats, infos)
    assert description.tensor_formats is not None
    declared = declared_layout(description.tensor_formats[0])
    assert (declared and declared.kv_layout) == kv_layout
    if kv_layout in ("fused", "fused_planes", "diff", "split"):
        assert declared and declared.head_dim == 64


def test_layers_of_a_uniform_group_have_their_own_specs() -> None:
    spec = UniformTypeKVCacheSpecs(
        kv_cache_specs={
            "wide": FullAttentionSpec(head_size=128),
            "narrow": FullAttentionSpec(head_size=64),
        }
    )
    caches = {"wide": cache(3, 4, 16, 256), "narrow": cache(3, 4, 16, 128)}
    infos = convert([(["wide", "narrow"], spec)], caches)
    assert [info.content for info in infos] == [
        KVContent("attention", 4, size, size) for size in (128, 64)
    ]


def test_layers_that_differ_within_a_group_say_nothing() -> None:
    spec = UniformTypeKVCacheSpecs(
        kv_cache_specs={
            "one": FullAttentionSpec(head_size=192, head_size_v=128),
            "other": FullAttentionSpec(head_size=160),
        }
    )
    caches = {name: cache(3, 4, 16, 320) for name in ("one", "other")}
    (info,) = convert([(["one", "other"], spec)], caches)
    assert info.content is None


def test_pages_of_a_hybrid_model_that_may_be_a_view_are_opaque() -> None:
    spec = FullAttentionSpec(num_kv_heads=1, head_size=64)
    caches = {"attention": cache(3, 2, 16, 1, 64), "state": cache(3, 2, 16, 1, 64)}
    groups = [(["attention"], spec), (["state"], MambaSpec())]
    infos = convert(groups, caches, hints=NHD)
    assert [info.content for info in infos] == [OPAQUE, OPAQUE]
    (alone,) = convert(groups[:1], {"attention": caches["attention"]}, hints=NHD)
    assert alone.content == KVContent("attention", 1, 64, 64)


def test_pages_of_the_cpu_backend_are_opaque() -> None:
    caches = {"layer": cache(3, 4, 16, 128, device="cpu")}
    (info,) = convert([(["layer"], FullAttentionSpec())], caches)
    assert info.content == OPAQUE


def test_layers_without_a_group_say_nothing() -> None:
    (info,) = create_engine_group_infos_from_vllm(
        None, {"layer": cache(3, 4, 16, 128)}, HND
    )
    assert info.content is None
