# SPDX-License-Identifier: Apache-2.0
"""Where every byte of a payload goes.

A KV tensor ``[2, layers, tokens, heads * head_dim]`` (keys, then values)
becomes ``raw first layers | compressed layers | raw last layers``. A raw group
keeps the tensor's own bytes, ``[2, group layers, tokens, heads * head_dim]``;
compressed layers are slots ``[layers, blocks, block_size, heads, slot]``.
"""

# Standard
from dataclasses import dataclass
from functools import cached_property
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout

KV_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, kw_only=True)
class PayloadLayout:
    """Sizes and offsets of the payload of one KV tensor.

    Attributes:
        slot: Byte layout of one slot.
        block_size: Tokens a block.
        dtype: Element type of the tensor.
        num_layers: Layers of the tensor.
        num_tokens: Tokens of the tensor.
        num_heads: Head vectors a token.
        quant_start: First compressed layer.
        quant_end: Layer after the last compressed one.
    """

    slot: SlotLayout
    block_size: int
    dtype: torch.dtype
    num_layers: int
    num_tokens: int
    num_heads: int
    quant_start: int
    quant_end: int

    @classmethod
    def for_tensor(
        cls, shape: torch.Size, dtype: torch.dtype, config: TurboQuantSerdeConfig
    ) -> "PayloadLayout":
        """Lay out the payload of a KV tensor.

        Args:
            shape: ``[2, layers, tokens, heads * head_dim]``.
            dtype: float16, bfloat16 or float32.
            config: What the serde does with the tensor.

        Returns:
            The payload's layout.

        Raises:
            ValueError: If the tensor is not one that ``config`` describes.
        """
        _check_kv_tensor(shape, dtype, config.head_dim)
        _, num_layers, num_tokens, hidden_dim = (int(size) for size in shape)
        quant_start = min(config.skip_first_layers, num_layers)
        quant_end = max(quant_start, num_layers - config.skip_last_layers)
        return cls(
            slot=config.slot,
            block_size=config.block_size,
            dtype=dtype,
            num_layers=num_layers,
            num_tokens=num_tokens,
            num_heads=hidden_dim // config.head_dim,
            quant_start=quant_start,
            quant_end=quant_end,
        )

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the KV tensor: ``[2, layers, tokens, heads * head_dim]``."""
        hidden_dim = self.num_heads * self.slot.head_dim
        return 2, self.num_layers, self.num_tokens, hidden_dim

    @cached_property
    def raw_layers(self) -> tuple[slice, slice]:
        """Layers stored raw: those before and those after the compressed ones."""
        return slice(0, self.quant_start), slice(self.quant_end, self.num_layers)

    @cached_property
    def raw_layer_bytes(self) -> int:
        """Bytes of keys and values of one raw layer."""
        _, _, num_tokens, hidden_dim = self.shape
        return 2 * num_tokens * hidden_dim * self.dtype.itemsize

    @cached_property
    def raw_spans(self) -> tuple[slice, slice]:
        """Byte ranges of the raw groups, in the order of ``raw_layers``."""
        return (
            slice(0, self.compressed_span.start),
            slice(self.compressed_span.stop, self.payload_bytes),
        )

    @cached_property
    def compressed_shape(self) -> tuple[int, int, int, int]:
        """Shape of the slots: ``[layers, blocks * block_size, heads, slot]``."""
        num_blocks = math.ceil(self.num_tokens / self.block_size)
        return (
            self.quant_end - self.quant_start,
            num_blocks * self.block_size,
            self.num_heads,
            self.slot.slot_bytes,
        )

    @cached_property
    def compressed_span(self) -> slice:
        """Byte range of the compressed layers."""
        start = self.quant_start * self.raw_layer_bytes
        return slice(start, start + math.prod(self.compressed_shape))

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of the whole payload."""
        trailing_layers = self.num_layers - self.quant_end
        return self.compressed_span.stop + trailing_layers * self.raw_layer_bytes


def layout_of(
    description: MemoryLayoutDesc, config: TurboQuantSerdeConfig
) -> PayloadLayout:
    """Lay out the payload of a memory object.

    Args:
        description: Shapes and dtypes of the object's tensors.
        config: What the serde does with them.

    Returns:
        The layout of the payload of the object's single tensor.

    Raises:
        ValueError: If the object does not hold exactly one tensor, or holds
            one that ``config`` does not describe.
    """
    if len(description.shapes) != 1:
        raise ValueError(
            "TurboQuant expects one KV tensor in a memory object, got "
            f"{len(description.shapes)}: {[tuple(s) for s in description.shapes]}"
        )
    return PayloadLayout.for_tensor(
        description.shapes[0], description.dtypes[0], config
    )


def _check_kv_tensor(shape: torch.Size, dtype: torch.dtype, head_dim: int) -> None:
    """Raise ValueError unless shape and dtype are those of a KV tensor."""
    expected = "[kv_size=2, layers, tokens, heads * head_dim]"
    if len(shape) != 4:
        raise ValueError(
            f"TurboQuant expects a 4-D KV tensor {expected}, got {tuple(shape)}"
        )
    if shape[0] != 2:
        raise ValueError(
            f"TurboQuant expects keys and values apart, {expected}, "
            f"got kv_size={shape[0]} in {tuple(shape)}"
        )
    if shape[3] % head_dim:
        raise ValueError(
            f"The last dimension of {tuple(shape)} must be divisible by "
            f"head_dim={head_dim}; set head_dim to the model's"
        )
    if dtype not in KV_DTYPES:
        names = ", ".join(str(known) for known in KV_DTYPES)
        raise ValueError(f"TurboQuant quantises {names}, got {dtype}")
