# SPDX-License-Identifier: Apache-2.0
"""What attention reads, recorded in a real pass, and what a restored cache changes."""

# Standard
from dataclasses import dataclass
from typing import Any

# Third Party
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
import torch

# First Party
from kv_cache import KVCache
from language_model import LanguageModel


@dataclass(frozen=True)
class LayerAttention:
    """One layer's attention over a cached text and the tokens read after it.

    Attributes:
        queries: ``[heads, reading, head_dim]``, after the rotary embedding.
        keys: ``[kv_heads, cached + reading, head_dim]``.
        values: Of the same shape.
        visible: Which key each query may see, ``[reading, cached + reading]``.
        output: ``[reading, heads, head_dim]``.
        scaling: Factor of the logits.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    visible: torch.Tensor
    output: torch.Tensor
    scaling: float

    def errors(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[float, float]:
        """Measure what other keys and values of the cached tokens change.

        A shift of all logits of a query changes nothing, so it does not count.

        Args:
            keys: ``[kv_heads, cached, head_dim]``.
            values: Of the same shape.

        Returns:
            The root mean square error of the logits of visible cached tokens, each
            query's mean error taken off; and the error of the attention output
            over its norm.
        """
        cached = keys.shape[1]
        queries = self.queries.unflatten(0, (keys.shape[0], -1)).flatten(1, 2)
        error = queries @ (keys - self.keys[:, :cached]).mT * self.scaling
        logits = queries @ self.keys.mT * self.scaling
        logits[..., :cached] += error
        groups = len(self.queries) // len(keys)
        visible = self.visible.repeat(groups, 1)
        seen = visible[:, :cached]
        mean = (error * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(
            min=1
        )
        square = ((error - mean).square() * seen).sum() / (seen.sum() * len(keys))
        weights = logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        output = weights @ torch.cat([values, self.values[:, cached:]], dim=1)
        exact = self.output.transpose(0, 1).reshape(output.shape)
        norm = torch.linalg.vector_norm
        return float(square.sqrt()), float(norm(output - exact) / norm(exact))


class AttentionRecorder:
    """Lets a model attend as ever, and records what attention reads on request.

    Args:
        model: Whose attention to record, from now on by torch's own attention.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._records: list[LayerAttention] | None = None
        name = f"recorded_{id(self)}"
        AttentionInterface.register(name, self._attend)
        AttentionMaskInterface.register(name, sdpa_mask)
        model.network.set_attn_implementation(name)

    def read_on(
        self, cache: KVCache, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, list[LayerAttention]]:
        """Let the model read on, and record every layer.

        Args:
            cache: What the model remembers.
            token_ids: The true next tokens, ``[tokens]``.

        Returns:
            What :meth:`LanguageModel.read_on` returns, and the layers in order.
        """
        records: list[LayerAttention] = []
        self._records = records
        try:
            return self._model.read_on(cache, token_ids), records
        finally:
            self._records = None

    def _attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend, as an attention function of transformers does."""
        output, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        if self._records is not None:
            reading, tokens = query.shape[2], key.shape[2]
            everything = torch.ones(reading, tokens, dtype=torch.bool)
            visible = everything.tril(tokens - reading)
            if attention_mask is not None:
                visible = attention_mask[0, 0, :, :tokens].cpu()
            self._records.append(
                LayerAttention(
                    queries=query[0].float().cpu(),
                    keys=key[0].float().cpu(),
                    values=value[0].float().cpu(),
                    visible=visible,
                    output=output[0].float().cpu(),
                    scaling=kwargs["scaling"],
                )
            )
        return output, None
