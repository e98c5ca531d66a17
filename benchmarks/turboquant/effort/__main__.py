# SPDX-License-Identifier: Apache-2.0
"""What each effort does to a real model, as it is and with biased keys.

Prints CSV: the KL divergence of the model's next-token distributions, with a
restored cache, from those with the exact cache.
"""

# Standard
from argparse import ArgumentParser
from itertools import product
from pathlib import Path
import csv
import sys

# Third Party
import torch

# First Party
from language_model import KVCache, LanguageModel
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantCodec,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS

CHUNK_TOKENS = 256
READ_TOKENS = 128
FEW_CHANNELS = 4
SKIPS = (0, 2)
STRENGTHS = (5, 20, 60)
BIASES = [("none", 0), *product(("spread", "few"), STRENGTHS)]
"""Shape, and strength in medians of the layer's and head's absolute keys."""


def key_bias(keys: torch.Tensor, shape: str, strength: int) -> torch.Tensor:
    """Draw a bias for each layer and head.

    Args:
        keys: ``[layers, tokens, heads, dim]``.
        shape: ``spread``: normal in every channel; ``few``: plus or minus one in
            ``FEW_CHANNELS`` of them; ``none``.
        strength: Factor, times the median of the absolute keys.

    Returns:
        float32 ``[layers, 1, heads, dim]``.
    """
    generator = torch.Generator().manual_seed(0)
    medians = keys.abs().transpose(1, 2).flatten(2).median(dim=2).values
    bias = torch.randn(keys[:, :1].shape, generator=generator)
    if shape != "spread":
        order = torch.rand(bias.shape, generator=generator).argsort(dim=-1)
        bias = bias.sign() * (order < FEW_CHANNELS)
    return bias * medians[:, None, :, None] * strength


def restored(kv: torch.Tensor, config: TurboQuantSerdeConfig) -> torch.Tensor:
    """Send chunks of a cache through the codec.

    Args:
        kv: ``[2, layers, tokens, hidden]``.
        config: The codec's configuration.

    Returns:
        What comes back, of the same shape.
    """
    codec = TurboQuantCodec(config)
    chunks = kv.split(CHUNK_TOKENS, dim=2)
    payloads = [codec.to_bytes(chunk.contiguous()) for chunk in chunks]
    return torch.cat([TurboQuantCodec.from_bytes(x) for x in payloads], dim=2)


def divergence(logits: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the mean KL divergence from the exact distributions."""
    log_p, log_q = exact.log_softmax(dim=-1), logits.log_softmax(dim=-1)
    return float((log_p.exp() * (log_p - log_q)).sum(dim=-1).mean())


def measure(model: LanguageModel, tokens: torch.Tensor, num_context: int) -> None:
    """Print a line for every bias, skip, preset and effort."""
    context, reading = tokens[:num_context], tokens[num_context:]
    cache = model.prefill(context)
    exact = model.read_on(cache, reading)
    keys = cache.kv[0].unflatten(-1, (-1, cache.head_dim))
    lines = csv.writer(sys.stdout)
    for (shape, strength), skip, preset in product(BIASES, SKIPS, PRESETS):
        bias = key_bias(keys, shape, strength).flatten(2)
        biased = torch.stack([cache.kv[0] + bias, cache.kv[1]])
        for effort in EFFORTS:
            config = TurboQuantSerdeConfig(
                preset=preset,
                head_dim=cache.head_dim,
                skip_first_layers=skip,
                skip_last_layers=skip,
                effort=effort,
            )
            kv = restored(biased, config)
            kv[0] -= bias
            logits = model.read_on(KVCache(kv, cache.head_dim), reading)
            kl = divergence(logits, exact)
            lines.writerow((shape, strength, skip, preset, effort, f"{kl:.6f}"))
            sys.stdout.flush()


def main() -> None:
    """Measure one model on one text."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="A .gguf file or a folder.")
    parser.add_argument("text", type=Path, help="A long text.")
    parser.add_argument("--start", type=int, default=20_000, help="First character.")
    parser.add_argument("--context", type=int, default=512, help="Tokens cached.")
    args = parser.parse_args()
    model = LanguageModel.load(args.model, torch.device("cpu"))
    text = args.text.read_text(errors="ignore")[args.start :][: 40 * args.context]
    tokens = model.encode(text)[: args.context + READ_TOKENS]
    measure(model, tokens, args.context)


if __name__ == "__main__":
    main()
