# SPDX-License-Identifier: Apache-2.0
"""A cache that is taken out and put back predicts what the model predicts itself."""

# Standard
from pathlib import Path

# Third Party
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaForCausalLM
import pytest
import torch

# First Party
from kv_cache import KVCache
from language_model import LanguageModel

CPU = torch.device("cpu")
NUM_CONTEXT, NUM_READING = 48, 16


@pytest.fixture(scope="module")
def token_ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(64, (NUM_CONTEXT + NUM_READING,), generator=generator)


def read_on(model: LanguageModel, token_ids: torch.Tensor) -> torch.Tensor:
    cache = model.prefill(token_ids[:NUM_CONTEXT])
    return model.read_on(cache, token_ids[NUM_CONTEXT:])


def test_reading_on_equals_reading_at_once(
    model_folder: Path, token_ids: torch.Tensor
) -> None:
    logits = read_on(LanguageModel.load(model_folder, CPU), token_ids)
    with torch.inference_mode():
        whole = LlamaForCausalLM.from_pretrained(model_folder)(token_ids[None]).logits
    torch.testing.assert_close(logits, whole[0, NUM_CONTEXT:], rtol=1e-4, atol=1e-4)


def test_sliding_windows_are_cached_whole(token_ids: torch.Tensor) -> None:
    torch.manual_seed(4)
    config = Gemma3TextConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        initializer_range=0.2,
    )
    network = Gemma3ForCausalLM(config)
    model = LanguageModel(network, tokenizer=None, name="gemma")  # type: ignore[arg-type]
    assert model.prefill(token_ids[:NUM_CONTEXT]).kv.shape == (2, 4, NUM_CONTEXT, 32)
    with torch.inference_mode():
        whole = network(token_ids[None]).logits[0, NUM_CONTEXT:]
    torch.testing.assert_close(read_on(model, token_ids), whole, rtol=1e-4, atol=1e-4)


def test_reading_on_leaves_the_cache_as_it_is_and_depends_on_it(
    model_folder: Path, token_ids: torch.Tensor
) -> None:
    model = LanguageModel.load(model_folder, CPU)
    cache = model.prefill(token_ids[:NUM_CONTEXT])
    before = cache.kv.clone()
    first, second = (model.read_on(cache, token_ids[NUM_CONTEXT:]) for _ in range(2))
    forgotten = KVCache(torch.zeros_like(cache.kv), cache.head_dim)
    assert torch.equal(cache.kv, before)
    assert torch.equal(first, second)
    assert not torch.allclose(
        first, model.read_on(forgotten, token_ids[NUM_CONTEXT:]), atol=0.1
    )


def test_reading_after_several_caches_is_reading_after_each(
    model_folder: Path, token_ids: torch.Tensor
) -> None:
    model = LanguageModel.load(model_folder, CPU)
    caches = [model.prefill(x) for x in token_ids[:NUM_CONTEXT].view(2, -1)]
    reading = token_ids[NUM_CONTEXT:]
    together = model.read_on_each(caches, reading)
    apart = torch.stack([model.read_on(cache, reading) for cache in caches])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(apart[0], apart[1], atol=0.1)


def test_encode_gives_the_words(model_folder: Path) -> None:
    model = LanguageModel.load(model_folder, CPU)
    assert model.encode("w3 w1 w63").tolist() == [3, 1, 63]
    assert (model.name, model.max_tokens) == ("tiny", 2048)


@pytest.mark.parametrize(
    ("shape", "head_dim", "message"),
    [
        ((1, 2, 4, 64), 64, r"expected KV as \[2, "),
        ((2, 4, 64), 64, r"expected KV as \[2, "),
        ((2, 2, 4, 64), 48, "64 is not a multiple of head_dim 48"),
        ((2, 2, 4, 64), 0, "head_dim 0"),
    ],
)
def test_cache_refuses_other_layouts(
    shape: tuple[int, ...], head_dim: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KVCache(torch.zeros(shape), head_dim)


def test_load_refuses_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a .gguf file or a folder"):
        LanguageModel.load(tmp_path, CPU)
