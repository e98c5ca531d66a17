# SPDX-License-Identifier: Apache-2.0
"""Store KV in a running ``lmcache server``, or fetch it again, without a model.

    python store_and_fetch.py store
    python store_and_fetch.py fetch

Both make the same Gaussian KV. ``fetch`` tells how much of it the server still has, and
how far that is from what was stored. The exit status is 0 where all of it was taken or
hit, 1 where it was not, and 2 where something else is wrong.
"""

# Standard
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
import os
import sys
import time

os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")

# Third Party
import torch

# First Party
from engine_client import Engine
from lmcache import torch_device_type
from quality import relative_error

ERROR_EXIT_CODE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Store or fetch.

    Args:
        argv: Command line without the program's name; None takes the process's.

    Returns:
        The exit status.
    """
    arguments = build_parser().parse_args(argv)
    action = {"store": store, "fetch": fetch}[arguments.action]
    try:
        with open_engine(arguments) as engine:
            return action(engine, arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"store_and_fetch.py: error: {error}", file=sys.stderr)
        return ERROR_EXIT_CODE


def build_parser() -> ArgumentParser:
    """Describe the command line."""
    parser = ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("action", choices=("store", "fetch"))
    parser.add_argument("--url", default="tcp://localhost:5555", help="the server's")
    parser.add_argument("--tokens", type=int, default=1024, metavar="N")
    parser.add_argument("--layers", type=int, default=16, metavar="N")
    parser.add_argument("--heads", type=int, default=8, metavar="N", help="KV heads")
    parser.add_argument("--head-dim", type=int, default=128, metavar="N")
    parser.add_argument("--tenant", default="", help="LMCache's cache_salt")
    parser.add_argument(
        "--seed", type=int, default=0, help="another gives other tokens and KV (0)"
    )
    return parser


def open_engine(arguments: Namespace) -> Engine:
    """Connect to the server.

    Args:
        arguments: What the user asked for.

    Returns:
        An engine with KV of a shape of its own model.

    Raises:
        ValueError: If a number is not positive.
        TimeoutError: If no server answers.
    """
    shape = (arguments.layers, arguments.heads, arguments.head_dim)
    if min(*shape, arguments.tokens) < 1:
        raise ValueError("tokens, layers, heads and head_dim must be positive")
    return Engine(
        arguments.url,
        [shape[1:]] * arguments.layers,
        mode="lmcache_driven",
        model="example-{}-{}-{}".format(*shape),
        num_tokens=arguments.tokens,
        device=torch_device_type,
    )


def store(engine: Engine, arguments: Namespace) -> int:
    """Store KV; the server writes it to L2 in the background.

    Args:
        engine: Connected to the server.
        arguments: What the user asked for.

    Returns:
        The exit status, 0 or 1.

    Raises:
        ValueError: If the tokens are no whole chunks.
    """
    tokens = tokens_of(engine, arguments)
    engine.fill(arguments.seed)
    is_stored = engine.store(tokens, arguments.tenant)
    num_bytes = sum(tensor.nbytes for tensor in engine.kv.values())
    num_chunks = len(tokens) // engine.chunk_tokens
    verb = "stored" if is_stored else "NOT stored:"
    print(f"{verb} {num_chunks} chunks, {num_bytes:,} bytes of KV")
    return 0 if is_stored else 1


def fetch(engine: Engine, arguments: Namespace) -> int:
    """Fetch KV and compare it with what was stored.

    Args:
        engine: Connected to the server.
        arguments: What the user asked for.

    Returns:
        The exit status, 0 or 1.

    Raises:
        ValueError: If the tokens are no whole chunks.
        RuntimeError: If what hit cannot be retrieved.
        TimeoutError: If the server does not answer in time.
    """
    tokens = tokens_of(engine, arguments)
    num_chunks = len(tokens) // engine.chunk_tokens
    engine.fill(arguments.seed)
    stored = engine.chunks(num_chunks)
    for tensor in engine.kv.values():
        tensor.fill_(float("nan"))
    started = time.perf_counter()
    hits = engine.fetch(tokens, arguments.tenant)
    seconds = time.perf_counter() - started
    print(f"{hits} of {num_chunks} chunks hit in {seconds:.2f} s")
    if hits:
        exact, restored = torch.cat(stored[:hits], 2), torch.cat(engine.chunks(hits), 2)
        keys, values = map(relative_error, exact, restored)
        print(f"relative error of keys {keys:.4f}, of values {values:.4f}")
    return 0 if hits == num_chunks else 1


def tokens_of(engine: Engine, arguments: Namespace) -> range:
    """Make up tokens that belong to the seed.

    Args:
        engine: Connected to the server.
        arguments: What the user asked for.

    Returns:
        As many as asked for.

    Raises:
        ValueError: If they are no whole chunks.
    """
    if arguments.tokens % engine.chunk_tokens:
        raise ValueError(
            f"--tokens must be a multiple of the server's chunk of "
            f"{engine.chunk_tokens}, got {arguments.tokens}"
        )
    first = arguments.seed * arguments.tokens
    return range(first, first + arguments.tokens)


if __name__ == "__main__":
    sys.exit(main())
