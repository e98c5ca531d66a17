# SPDX-License-Identifier: Apache-2.0
"""A tiny random model on disk, and the path to the example's modules."""

# Standard
from pathlib import Path
import os
import sys

# Third Party
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "serde" / "turboquant"
NUM_LAYERS = 5
NUM_HEADS = 2
HEAD_DIM = 64
NUM_WORDS = 64

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(EXAMPLE))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random 5-layer model whose tokens are the words w0 to w63."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=NUM_WORDS,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=NUM_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=2048,
        # Large enough that attention and predictions are not uniform.
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{index}": index for index in range(NUM_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 700 random words that the model knows."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(NUM_WORDS, (700,), generator=generator)
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(f"w{index}" for index in ids.tolist()))
    return path
