# SPDX-License-Identifier: Apache-2.0
"""Where every byte of a tensor's payload goes.

A payload is ``raw first layers | compressed layers | raw last layers``. A raw group
holds its layers' keys, then their values, ``[layers, tokens, heads, dim]`` each,
unchanged. Compressed layers are a side table, where the preset is calibrated, and
slots ``[layers, padded tokens, heads, slot]``.
"""

# Standard
from dataclasses import dataclass
from functools import cached_property
import math

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant.config import (
    TensorRule,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.declared import resolved_rule
from lmcache.v1.distributed.serde.turboquant.kv_layout import KVGeometry, geometry_of
from lmcache.v1.distributed.serde.turboquant.side_table import SideTableLayout
from lmcache.v1.distributed.serde.turboquant.slot import SlotLayout

MIN_CALIBRATED_TOKENS = 64
"""Fewer tokens of a calibrated preset have no statistics.

Statistics take 32 bits a key dimension of a head: of 64 tokens, half a bit each,
where they are worth one.
"""

TOKENS_PER_KEPT_ROW = 128
"""Of so many tokens of a head one key is kept in the side table, and at least one.

Wider keys count one for each ``head_dim`` tokens, so that those kept take no more
bytes than the statistics in an object of 256 tokens.
"""


@dataclass(frozen=True, kw_only=True)
class PayloadLayout:
    """Sizes and offsets of the payload of one tensor.

    Attributes:
        preset: Name of the preset.
        shape: Shape of the tensor.
        dtype: Element type of the tensor.
        geometry: Its key and value views.
        slot: Byte layout of one slot.
        block_size: Tokens that slots are padded to a multiple of.
        quant_start: First compressed layer.
        quant_end: Layer after the last compressed one.
        first_layer: Index of the first layer, where the tensor is a part of another
            one; a layer's rotation depends on it.
    """

    preset: str
    shape: torch.Size
    dtype: torch.dtype
    geometry: KVGeometry
    slot: SlotLayout
    block_size: int
    quant_start: int
    quant_end: int
    first_layer: int = 0

    @classmethod
    def for_tensor(
        cls, shape: torch.Size, dtype: torch.dtype, rule: TensorRule, block_size: int
    ) -> "PayloadLayout":
        """Lay out the payload of a tensor.

        Args:
            shape: Shape of the tensor.
            dtype: Its element type.
            rule: What the tensor means and how it is quantised.
            block_size: Tokens that slots are padded to a multiple of.

        Returns:
            The payload's layout.

        Raises:
            ValueError: If the tensor is not one that ``rule`` describes.
        """
        geometry = geometry_of(shape, dtype, rule)
        num_layers = geometry.num_layers
        quant_start = quant_end = num_layers
        if not geometry.is_opaque:
            quant_start = min(rule.skip_first_layers, num_layers)
            quant_end = max(quant_start, num_layers - rule.skip_last_layers)
        preset, is_latent = rule.preset_bits, geometry.kv_layout == "latent"
        is_calibrated = (
            preset.is_calibrated and geometry.num_tokens >= MIN_CALIBRATED_TOKENS
        )
        has_rotary = is_calibrated and not is_latent
        slot = SlotLayout.for_preset(
            preset,
            geometry.key_dim,
            geometry.value_dim,
            keys_only=is_latent,
            is_calibrated=is_calibrated and not geometry.is_opaque,
            rope_theta=_float32(rule.rope_theta) if has_rotary else 0.0,
        )
        return cls(
            preset=rule.preset,
            shape=shape,
            dtype=dtype,
            geometry=geometry,
            slot=slot,
            block_size=block_size,
            quant_start=quant_start,
            quant_end=quant_end,
        )

    @cached_property
    def quantises(self) -> bool:
        """Whether the payload holds any slot."""
        return math.prod(self.compressed_shape) > 0

    @cached_property
    def raw_layers(self) -> tuple[slice, slice]:
        """Layers stored raw: those before and those after the compressed ones."""
        return (
            slice(0, self.quant_start),
            slice(self.quant_end, self.geometry.num_layers),
        )

    @cached_property
    def raw_layer_bytes(self) -> int:
        """Bytes of keys and values of one raw layer."""
        itemsize = 1 if self.geometry.is_opaque else self.dtype.itemsize
        return self.geometry.layer_elements * itemsize

    @cached_property
    def raw_spans(self) -> tuple[slice, slice]:
        """Byte ranges of the raw groups, in the order of ``raw_layers``."""
        return (
            slice(0, self.compressed_span.start),
            slice(self.compressed_span.stop, self.payload_bytes),
        )

    @cached_property
    def compressed_shape(self) -> tuple[int, int, int, int]:
        """Shape of the slots: ``[layers, padded tokens, heads, slot bytes]``."""
        num_blocks = math.ceil(self.geometry.num_tokens / self.block_size)
        return (
            self.quant_end - self.quant_start,
            num_blocks * self.block_size,
            self.geometry.num_heads,
            self.slot.slot_bytes,
        )

    @cached_property
    def side_table(self) -> SideTableLayout:
        """Layout of the side table; it has no bytes where nothing is calibrated."""
        tokens_per_row = max(TOKENS_PER_KEPT_ROW, self.geometry.key_dim)
        return SideTableLayout(
            num_layers=self.quant_end - self.quant_start,
            num_heads=self.geometry.num_heads,
            num_kept=max(1, self.geometry.num_tokens // tokens_per_row),
            fields=self.slot.calibrated_fields,
        )

    @cached_property
    def side_table_span(self) -> slice:
        """Byte range of the side table."""
        start = self.quant_start * self.raw_layer_bytes
        return slice(start, start + self.side_table.num_bytes)

    @cached_property
    def slots_span(self) -> slice:
        """Byte range of the slots."""
        start = self.side_table_span.stop
        return slice(start, start + math.prod(self.compressed_shape))

    @cached_property
    def compressed_span(self) -> slice:
        """Byte range of the compressed layers."""
        return slice(self.side_table_span.start, self.slots_span.stop)

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of the whole payload."""
        trailing_layers = self.geometry.num_layers - self.quant_end
        return self.compressed_span.stop + trailing_layers * self.raw_layer_bytes


def layouts_of(
    description: MemoryLayoutDesc, config: TurboQuantSerdeConfig
) -> tuple[PayloadLayout, ...]:
    """Lay out the payloads of a memory object, one after another.

    Args:
        description: Shapes and dtypes of the object's tensors, and what LMCache
            declares of them, which fills in what the configuration leaves open.
        config: What the serde does with them.

    Returns:
        The layouts, in the order of the tensors.

    Raises:
        ValueError: If the object holds another number of tensors than the
            configuration has groups, or one that its rule does not describe.
    """
    tensors = list(zip(description.shapes, description.dtypes, strict=True))
    rules = config.groups or (config,) * len(tensors)
    if len(rules) != len(tensors):
        shapes = [tuple(shape) for shape in description.shapes]
        raise ValueError(
            f"TurboQuant setting groups has rules for {len(rules)} tensors, the "
            f"memory object holds {len(tensors)}: {shapes}"
        )
    formats = description.tensor_formats or (None,) * len(tensors)
    block_size = 1 if config.framed else config.block_size
    return tuple(
        PayloadLayout.for_tensor(
            torch.Size(shape), dtype, resolved_rule(rule, tensor_format), block_size
        )
        for (shape, dtype), rule, tensor_format in zip(
            tensors, rules, formats, strict=True
        )
    )


def _float32(number: float) -> float:
    """Round to what a header holds."""
    return torch.tensor(number, dtype=torch.float32).item()
