# SPDX-License-Identifier: Apache-2.0
"""From what LMCache knows of a tensor to the rule that is right for it.

LMCache detects the format of an engine's KV cache, and the engine says what it
holds. Where the two together leave one meaning, it becomes the rule's; where they
contradict each other the tensor is stored bit for bit; where they leave several,
nothing is declared and ``auto`` decides by the shape.
"""

# Standard
from dataclasses import dataclass, replace

# First Party
from lmcache.v1.distributed.kv_content import OPAQUE, KVContent, TensorFormat
from lmcache.v1.distributed.serde.turboquant.config import TensorRule
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVGeometry
from lmcache.v1.distributed.serde.turboquant.settings import is_head_dim

SPLIT_FORMATS = frozenset(
    {
        "NB_NL_TWO_BS_NH_HS",
        "NB_NL_TWO_NH_BS_HS",
        "NL_X_NB_TWO_BS_NH_HS",
        "NL_X_NB_TWO_NH_BS_HS",
        "NL_X_TWO_NB_BS_NH_HS",
        "NL_X_TWO_NB_NH_BS_HS",
        "NL_X_TWO_NB_NH_ONE_BS_HS",
        "NL_X_TWO_X_NB_BS_NH_HS",
        "TWO_X_NL_X_NBBS_NH_HS",
        "TWO_X_NL_X_NB_BS_NH_HS",
    }
)
"""Keys and values in two planes."""

PAIRED_FORMATS = frozenset({"NL_X_NB_BS_NH_TWO_HS", "NL_X_NB_NH_BS_TWO_HS"})
"""A key and a value of one width for each head."""

PACKED_FORMATS = frozenset({"NL_X_NB_BS_NH_CS", "NL_X_NB_NH_BS_CS"})
"""Keys, values or anything else in one plane: only the engine knows."""

ONE_VECTOR_FORMATS = frozenset(
    {
        "NL_X_NBBS_ONE_HS",
        "NL_X_NB_BSV_BSS",
        "NL_X_NB_BS_HS",
        "NL_X_NP_X_NB_BS_ONE_HS",
    }
)
"""Latents and indexes, alone or side by side, which are stored bit for bit."""

UNDECLARED_FORMATS = frozenset({"NL_X_NB_BS_NH_HS"})
"""Keys or values of a layer; which of them a tensor is, the engine does not say."""


@dataclass(frozen=True, kw_only=True)
class DeclaredLayout:
    """What a tensor is declared to mean.

    Attributes:
        kv_layout: Its layout, as in :class:`TensorRule`.
        head_dim: Dimensions of a key; 0 where it has none.
        value_head_dim: Dimensions of a value, where keys have others; else 0.
    """

    kv_layout: str
    head_dim: int = 0
    value_head_dim: int = 0


OPAQUE_LAYOUT = DeclaredLayout(kv_layout="opaque")


def declared_layout(tensor_format: TensorFormat | None) -> DeclaredLayout | None:
    """Return what a tensor is declared to mean.

    Args:
        tensor_format: What LMCache knows of it; None where it knows nothing.

    Returns:
        The layout, None where it cannot be told.
    """
    if tensor_format is None:
        return None
    layout = _layout(tensor_format)
    if layout is None or layout.kv_layout == OPAQUE_LAYOUT.kv_layout:
        return layout
    has_slots = is_head_dim(layout.head_dim) and is_head_dim(
        layout.value_head_dim or layout.head_dim
    )
    return layout if has_slots else OPAQUE_LAYOUT


def resolved_rule(rule: TensorRule, tensor_format: TensorFormat | None) -> TensorRule:
    """Fill in what a rule leaves open with what is declared.

    Args:
        rule: The configured rule; what it sets stays.
        tensor_format: What LMCache knows of the tensor; None where it knows nothing.

    Returns:
        The rule of that tensor.
    """
    declared = declared_layout(tensor_format)
    if declared is None or rule.kv_layout not in ("auto", declared.kv_layout):
        return rule
    return replace(
        rule,
        kv_layout=declared.kv_layout,
        head_dim=rule.head_dim or declared.head_dim or None,
        value_head_dim=rule.value_head_dim or declared.value_head_dim,
    )


def format_of(geometry: KVGeometry) -> TensorFormat | None:
    """Return a format that declares what a tensor was read as.

    Args:
        geometry: The tensor's.

    Returns:
        The format, None where a layout is never declared.
    """
    heads, key_dim, value_dim = geometry.num_heads, geometry.key_dim, geometry.value_dim
    if geometry.is_opaque:
        return TensorFormat("NL_X_NB_BS_HS", heads, key_dim, OPAQUE)
    if geometry.kv_layout == "split":
        return TensorFormat("NL_X_TWO_NB_BS_NH_HS", heads, key_dim)
    if geometry.kv_layout in ("fused", "diff"):
        content = KVContent("fused", heads, key_dim, value_dim)
        return TensorFormat("NL_X_NB_BS_NH_CS", heads, key_dim + value_dim, content)
    if geometry.kv_layout == "fused_planes":
        content = KVContent("fused_planes", heads, key_dim, value_dim)
        return TensorFormat("NL_X_NB_BS_NH_CS", 2, heads * key_dim, content)
    return None


def _layout(tensor_format: TensorFormat) -> DeclaredLayout | None:
    """Return the layout, whatever the widths of its heads."""
    name, content = tensor_format.engine_kv_format, tensor_format.content
    if content is not None and content.kind in ("opaque", "latent"):
        return OPAQUE_LAYOUT
    if name in SPLIT_FORMATS:
        heads = (tensor_format.num_heads, tensor_format.head_size)
        if content is not None and heads != (content.num_kv_heads, content.head_size):
            return OPAQUE_LAYOUT
        return DeclaredLayout(kv_layout="split", head_dim=tensor_format.head_size)
    if name in PAIRED_FORMATS:
        return DeclaredLayout(kv_layout="fused", head_dim=tensor_format.head_size // 2)
    if name in PACKED_FORMATS and content is not None:
        return _packed_layout(tensor_format, content)
    return OPAQUE_LAYOUT if name in ONE_VECTOR_FORMATS else None


def _packed_layout(
    tensor_format: TensorFormat, content: KVContent
) -> DeclaredLayout | None:
    """Return the layout of keys and values that share a plane.

    Each head is a key and a value, or the first head is all keys and the second all
    values. The engine says which, or the sizes do unless there are two KV heads.
    """
    head_size, value_head_size = content.head_size, content.value_head_size
    sizes = (tensor_format.num_heads, tensor_format.head_size)
    fits_heads = sizes == (content.num_kv_heads, head_size + value_head_size)
    fits_planes = head_size == value_head_size and (
        sizes == (2, content.num_kv_heads * head_size)
    )
    if content.kind == "attention" and fits_heads and fits_planes:
        return None
    if fits_heads and content.kind != "fused_planes":
        if head_size == value_head_size:
            return DeclaredLayout(kv_layout="fused", head_dim=head_size)
        return DeclaredLayout(
            kv_layout="diff", head_dim=head_size, value_head_dim=value_head_size
        )
    if fits_planes and content.kind != "fused":
        return DeclaredLayout(kv_layout="fused_planes", head_dim=head_size)
    return OPAQUE_LAYOUT
