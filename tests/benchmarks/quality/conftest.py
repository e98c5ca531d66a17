# SPDX-License-Identifier: Apache-2.0
"""A tiny model with sliding windows and heads of 256, measured once."""

# Standard
from pathlib import Path
import os
import sys

# Third Party
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    PreTrainedTokenizerFast,
)
import pytest
import torch

os.environ["LMCACHE_TRACK_USAGE"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
REPOSITORY = Path(__file__).parents[3]
sys.path.insert(0, str(REPOSITORY / "examples" / "serde" / "turboquant"))

# First Party
from benchmarks.turboquant.quality.bench import Bench, Setup  # noqa: E402
from benchmarks.turboquant.quality.plan import Plan  # noqa: E402
from benchmarks.turboquant.quality.run import Results, run  # noqa: E402
from language_model import LanguageModel  # noqa: E402

HEAD_DIM = 256
LAYERS = 6
SLIDING_WINDOW = 48
CHARACTERS = 128

TINY = Plan(
    context=256,
    reading=16,
    windows=2,
    biased_windows=1,
    strengths=(20,),
    haystacks=(512,),
    depths=(0.5,),
    crowded=1,
    upstream_tokens=2,
)


@pytest.fixture(scope="session")
def gemma_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Gemma 3 whose tokens are ASCII characters."""
    folder = tmp_path_factory.mktemp("model") / "tiny-gemma"
    torch.manual_seed(5)
    config = Gemma3TextConfig(
        vocab_size=CHARACTERS,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        query_pre_attn_scalar=HEAD_DIM,
        sliding_window=SLIDING_WINDOW,
        layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
        max_position_embeddings=1024,
        initializer_range=0.2,
    )
    Gemma3ForCausalLM(config).save_pretrained(folder)
    characters = {chr(code): code for code in range(CHARACTERS)}
    tokenizer = Tokenizer(models.BPE(characters, [], unk_token=chr(0)))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(gemma_folder: Path) -> LanguageModel:
    """That model, loaded as a user's would be."""
    return LanguageModel.load(gemma_folder, torch.device("cpu"))


@pytest.fixture(scope="session")
def texts() -> dict[str, str]:
    """A text of random words."""
    generator = torch.Generator().manual_seed(6)
    codes = torch.randint(97, 123, (1000, 7), generator=generator)
    return {"letters": " ".join("".join(map(chr, word)) for word in codes.tolist())}


@pytest.fixture(scope="session")
def bench(gemma_folder: Path, texts: dict[str, str]) -> Bench:
    """What a run on that model measures with."""
    return Bench(
        Setup(
            model=gemma_folder,
            model_device=torch.device("cpu"),
            serde_device="cpu",
            threads=torch.get_num_threads(),
            texts=texts,
            plan=TINY,
            dtype=torch.float16,
        )
    )


@pytest.fixture(scope="session")
def results(bench: Bench) -> Results:
    """A whole run, in small."""
    return run(bench)
