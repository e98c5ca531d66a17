# SPDX-License-Identifier: Apache-2.0
"""The documents show the results that are in the repository, and claim no more."""

# Standard
from collections import Counter
from pathlib import Path
import csv
import shutil

# Third Party
import pytest

# First Party
from benchmarks.turboquant.quality.conditions import PLAIN, representative
from benchmarks.turboquant.quality.guide import (
    DOCS,
    README,
    documented_stem,
    documents,
    targets,
)
from benchmarks.turboquant.quality.options import RESULTS
from benchmarks.turboquant.quality.recorded import Recorded
from benchmarks.turboquant.quality.schemes import FP8
from lmcache.v1.distributed.serde.turboquant.presets import ALL_PRESETS

SAME_BITS = (
    ("turboquant_4bit_cc", "turboquant_4bit_nc"),
    ("turboquant_k3v4_cc", "turboquant_k3v4_nc"),
    ("turboquant_3bit_cc", "turboquant_3bit_nc"),
)


SEARCHES = ("balanced", "best")


@pytest.fixture(scope="module")
def run() -> Recorded:
    """The run that the documents show."""
    return Recorded(documented_stem())


def mean(run: Recorded, scheme: str, condition: str) -> float:
    """A scheme's divergence with all settings at their defaults."""
    found = run.divergences(scheme, condition)
    return sum(found) / len(found)


def search_ratio(run: Recorded, preset: str, effort: str, condition: str) -> float:
    """A search's divergence over that of the plain rule."""
    searched, plain = (
        run.row(f"{preset}, {each}", condition).divergence.value
        for each in (effort, "fast")
    )
    return searched / plain


def test_the_documents_have_the_figures_of_the_run(run: Recorded) -> None:
    for path, text in documents(run).items():
        assert path.read_text("utf-8") == text, path.name


def test_other_figures_make_other_documents(run: Recorded, tmp_path: Path) -> None:
    for file in RESULTS.glob(f"{run.stem}*"):
        shutil.copy(file, tmp_path)
    table = tmp_path / f"{run.stem}.csv"
    was = run.row("turboquant_4bit_cc", PLAIN.name).divergence.value
    table.write_text(table.read_text().replace(f",{was:g},", ",0.5,"))
    changed = documents(Recorded(run.stem, tmp_path))
    for path in (README, DOCS / "turboquant-quality.csv"):
        assert "0.5000" in changed[path] and "0.5000" not in path.read_text("utf-8")


def test_the_run_has_every_preset(run: Recorded) -> None:
    for condition in run.conditions:
        assert {row.preset for row in run.rows(condition)} - {""} == set(ALL_PRESETS)


def test_calibrated_presets_lose_less_than_plain_ones_of_the_same_bits(
    run: Recorded,
) -> None:
    for calibrated, plain in SAME_BITS:
        for condition in run.conditions:
            assert mean(run, calibrated, condition) < mean(run, plain, condition)


def test_four_calibrated_bits_lose_less_than_float8_keys(run: Recorded) -> None:
    for condition in run.conditions:
        ours = mean(run, "turboquant_4bit_cc", condition)
        assert ours < mean(run, "turboquant_k8v4", condition)
    for condition in representative(run.conditions)[1:]:
        ours = mean(run, "turboquant_4bit_cc", condition)
        assert ours < mean(run, FP8, condition)


def test_targets_are_reached_under_strong_biases_and_not_under_plain_keys(
    run: Recorded,
) -> None:
    heading, *rows = targets(run)
    for condition, *cells in zip(*(row[2:] for row in [heading, *rows]), strict=True):
        unmet = ["not met" in cell for cell in cells]
        if condition == PLAIN.name:
            codebooks, trellises = (
                [True, True, True, False],
                [True, False, False, False],
            )
            assert unmet == codebooks + trellises
        elif condition.split()[1] in ("20", "60"):
            assert not any(unmet), condition


def test_a_search_lowers_the_divergence_of_four_and_three_bit_keys(
    run: Recorded,
) -> None:
    ratios = {
        effort: [
            search_ratio(run, plain, effort, condition)
            for _, plain in SAME_BITS
            for condition in run.conditions
        ]
        for effort in SEARCHES
    }
    assert round(max(ratios["best"]), 2) == 0.92
    assert round(min(ratios["best"]), 2) == 0.61
    assert sum(ratio > 1 for ratio in ratios["balanced"]) == 1


@pytest.mark.parametrize("effort", SEARCHES)
def test_a_search_finds_no_more_hidden_numbers(run: Recorded, effort: str) -> None:
    with open(RESULTS / f"{run.stem}-retrieval.csv", newline="") as file:
        right = Counter(
            row["scheme"] for row in csv.DictReader(file) if row["is_right"] == "True"
        )
    found = {
        each: sum(right[f"{plain}, {each}"] for _, plain in SAME_BITS)
        for each in ("fast", effort)
    }
    assert 0 < found[effort] <= found["fast"]


def test_what_a_run_lacks_is_named(run: Recorded) -> None:
    with pytest.raises(ValueError, match="expected 'other' under 'plain'"):
        run.row("other", PLAIN.name)
    with pytest.raises(ValueError, match="expected 'other' under 'plain'"):
        run.divergences("other", PLAIN.name)
