# SPDX-License-Identifier: Apache-2.0
"""Let vLLM answer from KV that was stored, cleared from L1 and read back from L2.

For a host with a GPU and vLLM::

    python vllm_check.py --model Qwen/Qwen3-0.6B

It starts ``lmcache server`` with the turboquant serde over files, answers the same
prompts cold, from L1 (exact KV) and from L2 (restored KV), and compares the answers.
The exit status is 0 where restored KV answers well enough, 1 where it does not, and 2
where something else is wrong.
"""

# Standard
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from os.path import commonprefix
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
import json
import os
import sys

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

# First Party
from storage_server import ServerError
from vllm_server import TurboQuantServer

Tokens = list[int]
ERROR_EXIT_CODE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check.

    Args:
        argv: Command line without the program's name; None takes the process's.

    Returns:
        The exit status.
    """
    arguments = build_parser().parse_args(argv)
    if find_spec("vllm") is None:
        print("vllm_check.py: error: needs vLLM: pip install vllm", file=sys.stderr)
        return ERROR_EXIT_CODE
    try:
        return run(arguments)
    except (ValueError, OSError, ServerError) as error:
        print(f"vllm_check.py: error: {error}", file=sys.stderr)
        return ERROR_EXIT_CODE


def build_parser() -> ArgumentParser:
    """Describe the command line."""
    parser = ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", required=True, help="name or folder, as for vLLM")
    parser.add_argument(
        "--serde",
        type=json.loads,
        default={"type": "turboquant"},
        metavar="JSON",
        help='the adapter\'s serde (default: {"type": "turboquant"})',
    )
    parser.add_argument(
        "--text",
        type=Path,
        default=Path(__file__).with_name("README.md"),
        help="UTF-8 text that the prompts are cut from (default: README.md)",
    )
    parser.add_argument("--prompts", type=int, default=4, metavar="N")
    parser.add_argument(
        "--tokens", type=int, default=1024, metavar="N", help="of a prompt (1024)"
    )
    parser.add_argument(
        "--answer", type=int, default=64, metavar="N", help="tokens to generate (64)"
    )
    parser.add_argument("--l1-size-gb", type=float, default=8.0, metavar="GB")
    parser.add_argument(
        "--least-agreement",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="mean share of an answer's tokens that must be the same up to the first "
        "that differs (0.5)",
    )
    return parser


def run(arguments: Namespace) -> int:
    """Store, clear L1, read back and compare.

    Args:
        arguments: What the user asked for.

    Returns:
        The exit status, 0 or 1.

    Raises:
        ValueError: If the text is too short.
        OSError: If the text cannot be read.
        ServerError: If LMCache's server does not start, or nothing is stored.
    """
    text = arguments.text.read_text(encoding="utf-8")
    with TemporaryDirectory(prefix="lmcache-vllm-") as folder:
        server = TurboQuantServer(Path(folder), arguments.serde, arguments.l1_size_gb)
        with server:
            return _compare(arguments, text, server)


def cut_prompts(tokens: Tokens, count: int, length: int) -> list[Tokens]:
    """Cut prompts that begin at different places.

    Args:
        tokens: A text's.
        count: How many prompts.
        length: Tokens of each.

    Returns:
        The prompts.

    Raises:
        ValueError: If the text is too short, or a number is not positive.
    """
    if count < 1 or length < 1:
        raise ValueError(f"expected prompts and tokens, got {count} of {length}")
    if len(tokens) < length + count - 1:
        raise ValueError(
            f"{count} prompts of {length} tokens need a text of {length + count - 1}, "
            f"got {len(tokens)}: see --text"
        )
    step = (len(tokens) - length) // max(count - 1, 1)
    starts = [index * step for index in range(count)]
    return [tokens[start : start + length] for start in starts]


def agreement(expected: Sequence[Tokens], got: Sequence[Tokens]) -> float:
    """Return the mean share of tokens before the first that differs.

    Args:
        expected: Answers.
        got: Answers to the same prompts.

    Returns:
        1 where all are equal.
    """
    shares = []
    for first, second in zip(expected, got, strict=True):
        longest = max(len(first), len(second))
        shares.append(len(commonprefix([first, second])) / longest if longest else 1.0)
    return mean(shares)


def _compare(arguments: Namespace, text: str, server: TurboQuantServer) -> int:
    """Answer cold, from L1 and from L2."""
    # Third Party
    from vllm import LLM, SamplingParams, TokensPrompt
    from vllm.config import KVTransferConfig

    llm = LLM(
        model=arguments.model,
        kv_transfer_config=KVTransferConfig(**server.connector),
        # vLLM's own cache would answer before LMCache is asked.
        enable_prefix_caching=False,
        max_model_len=arguments.tokens + arguments.answer,
    )
    tokens = llm.get_tokenizer().encode(text)
    prompts = cut_prompts(tokens, arguments.prompts, arguments.tokens)
    greedy = SamplingParams(temperature=0, max_tokens=arguments.answer, ignore_eos=True)

    def answers() -> list[Tokens]:
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], greedy
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    cold = answers()
    server.wait_until_stored()
    from_l1 = answers()
    server.wait_until_stored()
    decoded_before = server.metric("decode_duration_seconds_count")
    server.clear_l1()
    from_l2 = answers()
    decoded = server.metric("decode_duration_seconds_count") - decoded_before
    return _verdict(arguments, server, decoded, cold, from_l1, from_l2)


def _verdict(
    arguments: Namespace,
    server: TurboQuantServer,
    decoded: float,
    cold: list[Tokens],
    from_l1: list[Tokens],
    from_l2: list[Tokens],
) -> int:
    """Print what was seen and return the exit status."""
    share = agreement(cold, from_l2)
    failures = server.metric("failures_total")
    print(f"objects decoded from L2: {decoded:.0f}, failures: {failures:.0f}")
    print(f"ratio: {server.metric('compression_ratio'):.2f}")
    print(f"same tokens up to the first difference, L1: {agreement(cold, from_l1):.1%}")
    print(f"same tokens up to the first difference, L2: {share:.1%}")
    is_well = decoded > 0 and not failures and share >= arguments.least_agreement
    print("well" if is_well else "NOT WELL")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
