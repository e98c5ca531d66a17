# SPDX-License-Identifier: Apache-2.0
"""What the model caches of a passage and makes of it, and of other caches."""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.measures import divergence
from benchmarks.turboquant.quality.windows import own_cache
from comparison import Passage
from kv_cache import KVCache
from language_model import LanguageModel

_CACHES_AT_A_TIME = 6


@dataclass(frozen=True)
class Window:
    """One passage.

    Attributes:
        model: Who reads.
        name: Text and position.
        passage: The tokens.
        cache: What is stored of the context: float32 numbers of float16's precision.
        logits: Predictions from the model's own cache, ``[reading, vocabulary]``.
    """

    model: LanguageModel
    name: str
    passage: Passage
    cache: KVCache
    logits: torch.Tensor

    @classmethod
    def read(cls, model: LanguageModel, name: str, passage: Passage) -> "Window":
        """Let a model read a passage."""
        own = own_cache(model, passage.context)
        logits = model.read_on(own, passage.reading).cpu()
        stored = KVCache(own.kv.half().float(), own.head_dim)
        return cls(model, name, passage, stored, logits)

    def divergences(self, restored: Sequence[torch.Tensor]) -> list[float]:
        """Let the model read on from caches of the shape of this one's.

        Args:
            restored: ``[2, layers, tokens, hidden]`` each.

        Returns:
            The divergence of the predictions of each, in nats.
        """
        found = []
        for start in range(0, len(restored), _CACHES_AT_A_TIME):
            part = restored[start : start + _CACHES_AT_A_TIME]
            caches = [KVCache(kv, self.cache.head_dim) for kv in part]
            logits = self.model.read_on_each(caches, self.passage.reading).cpu()
            found += [divergence(each, self.logits) for each in logits]
        return found
