# SPDX-License-Identifier: Apache-2.0
"""Sends real KV through schemes under conditions and measures what is left of it."""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.conditions import Condition
from benchmarks.turboquant.quality.measures import (
    divergence,
    layer_errors,
    surprise,
    varying_part,
)
from benchmarks.turboquant.quality.schemes import Scheme
from benchmarks.turboquant.quality.windows import Window
from comparison import merge_chunks, split_chunks
from kv_cache import KVCache
from language_model import LanguageModel
from quality import agreement


@dataclass(frozen=True)
class RestoredCache:
    """A cache after its round trip.

    Attributes:
        cache: As the model reads it, without the bias; float32.
        payload_bytes: What storage held.
        raw_bytes: What it would have held without a serde.
    """

    cache: KVCache
    payload_bytes: int
    raw_bytes: int


@dataclass(frozen=True)
class Measurement:
    """One scheme under one condition on one window.

    Attributes:
        bits: Stored bits an element, frame included.
        ratio: Raw bytes over stored bytes.
        divergence: Of the predictions from the exact cache's, in nats.
        surprise: Mean negative log likelihood of the continuation, in nats.
        agreement: Share of next tokens that stay the exact cache's.
        key_errors: By layer, over the norm of what the codec was given.
        varying_key_errors: The same over the norm of what varies between tokens.
        value_errors: By layer, over the norm of the values.
        logit_errors: By layer, in nats; see :meth:`LayerAttention.errors`.
        output_errors: By layer, over the norm of the attention output.
    """

    condition: str
    scheme: str
    window: str
    bits: float
    ratio: float
    divergence: float
    surprise: float
    agreement: float
    key_errors: list[float]
    varying_key_errors: list[float]
    value_errors: list[float]
    logit_errors: list[float]
    output_errors: list[float]


class Laboratory:
    """Measures schemes on one model.

    Args:
        model: Who reads.
        dtype: Type of the chunks that are stored.
        biased_like: ``[layers, tokens, hidden]`` keys that set the size of biases.
    """

    def __init__(
        self, model: LanguageModel, dtype: torch.dtype, biased_like: torch.Tensor
    ) -> None:
        self.model = model
        self._dtype = dtype
        self._biased_like = biased_like

    def given(self, cache: KVCache, condition: Condition) -> torch.Tensor:
        """Return what a codec is given of a cache, in the type that is stored.

        Args:
            cache: The model's own.
            condition: What is added to its keys.

        Returns:
            ``[2, layers, tokens, hidden]``.

        Raises:
            ValueError: If the type does not hold the numbers.
        """
        kv = cache.kv.clone()
        kv[0] += condition.bias(self._biased_like, cache.head_dim)
        stored = kv.to(self._dtype)
        if not stored.isfinite().all():
            raise ValueError(
                f"{self._dtype} does not hold this cache's largest number, "
                f"{float(kv.abs().max()):.4g}; choose another with --dtype"
            )
        return stored

    def restore(
        self, cache: KVCache, condition: Condition, scheme: Scheme
    ) -> RestoredCache:
        """Send a cache through a scheme, chunk by chunk.

        Args:
            cache: The model's own.
            condition: What is added to its keys, and taken off again.
            scheme: What stores them.

        Returns:
            What comes back.
        """
        chunks = split_chunks(self.given(cache, condition))
        restored = [scheme.round_trip(chunk) for chunk in chunks]
        kv = merge_chunks([each.chunk for each in restored]).float()
        kv[0] -= condition.bias(self._biased_like, cache.head_dim)
        return RestoredCache(
            KVCache(kv, cache.head_dim),
            payload_bytes=sum(each.payload_bytes for each in restored),
            raw_bytes=sum(chunk.nbytes for chunk in chunks),
        )

    def measure(
        self, window: Window, condition: Condition, schemes: Sequence[Scheme]
    ) -> list[Measurement]:
        """Restore a window's cache and let the model read on from it.

        Args:
            window: What was captured.
            condition: What is added to its keys.
            schemes: What stores them; one pass of the model reads after all.

        Returns:
            The measurements, in the order of the schemes.
        """
        restored = [self.restore(window.cache, condition, each) for each in schemes]
        caches = [each.cache for each in restored]
        logits = self.model.read_on_each(caches, window.passage.reading).cpu()
        return [
            self._compare(window, condition, *each)
            for each in zip(schemes, restored, logits, strict=True)
        ]

    def _compare(
        self,
        window: Window,
        condition: Condition,
        scheme: Scheme,
        restored: RestoredCache,
        logits: torch.Tensor,
    ) -> Measurement:
        """Compare a restored cache and its predictions with the exact ones."""
        exact = window.cache
        (keys, values), (own_keys, own_values) = restored.cache.kv, exact.kv
        given = own_keys + condition.bias(self._biased_like, exact.head_dim)
        sides = restored.cache.kv.transpose(0, 1)
        attention = [
            layer.errors(*(_heads(side, exact.head_dim) for side in own))
            for layer, own in zip(window.attention, sides, strict=True)
        ]
        return Measurement(
            condition=condition.name,
            scheme=scheme.name,
            window=window.name,
            bits=8 * restored.payload_bytes / exact.kv.numel(),
            ratio=restored.raw_bytes / restored.payload_bytes,
            divergence=divergence(logits, window.logits),
            surprise=surprise(logits, window.passage.targets),
            agreement=agreement(logits, window.logits),
            key_errors=layer_errors(own_keys, keys, given),
            varying_key_errors=layer_errors(own_keys, keys, varying_part(own_keys)),
            value_errors=layer_errors(own_values, values, own_values),
            logit_errors=[logit for logit, _ in attention],
            output_errors=[output for _, output in attention],
        )


def _heads(side: torch.Tensor, head_dim: int) -> torch.Tensor:
    """``[tokens, heads * head_dim]`` to ``[heads, tokens, head_dim]``."""
    return side.unflatten(1, (-1, head_dim)).transpose(0, 1)
