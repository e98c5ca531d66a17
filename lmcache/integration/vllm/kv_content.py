# SPDX-License-Identifier: Apache-2.0
"""What vLLM says of the contents of its KV caches.

vLLM's classes are told by their names, as LMCache does elsewhere, so that neither
this module nor its tests need vLLM.
"""

# Standard
from collections.abc import Mapping, Sequence
from typing import Any

# Third Party
import torch

# First Party
from lmcache.v1.distributed.kv_content import OPAQUE, ContentKind, KVContent

_PROBE_BLOCK_SIZE = 64
_PROBE_HEADS = 5
"""A block size that all backends have, and heads that no other size is mistaken for."""


def layer_contents(
    groups: Sequence[Any],
    kv_caches: Mapping[str, Any],
    attention_layers: Mapping[str, Any],
) -> list[KVContent | None]:
    """Find out what each registered KV cache holds.

    Args:
        groups: vLLM's ``KVCacheGroupSpec`` instances.
        kv_caches: Registered caches by layer name, as LMCache views them.
        attention_layers: vLLM's layers by name, those that are known.

    Returns:
        The contents in the order of ``kv_caches``; None where vLLM does not say.
    """
    specs = {
        name: _layer_spec(group, name) for group in groups for name in group.layer_names
    }
    is_hybrid = any(_is_a("MambaSpec", spec) for spec in specs.values())
    return [
        _content(specs.get(name), cache, attention_layers.get(name), is_hybrid)
        for name, cache in kv_caches.items()
    ]


def common_content(contents: Sequence[KVContent | None]) -> KVContent | None:
    """Return what all of ``contents`` are, None where they differ."""
    distinct = set(contents)
    return distinct.pop() if len(distinct) == 1 else None


def _content(spec: Any, cache: Any, layer: Any, is_hybrid: bool) -> KVContent | None:
    """Return what one layer's cache holds.

    vLLM's CPU backend stores a page's keys dimension by dimension, and pages of a
    hybrid model may be a view in which keys and values alternate: rows of these are
    no tokens.
    """
    tensor = _first_tensor(cache)
    if _is_a("MambaSpec", spec) or tensor.device.type == "cpu":
        return OPAQUE
    if _is_a("MLA", spec):
        return KVContent("latent")
    if not _is_a("AttentionSpec", spec) or not hasattr(spec, "num_kv_heads"):
        return None
    may_be_a_view = is_hybrid and tensor.dim() == 5 and tensor.shape[3] == 1
    if may_be_a_view or _tokens_per_row(spec) != 1:
        return OPAQUE
    return KVContent(
        _kind(spec, layer),
        spec.num_kv_heads,
        spec.head_size,
        getattr(spec, "head_size_v", None) or spec.head_size,
    )


def _kind(spec: Any, layer: Any) -> ContentKind:
    """Tell from the sizes of a backend's caches how it fuses keys and values."""
    if not hasattr(layer, "get_attn_backend"):
        return "attention"
    asked = (1, _PROBE_BLOCK_SIZE, _PROBE_HEADS, spec.head_size)
    num_blocks, block_size, heads, head_size = asked
    shape = sorted(layer.get_attn_backend().get_kv_cache_shape(*asked))
    if shape == sorted((num_blocks, block_size, heads, 2 * head_size)):
        return "fused"
    if shape == sorted((num_blocks, block_size, 2, heads * head_size)):
        return "fused_planes"
    return "attention"


def _tokens_per_row(spec: Any) -> int:
    """Return how many tokens share one row; vLLM's name for it has changed."""
    return getattr(spec, "tokens_per_state", getattr(spec, "compress_ratio", 1))


def _layer_spec(group: Any, name: str) -> Any:
    """Return the KV cache spec of one layer of a group."""
    spec = group.kv_cache_spec
    per_layer = getattr(spec, "kv_cache_specs", None)
    return per_layer[name] if per_layer else spec


def _is_a(name: str, spec: Any) -> bool:
    """Say whether the name of a spec's class, or of a base of it, has ``name``."""
    return any(name in base.__name__ for base in type(spec).__mro__)


def _first_tensor(cache: Any) -> torch.Tensor:
    """Return a cache's tensor, or the first one of several."""
    while not isinstance(cache, torch.Tensor):
        cache = cache[0]
    return cache
