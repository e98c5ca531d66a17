# SPDX-License-Identifier: Apache-2.0
"""A run of the laboratory measures what the serde does to a model, in small."""

# Standard
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from copy import copy
from dataclasses import replace
from math import isclose
from pathlib import Path
import csv

# Third Party
import pytest
import torch

# First Party
from benchmarks.turboquant.quality import files, upstream
from benchmarks.turboquant.quality.bench import Bench
from benchmarks.turboquant.quality.conditions import PLAIN
from benchmarks.turboquant.quality.run import Results, run
from benchmarks.turboquant.quality.schemes import FP8, NO_SERDE
from benchmarks.turboquant.quality.summary import Summary, found, of, summaries
from lmcache.v1.distributed.serde.turboquant.presets import PRESETS
from tests.benchmarks.quality.conftest import HEAD_DIM, LAYERS, TINY

BIAS = "bias 20 in 4 channels"
FRAME_BYTES = 4096

LMCACHE_PRESETS = (
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
)


@pytest.fixture(scope="module")
def summary(results: Results) -> Callable[[str, str], Summary]:
    """Find a summary by preset or name, and condition; no layer raw."""
    rows = summaries(results)

    def find(name: str, condition: str = PLAIN.name) -> Summary:
        return next(
            row
            for row in rows
            if name in (row.scheme.preset, row.scheme.name)
            and row.condition == condition
            and not row.scheme.skip_layers
        )

    return find


def test_every_preset_is_measured_with_and_without_raw_layers(
    results: Results,
) -> None:
    for preset in PRESETS:
        skips = {x.skip_layers for x in results.schemes if x.preset == preset}
        assert skips == {0, 2}
    conditions = {each.condition for each in results.measurements}
    assert conditions == {"plain", "bias 20 spread", BIAS}
    for scheme in results.schemes:
        assert len(of(results, scheme.name, PLAIN.name)) == TINY.windows
        assert len(of(results, scheme.name, BIAS)) == TINY.biased_windows


def test_without_a_codec_only_the_stored_type_rounds(
    summary: Callable[[str, str], Summary],
) -> None:
    for condition in (PLAIN.name, BIAS):
        exact = summary(NO_SERDE, condition)
        assert exact.bits == 16 and exact.ratio == 1
        # Half a unit in the last place of float16 is at most 2^-11.
        assert 0 < exact.error("key_error") < 2**-11
        assert exact.divergence.value < 1e-3
        assert exact.agreement.value > 0.9


@pytest.mark.parametrize("preset", LMCACHE_PRESETS)
def test_bits_count_every_byte(
    preset: str, summary: Callable[[str, str], Summary]
) -> None:
    bits = PRESETS[preset]
    key_bytes = HEAD_DIM * bits.key_bits // 8 + (0 if bits.key_is_fp8 else 2)
    slot_bytes = key_bytes + HEAD_DIM * bits.value_bits // 8 + 4
    slots = LAYERS * TINY.context
    least = 8 * slots * slot_bytes / (2 * slots * HEAD_DIM)
    frame = 8 * FRAME_BYTES / (2 * slots * HEAD_DIM)
    assert least < summary(preset, PLAIN.name).bits <= least + frame


def test_errors_are_those_of_the_codebooks(
    summary: Callable[[str, str], Summary],
) -> None:
    # Square roots of the Lloyd-Max distortions of 4 and 3 bits, norm corrected.
    for preset, error in (("turboquant_4bit_nc", 0.097), ("turboquant_3bit_nc", 0.186)):
        row = summary(preset, PLAIN.name)
        assert row.error("key_error") == pytest.approx(error, rel=0.15)
        # Keys of a model are not centred: what varies is less than the whole.
        assert row.error("varying_key_error") > row.error("key_error")
    assert summary(FP8, PLAIN.name).error("key_error") == pytest.approx(0.026, rel=0.1)


def test_fewer_bits_diverge_more(summary: Callable[[str, str], Summary]) -> None:
    for measure in (
        lambda row: row.divergence.value,
        lambda row: row.error("logit_error"),
        lambda row: row.error("output_error"),
    ):
        numbers = [
            measure(summary(name, PLAIN.name))
            for name in (NO_SERDE, FP8, "turboquant_4bit_nc", "turboquant_3bit_nc")
        ]
        assert numbers == sorted(numbers) and numbers[0] < numbers[-1]


