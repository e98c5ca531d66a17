# SPDX-License-Identifier: Apache-2.0
"""One KV cache through LMCache under several serdes, each measured the same way."""

# Standard
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

# Third Party
import torch

# First Party
from kv_cache import KVCache
from kv_store import KVStore, LoadedChunks, StoredChunks
from l2_bytes import BytesSource
from language_model import LanguageModel
from lmcache.v1.distributed.serde import SerdeConfig
from quality import agreement, perplexity, relative_error
from storage_config import parse_l2_adapter

CHUNK_TOKENS = 256
REPEATS = 3
STEPS_PER_SCHEME = REPEATS + 2


@dataclass(frozen=True)
class Scheme:
    """One row of the comparison.

    Attributes:
        name: What the row is called.
        serde: What L2 applies to a chunk; None stores it as it is.
        raw_layers: How many layers the serde keeps as they are.
    """

    name: str
    serde: SerdeConfig | None
    raw_layers: int = 0


@dataclass(frozen=True)
class Passage:
    """A text in three parts.

    Attributes:
        context: Tokens whose KV is cached.
        reading: Tokens that the model reads from the restored cache.
        targets: The token that really follows each of ``reading``.
    """

    context: torch.Tensor
    reading: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def from_tokens(
        cls, token_ids: torch.Tensor, num_context: int, num_reading: int
    ) -> "Passage":
        """Cut a passage from the start of a text.

        Args:
            token_ids: The text, ``[tokens]``.
            num_context: Tokens to cache.
            num_reading: Tokens to read on.

        Returns:
            The passage.

        Raises:
            ValueError: If the text is too short.
        """
        end = num_context + num_reading
        if len(token_ids) <= end:
            raise ValueError(
                f"expected a text of more than {end} tokens, got {len(token_ids)}"
            )
        return cls(
            context=token_ids[:num_context],
            reading=token_ids[num_context:end],
            targets=token_ids[num_context + 1 : end + 1],
        )


@dataclass(frozen=True)
class Row:
    """What one scheme cost and what it lost.

    Attributes:
        scheme: What was applied.
        raw_bytes: Bytes of the chunks as the model hands them over.
        stored_bytes: Bytes of the same chunks in L2; None if nobody can tell.
        bytes_source: Who counted ``stored_bytes``.
        store_seconds: Median time from finish_write to L2.
        load_seconds: Median time from prefetch to restored chunks in L1.
        key_error: Relative error of all restored keys.
        value_error: Relative error of all restored values.
        perplexity: Perplexity of the passage's targets from the restored cache.
        agreement: Share of the exact cache's next tokens that stay the same.
    """

    scheme: Scheme
    raw_bytes: int
    stored_bytes: int | None
    bytes_source: BytesSource
    store_seconds: float
    load_seconds: float
    key_error: float
    value_error: float
    perplexity: float
    agreement: float

    @property
    def ratio(self) -> float | None:
        """Raw bytes over stored bytes; None if the latter are unknown."""
        return None if self.stored_bytes is None else self.raw_bytes / self.stored_bytes


def split_chunks(kv: torch.Tensor) -> list[torch.Tensor]:
    """Cut a KV tensor into the chunks that LMCache stores.

    Args:
        kv: ``[2, layers, tokens, hidden]``.

    Returns:
        Contiguous ``[2, layers, CHUNK_TOKENS, hidden]`` tensors on the CPU.

    Raises:
        ValueError: If the tokens do not fill whole chunks.
    """
    if kv.shape[2] == 0 or kv.shape[2] % CHUNK_TOKENS:
        raise ValueError(
            f"expected a positive multiple of {CHUNK_TOKENS} tokens, got {kv.shape[2]}"
        )
    return [chunk.contiguous().cpu() for chunk in kv.split(CHUNK_TOKENS, dim=2)]


def merge_chunks(chunks: list[torch.Tensor]) -> torch.Tensor:
    """Join chunks again; the inverse of :func:`split_chunks`.

    Args:
        chunks: In the order of their tokens.

    Returns:
        ``[2, layers, tokens, hidden]``.
    """
    return torch.cat(chunks, dim=2)


class Comparison:
    """Measures schemes against the exact cache of one passage.

    Attributes:
        model: Who reads.
        num_reading: Tokens that are read from a restored cache.
        cache: The cache that is stored, in the type that is stored.
        exact_perplexity: Perplexity with the model's own, never stored cache.
    """

    def __init__(
        self, model: LanguageModel, passage: Passage, dtype: torch.dtype
    ) -> None:
        """Prefill the passage.

        Args:
            model: Who reads.
            passage: What is read.
            dtype: Type of the chunks that go into LMCache.

        Raises:
            ValueError: If the model's cache does not have LMCache's split layout.
        """
        exact = model.prefill(passage.context)
        self.model = model
        self.num_reading = len(passage.reading)
        self._passage = passage
        self._exact_logits = model.read_on(exact, passage.reading)
        self.exact_perplexity = perplexity(self._exact_logits, passage.targets)
        self.cache = KVCache(exact.kv.to(dtype).cpu(), exact.head_dim)

    def measure(
        self, scheme: Scheme, l2_adapter: str, on_step: Callable[[str], None]
    ) -> Row:
        """Send the cache through LMCache under one scheme and read on from it.

        Args:
            scheme: The serde to apply.
            l2_adapter: JSON of the adapter, its own serde ignored.
            on_step: Called with what comes next, ``STEPS_PER_SCHEME`` times.

        Returns:
            The row.

        Raises:
            ValueError: If LMCache refuses the adapter or the serde.
            KVStoreError: If LMCache fails to store or load.
        """
        rounds = self._rounds(scheme, l2_adapter, on_step)
        on_step("read on")
        stored, loaded = rounds[-1]
        restored = KVCache(merge_chunks(loaded.chunks), self.cache.head_dim)
        logits = self.model.read_on(restored, self._passage.reading)
        return Row(
            scheme=scheme,
            raw_bytes=self.cache.kv.nbytes,
            stored_bytes=stored.num_bytes,
            bytes_source=stored.bytes_source,
            store_seconds=median(stored.seconds for stored, _ in rounds),
            load_seconds=median(loaded.seconds for _, loaded in rounds),
            key_error=relative_error(self.cache.kv[0], restored.kv[0]),
            value_error=relative_error(self.cache.kv[1], restored.kv[1]),
            perplexity=perplexity(logits, self._passage.targets),
            agreement=agreement(logits, self._exact_logits),
        )

    def _rounds(
        self, scheme: Scheme, l2_adapter: str, on_step: Callable[[str], None]
    ) -> list[tuple[StoredChunks, LoadedChunks]]:
        """Store and load the cache once to warm up, then ``REPEATS`` times."""
        chunks = split_chunks(self.cache.kv)
        adapter = parse_l2_adapter(l2_adapter)
        adapter.serde_config = scheme.serde
        rounds = []
        with KVStore(
            adapter, chunks[0].shape, self.cache.kv.dtype, len(chunks)
        ) as store:
            for repeat in range(REPEATS + 1):
                on_step(f"store, load {repeat}/{REPEATS}" if repeat else "warm up")
                stored = store.store(chunks)
                rounds.append((stored, store.load(stored)))
                store.delete(stored)
        return rounds[1:]
