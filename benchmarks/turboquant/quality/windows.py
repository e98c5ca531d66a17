# SPDX-License-Identifier: Apache-2.0
"""What a model caches and predicts without any codec, captured once."""

# Standard
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.attention import AttentionRecorder, LayerAttention
from comparison import CHUNK_TOKENS, Passage
from kv_cache import KVCache
from language_model import LanguageModel


@dataclass(frozen=True)
class Window:
    """One passage, cached and read on from.

    Attributes:
        name: Text and position.
        passage: The tokens.
        cache: The model's own cache of the context, float32 on the CPU.
        logits: Predictions from it, ``[reading, vocabulary]``.
        attention: What each layer read meanwhile.
    """

    name: str
    passage: Passage
    cache: KVCache
    logits: torch.Tensor
    attention: list[LayerAttention]


def passages(
    model: LanguageModel, texts: Mapping[str, str], context: int, reading: int
) -> Iterator[tuple[str, Passage]]:
    """Cut passages from texts in turn, as many as there are.

    Args:
        model: Whose tokens to count.
        texts: Texts by name.
        context: Tokens to cache.
        reading: Tokens to read on.

    Yields:
        Name and passage: the first of each text, then the second of each.

    Raises:
        ValueError: If ``context`` is not a positive multiple of a chunk's tokens, or
            the model does not read that many tokens.
    """
    size = context + reading
    if context <= 0 or context % CHUNK_TOKENS:
        raise ValueError(
            f"expected a positive multiple of {CHUNK_TOKENS} tokens, got {context}"
        )
    if model.max_tokens is not None and size > model.max_tokens:
        raise ValueError(f"{model.name} reads {model.max_tokens} tokens, got {size}")
    tokens = {name: model.encode(text) for name, text in texts.items()}
    longest = max(map(len, tokens.values()))
    for start in range(0, longest - size, size):
        for name, token_ids in tokens.items():
            if start + size < len(token_ids):
                passage = Passage.from_tokens(token_ids[start:], context, reading)
                yield f"{name}@{start}", passage


def capture(
    model: LanguageModel, recorder: AttentionRecorder, name: str, passage: Passage
) -> Window:
    """Let the model read a passage with its own cache.

    Args:
        model: Who reads.
        recorder: Its recorder.
        name: What to call the window.
        passage: What to read.

    Returns:
        The window.
    """
    cache = own_cache(model, passage.context)
    logits, attention = recorder.read_on(cache, passage.reading)
    return Window(name, passage, cache, logits.cpu(), attention)


def own_cache(model: LanguageModel, token_ids: torch.Tensor) -> KVCache:
    """Return what a model caches of a text, as float32 on the CPU."""
    own = model.prefill(token_ids)
    return KVCache(own.kv.float().cpu(), own.head_dim)
