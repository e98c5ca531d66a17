# SPDX-License-Identifier: Apache-2.0
"""The KV cache of one sequence as one tensor, in LMCache's split layout."""

# Standard
from dataclasses import dataclass

# Third Party
import torch


@dataclass(frozen=True)
class KVCache:
    """The KV cache of one sequence.

    Attributes:
        kv: ``[2, layers, tokens, heads * head_dim]``; keys, as attention reads them
            (after the rotary embedding), then values.
        head_dim: Width of one head.

    Raises:
        ValueError: If ``kv`` does not have that shape.
    """

    kv: torch.Tensor
    head_dim: int

    def __post_init__(self) -> None:
        shape = tuple(self.kv.shape)
        if len(shape) != 4 or shape[0] != 2:
            raise ValueError(
                f"expected KV as [2, layers, tokens, heads * head_dim], got {shape}"
            )
        if self.head_dim <= 0 or shape[3] % self.head_dim:
            raise ValueError(
                f"hidden size {shape[3]} is not a multiple of head_dim {self.head_dim}"
            )

    @property
    def num_layers(self) -> int:
        """Number of attention layers."""
        return self.kv.shape[1]

    @property
    def num_tokens(self) -> int:
        """Number of cached tokens."""
        return self.kv.shape[2]

    @property
    def num_heads(self) -> int:
        """Number of KV heads."""
        return self.kv.shape[3] // self.head_dim
