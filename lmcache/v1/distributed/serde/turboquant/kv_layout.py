# SPDX-License-Identifier: Apache-2.0
"""What a KV tensor means: which of its elements are keys, and which values.

Engines hand over the same shape for different contents, so the meaning is
declared by ``kv_layout`` and never guessed. Every layout is read through two
strided views ``[layers, tokens, heads, dim]``, of keys and of values.
"""

# Standard
from dataclasses import dataclass
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.config import KV_LAYOUTS, TensorRule
from lmcache.v1.distributed.serde.turboquant.slot import INDICES_PER_PACK

QUANTISED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

KVViews = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True, kw_only=True)
class KVGeometry:
    """Sizes of the key and value views of a tensor.

    Attributes:
        kv_layout: How the tensor is read; ``opaque`` views it as one layer of
            one-byte elements.
        num_layers: Layers.
        num_tokens: Tokens.
        num_heads: Heads.
        key_dim: Dimensions of a key.
        value_dim: Dimensions of a value; 0 where there are keys only.
    """

    kv_layout: str
    num_layers: int
    num_tokens: int
    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def is_opaque(self) -> bool:
        """Whether the tensor is stored bit for bit, whatever it holds."""
        return self.kv_layout == "opaque"

    @property
    def layer_elements(self) -> int:
        """Elements of keys and values of one layer."""
        return self.num_tokens * self.num_heads * (self.key_dim + self.value_dim)


def geometry_of(shape: torch.Size, dtype: torch.dtype, rule: TensorRule) -> KVGeometry:
    """Find the key and value views of a tensor.

    Args:
        shape: Shape of the tensor.
        dtype: Its element type; types that are not quantised (integers,
            float8, float64) make it opaque.
        rule: The declared meaning.

    Returns:
        The geometry.

    Raises:
        ValueError: If the shape does not fit the declared layout, or ``auto``
            cannot tell what it means.
    """
    if dtype not in QUANTISED_DTYPES or rule.kv_layout == "opaque":
        return KVGeometry(
            kv_layout="opaque",
            num_layers=1,
            num_tokens=math.prod(shape) * dtype.itemsize,
            num_heads=1,
            key_dim=1,
            value_dim=0,
        )
    kv_layout = _declared_layout(shape, rule)
    entries, num_tokens, width = _entries(shape, kv_layout)
    num_heads, key_dim, value_dim = _head_dims(shape, width, kv_layout, rule)
    if kv_layout == "components" and entries % 2:
        raise _misfit(shape, kv_layout, "keys and values do not pair up")
    return KVGeometry(
        kv_layout=kv_layout,
        num_layers=entries // 2 if kv_layout == "components" else entries,
        num_tokens=num_tokens,
        num_heads=num_heads,
        key_dim=key_dim,
        value_dim=value_dim,
    )


def kv_views(tensor: torch.Tensor, geometry: KVGeometry) -> KVViews:
    """View a tensor as keys and values.

    Args:
        tensor: A tensor of the shape and dtype that ``geometry`` was found for;
            contiguous, where it is opaque.
        geometry: Its geometry.

    Returns:
        Views ``[layers, tokens, heads, key_dim]`` and ``[..., value_dim]``; the
        second is None where there are keys only.
    """
    heads, key_dim, value_dim = geometry.num_heads, geometry.key_dim, geometry.value_dim
    if geometry.is_opaque:
        return tensor.view(-1).view(torch.uint8).view(1, -1, 1, 1), None
    if geometry.kv_layout == "split":
        keys, values = tensor.unflatten(-1, (heads, key_dim))
        return keys, values
    entries = tensor[0] if tensor.dim() == 4 else tensor
    if geometry.kv_layout == "components":
        both = entries.unflatten(-1, (heads, key_dim))
        return both[0::2], both[1::2]
    if geometry.kv_layout == "fused_planes":
        keys, values = entries.unflatten(-1, (2, heads, key_dim)).unbind(-3)
        return keys, values
    both = entries.unflatten(-1, (heads, key_dim + value_dim))
    return both[..., :key_dim], both[..., key_dim:] if value_dim else None


def _declared_layout(shape: torch.Size, rule: TensorRule) -> str:
    """Return the rule's layout, ``auto`` resolved."""
    if rule.kv_layout != "auto":
        return rule.kv_layout
    if len(shape) == 4 and shape[0] == 2:
        return "split"
    choices = ", ".join(name for name in KV_LAYOUTS if name not in ("auto", "split"))
    raise ValueError(
        f"TurboQuant cannot tell keys from values in {tuple(shape)}: expected "
        "[kv_size=2, layers, tokens, heads * head_dim] unless the serde setting "
        f"kv_layout says otherwise; set it to one of {choices} (vLLM 0.26 and "
        "later: fused)"
    )


def _entries(shape: torch.Size, kv_layout: str) -> tuple[int, int, int]:
    """Return the sizes of the last three dimensions, the leading one checked."""
    planes = 2 if kv_layout == "split" else 1
    without_planes = len(shape) == 3 and planes == 1
    if not without_planes and (len(shape) != 4 or shape[0] != planes):
        raise _misfit(shape, kv_layout, f"the first of 4 dimensions must be {planes}")
    entries, num_tokens, width = shape[-3:]
    return int(entries), int(num_tokens), int(width)


def _head_dims(
    shape: torch.Size, width: int, kv_layout: str, rule: TensorRule
) -> tuple[int, int, int]:
    """Return heads, key_dim and value_dim that make up the last dimension."""
    key_dim = rule.key_dim
    if kv_layout == "latent":
        value_dim = width - key_dim
        declared = rule.value_head_dim or value_dim
        if value_dim < 0 or value_dim % INDICES_PER_PACK or value_dim != declared:
            parts = f"head_dim={key_dim} and value_head_dim={rule.value_head_dim}"
            raise _misfit(shape, kv_layout, f"{parts} must add up to {width}")
        return 1, key_dim, value_dim
    value_dim = rule.value_head_dim or key_dim
    in_one_plane = kv_layout in ("fused", "fused_planes", "diff")
    head_width = key_dim + value_dim if in_one_plane else key_dim
    if width % head_width:
        sizes = f"head_dim={key_dim}"
        sizes += f" + {value_dim}" if in_one_plane else ""
        raise _misfit(shape, kv_layout, f"{width} must be divisible by {sizes}")
    return width // head_width, key_dim, value_dim


def _misfit(shape: torch.Size, kv_layout: str, reason: str) -> ValueError:
    """Return the error of a tensor that is not of its declared layout."""
    return ValueError(
        f"TurboQuant kv_layout {kv_layout!r} expects {KV_LAYOUTS[kv_layout]}, got "
        f"{tuple(shape)}: {reason}; set head_dim and kv_layout to the model's"
    )
