# SPDX-License-Identifier: Apache-2.0
"""A causal language model whose KV cache can be taken out and put back.

The cache leaves in LMCache's split layout, ``[2, layers, tokens, heads * head_dim]``
with keys first, and the model reads on from any tensor of that layout.
"""

# Standard
from collections.abc import Sequence
from pathlib import Path
import inspect

# Third Party
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import ModelOutput
import torch

# First Party
from kv_cache import KVCache

_SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}


class LanguageModel:
    """A transformers model that prefills text and reads on from a given cache."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str
    ) -> None:
        """Wrap a loaded model.

        Args:
            model: A decoder whose layers are all softmax attention.
            tokenizer: The tokenizer of that model.
            name: What reports call the model.

        Raises:
            ValueError: If a layer keeps something other than keys and values.
        """
        config = model.config.get_text_config()
        layer_types = set(getattr(config, "layer_types", None) or ())
        if layer_types - _SUPPORTED_LAYER_TYPES:
            raise ValueError(
                f"{name}: expected layers of {sorted(_SUPPORTED_LAYER_TYPES)}, "
                f"got {sorted(layer_types)}"
            )
        self.name = name
        self.max_tokens: int | None = getattr(config, "max_position_embeddings", None)
        rotary = getattr(config, "rope_parameters", None) or {}
        self.rope_theta = float(rotary.get("rope_theta", 0.0))
        self._model = model.eval()
        self._tokenizer = tokenizer
        # transformers 5.24 renamed the argument that carries the cache.
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(cls, path: Path, device: torch.device) -> "LanguageModel":
        """Load a model from local files.

        Args:
            path: A folder with transformers weights, or a ``.gguf`` file.
            device: Where the model runs. On a CPU the weights become float32; on an
                accelerator they keep the type they were saved in.

        Returns:
            The model, ready to prefill.

        Raises:
            ValueError: If ``path`` is neither, or holds no causal language model.
            OSError: If a file is missing or unreadable.
        """
        if path.is_file() and path.suffix == ".gguf":
            folder, source = path.parent, {"gguf_file": path.name}
        elif (path / "config.json").is_file():
            folder, source = path, {}
        else:
            raise ValueError(
                f"expected a .gguf file or a folder with config.json, got {path}"
            )
        saved_type_is_usable = not source and device.type != "cpu"
        tokenizer = AutoTokenizer.from_pretrained(folder, **source)
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto" if saved_type_is_usable else torch.float32, **source
        )
        name = path.stem if source else path.resolve().name
        return cls(model.to(device), tokenizer, name)  # type: ignore[arg-type]

    @property
    def network(self) -> PreTrainedModel:
        """The transformers model itself."""
        return self._model

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._model.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights, and of the cache before it is stored."""
        return self._model.dtype

    def encode(self, text: str) -> torch.Tensor:
        """Turn text into token ids.

        Args:
            text: Any text.

        Returns:
            Token ids, ``[tokens]``.
        """
        encoded = self._tokenizer(text, return_tensors="pt", verbose=False)
        return encoded.input_ids[0]

    @torch.inference_mode()
    def prefill(self, token_ids: torch.Tensor) -> KVCache:
        """Read tokens from the start and take out what attention keeps of them.

        Args:
            token_ids: ``[tokens]``.

        Returns:
            The cache of all layers, in the model's own type and on its device.

        Raises:
            ValueError: If the layers do not all keep keys and values of one shape.
        """
        # Without a config every layer keeps every token, sliding windows included.
        cache = DynamicCache()
        self._forward(self._model.base_model, token_ids[None], cache)
        tensors = [
            tensor
            for layer in cache.layers
            for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None))
            if isinstance(tensor, torch.Tensor)
        ]
        shapes = {tuple(tensor.shape) for tensor in tensors}
        if len(tensors) != 2 * len(cache.layers) or len(shapes) != 1:
            raise ValueError(
                f"{self.name}: expected keys and values of one shape in each of "
                f"{len(cache.layers)} layers, got {len(tensors)} tensors of shapes "
                f"{sorted(shapes)}"
            )
        merged = torch.stack([_merge_heads(tensor) for tensor in tensors])
        kv = merged.unflatten(0, (-1, 2)).transpose(0, 1)
        return KVCache(kv, head_dim=tensors[0].shape[-1])

    def read_on(self, cache: KVCache, token_ids: torch.Tensor) -> torch.Tensor:
        """Feed the tokens that follow a cached text.

        Args:
            cache: What the model remembers; it is left as it is.
            token_ids: The true next tokens, ``[tokens]``.

        Returns:
            After each of them the logits of its successor, ``[tokens, vocabulary]``,
            float32.
        """
        return self.read_on_each([cache], token_ids)[0]

    @torch.inference_mode()
    def read_on_each(
        self, caches: Sequence[KVCache], token_ids: torch.Tensor
    ) -> torch.Tensor:
        """Feed the same tokens after each of several caches, in one pass.

        Args:
            caches: What the model remembers, of one shape.
            token_ids: The true next tokens, ``[tokens]``.

        Returns:
            Logits as of :meth:`read_on`, ``[caches, tokens, vocabulary]``.
        """
        kv = torch.stack([cache.kv for cache in caches], dim=2)
        kv = kv.to(self.device, self.dtype)
        restored = DynamicCache()
        for layer in range(kv.shape[1]):
            keys, values = (
                _split_heads(side, caches[0].head_dim) for side in kv[:, layer]
            )
            restored.update(keys, values, layer)
        sequences = token_ids.expand(len(caches), -1)
        output = self._forward(self._model, sequences, restored, kv.shape[3])
        return output["logits"].float()

    def _forward(
        self,
        module: torch.nn.Module,
        token_ids: torch.Tensor,
        cache: DynamicCache,
        position: int = 0,
    ) -> ModelOutput:
        """Run ``module`` on ``[sequences, tokens]``; ``cache`` grows in place."""
        positions = torch.arange(position, position + token_ids.shape[1])
        return module(
            input_ids=token_ids.to(self.device),
            position_ids=positions[None].to(self.device),
            use_cache=True,
            **{self._cache_argument: cache},
        )


def _merge_heads(tensor: torch.Tensor) -> torch.Tensor:
    """``[1, heads, tokens, head_dim]`` to ``[tokens, heads * head_dim]``."""
    return tensor[0].transpose(0, 1).flatten(1)


def _split_heads(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """``[n, tokens, heads * head_dim]`` to ``[n, heads, tokens, head_dim]``."""
    return tensor.unflatten(2, (-1, head_dim)).transpose(1, 2)
