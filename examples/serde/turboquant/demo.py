# SPDX-License-Identifier: Apache-2.0
"""Store and restore a real model's KV cache with LMCache, and read on from it.

Run ``python demo.py --help``; README.md says what the table shows.
"""

# Standard
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
import json
import os
import sys
import warnings

# LMCache, transformers and tqdm read these when they are imported.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

# Third Party
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
import torch

# First Party
from comparison import STEPS_PER_SCHEME, Comparison, Row, Scheme
from demo_options import build_parser, check_arguments, load_inputs, schemes_for
from demo_report import headline, notes, results_json, results_table
from kv_store import KVStoreError
from l2_storage import running_l2
from storage_server import ServerError

ERROR_EXIT_CODE = 2
TABLE_WIDTH = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo.

    Args:
        argv: Command line without the program's name; None takes the process's.

    Returns:
        The exit code: 0, or 2 after one line on stderr that says what is wrong.
    """
    arguments = build_parser().parse_args(argv)
    # Adapters of services that are not used here warn about their own future.
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        run(arguments, Console())
    except (ValueError, OSError, ImportError, KVStoreError, ServerError) as error:
        print(f"demo.py: error: {' '.join(str(error).split())}", file=sys.stderr)
        return ERROR_EXIT_CODE
    return 0


def run(arguments: Namespace, output: Console) -> None:
    """Measure all schemes, print the table and save the results.

    Args:
        arguments: What the user asked for.
        output: Where the table goes; progress shows on stderr.

    Raises:
        ValueError: If an option or an input does not fit.
        OSError: If a file cannot be read or written.
        KVStoreError: If LMCache fails to store or load.
        ServerError: If a storage server is not installed or does not start.
    """
    check_arguments(arguments)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="lmcache-demo-"))
        progress = stack.enter_context(_progress())
        adapter = arguments.l2_adapter
        if adapter is None:
            spec = stack.enter_context(running_l2(arguments.l2, Path(folder)))
            adapter = json.dumps(spec)
        loading = progress.add_task("load the model", total=None)
        model, passage, text_name = load_inputs(arguments)
        progress.update(loading, description=f"prefill {len(passage.context)} tokens")
        comparison = Comparison(model, passage, getattr(torch, arguments.dtype))
        progress.remove_task(loading)
        cache = comparison.cache
        schemes = schemes_for(arguments, cache.num_layers, cache.head_dim)
        rows = _measure(comparison, schemes, adapter, progress)
    adapter_type = json.loads(adapter)["type"]
    _print(output, headline(comparison, text_name, adapter_type), rows, comparison)
    if arguments.json:
        settings = {
            "model": model.name,
            "text": text_name,
            "continuation": arguments.continuation,
            "l2_adapter": adapter_type,
            "skip_layers": arguments.skip_layers,
        }
        arguments.json.write_text(results_json(rows, comparison, settings))


def _measure(
    comparison: Comparison, schemes: list[Scheme], l2_adapter: str, progress: Progress
) -> list[Row]:
    """Measure the schemes one after another, a progress bar over all of them."""
    rows = []
    bar = progress.add_task("", total=len(schemes) * STEPS_PER_SCHEME)
    for scheme in schemes:

        def show(step: str, name: str = scheme.name) -> None:
            progress.update(bar, description=f"{name}: {step}", advance=1)

        rows.append(comparison.measure(scheme, l2_adapter, show))
    return rows


def _print(
    output: Console, title: str, rows: list[Row], comparison: Comparison
) -> None:
    """Print the table between its title and its notes."""
    output.print(title, "", sep="\n", highlight=False)
    # A narrow window wraps a line rather than lose a digit.
    width = max(output.width, TABLE_WIDTH)
    output.print(results_table(rows), width=width, crop=False)
    for paragraph in notes(rows, comparison):
        output.print("", paragraph, sep="\n", highlight=False)


def _progress() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


if __name__ == "__main__":
    sys.exit(main())