def test_a_bias_costs_plain_presets_accuracy_of_keys_alone(results: Results) -> None:
    plain, biased = (
        of(results, "turboquant_4bit_nc, fast", condition)[0]
        for condition in (PLAIN.name, "bias 20 spread")
    )
    assert min(biased.varying_key_errors) > 3 * max(plain.varying_key_errors)
    assert biased.value_errors == plain.value_errors


def test_raw_layers_have_no_error_but_rounding(results: Results) -> None:
    measured = of(results, "turboquant_3bit_nc, skips 2+2", PLAIN.name)[0]
    for layer, error in enumerate(measured.key_errors):
        assert (error < 2**-11) == (layer < 2 or layer >= LAYERS - 2)


def test_every_question_is_asked_of_every_scheme(results: Results) -> None:
    for task, conditions in {
        "passkey": {PLAIN.name},
        "multi-needle": {PLAIN.name, BIAS},
        "key-value": {PLAIN.name, BIAS},
    }.items():
        for scheme in results.schemes:
            asked = {
                each.condition
                for each in results.retrieved
                if (each.task, each.scheme) == (task, scheme.name)
            }
            assert asked == conditions
    answers = found(results.retrieved, NO_SERDE, PLAIN.name, "multi-needle")
    assert answers is not None
    share, nats = answers
    assert 0 <= share.low <= share.value <= share.high <= 1 and nats > 0
    assert found(results.retrieved, NO_SERDE, BIAS, "passkey") is None


def test_files_hold_the_run(results: Results, tmp_path: Path) -> None:
    origin = {"model": "m", "plan": "p", "time": "2026-01-01", "commit": "abc"}
    text = files.write(results, [], tmp_path, "quality", origin)
    assert (tmp_path / "quality.md").read_text().strip() == text.strip()
    assert all(f"| {scheme.name} " in text for scheme in results.schemes)
    assert b"<svg" in (tmp_path / "quality.svg").read_bytes()
    with open(tmp_path / "quality.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(results.schemes)
    assert {row["commit"] for row in rows} == {"abc"}
    with open(tmp_path / "quality-layers.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows) * LAYERS
    first = rows[0]
    expected = of(results, first["scheme"], first["condition"])
    mean = sum(each.divergence for each in expected) / len(expected)
    assert isclose(float(first["divergence"]), mean, rel_tol=1e-4)


def test_lmcache_makes_the_same_bytes_of_a_sample(bench: Bench) -> None:
    sample = bench.sample(PLAIN)
    assert sample.shape == (2, 3, TINY.upstream_tokens, HEAD_DIM)
    assert sample.dtype == torch.float16
    agreements = upstream.compare([(PLAIN.name, sample)], HEAD_DIM)
    assert [each.preset for each in agreements] == list(LMCACHE_PRESETS)
    for each in agreements:
        assert each.equal_bytes > 0.99
        assert each.our_key_error == pytest.approx(each.their_key_error, rel=0.01)
        assert each.our_value_error == pytest.approx(each.their_value_error, rel=0.01)


@pytest.fixture
def small_bench(bench: Bench) -> Bench:
    """The bench with a plan of three tasks, whose workers have one thread each."""
    small = copy(bench)
    plan = replace(TINY, biased_windows=0, crowded=0)
    small.setup = replace(bench.setup, plan=plan, threads=1)
    return small


def test_several_workers_find_the_same_in_the_same_order(
    small_bench: Bench, results: Results
) -> None:
    shared_out = run(small_bench, workers=2)
    assert shared_out.measurements == [
        each for each in results.measurements if each.condition == PLAIN.name
    ]
    assert shared_out.retrieved == [
        each for each in results.retrieved if each.task == "passkey"
    ]


def test_a_worker_that_cannot_start_ends_the_run(small_bench: Bench) -> None:
    small_bench.setup = replace(small_bench.setup, model=Path("/nowhere"))
    with pytest.raises(BrokenProcessPool):
        run(small_bench, workers=2)


def test_no_worker_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        run(bench, workers=0)
