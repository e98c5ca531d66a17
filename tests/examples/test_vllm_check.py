# SPDX-License-Identifier: Apache-2.0
"""The parts of the vLLM check that need neither a GPU nor vLLM."""

# Standard
from pathlib import Path
import json
import subprocess
import sys

# Third Party
import pytest
import torch

# First Party
from tests.examples.conftest import EXAMPLE
from vllm_check import agreement, build_parser, cut_prompts
from vllm_server import TurboQuantServer, metric_sum

EXPOSITION = """\
# TYPE lmcache_mp_serde_failures_total counter
lmcache_mp_serde_failures_total{operation="encode",reason="misfit"} 2
lmcache_mp_serde_failures_total{operation="decode",reason="corrupt"} 3
# TYPE other_total counter
other_total 7
"""


def test_help_says_what_is_checked() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "vllm_check.py"), "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())
    assert "--least-agreement" in shown and "read back from L2" in shown


def test_the_default_serde_needs_no_settings() -> None:
    arguments = build_parser().parse_args(["--model", "m"])
    assert arguments.serde == {"type": "turboquant"} and arguments.text.is_file()


@pytest.mark.parametrize(("count", "length"), [(1, 10), (2, 9), (4, 7), (10, 1)])
def test_prompts_begin_at_different_places(count: int, length: int) -> None:
    prompts = cut_prompts(list(range(10)), count, length)
    assert len({prompt[0] for prompt in prompts}) == count
    assert all(
        prompt == list(range(prompt[0], prompt[0] + length)) for prompt in prompts
    )


@pytest.mark.parametrize(("count", "length"), [(2, 10), (1, 11), (0, 1), (1, 0)])
def test_a_text_that_is_too_short_is_refused(count: int, length: int) -> None:
    with pytest.raises(ValueError, match="prompts"):
        cut_prompts(list(range(10)), count, length)


@pytest.mark.parametrize(
    ("expected", "got", "share"),
    [
        ([[1, 2, 3, 4]], [[1, 2, 3, 4]], 1.0),
        ([[1, 2, 3, 4]], [[1, 9, 3, 4]], 0.25),
        ([[1, 2], [1, 2]], [[1, 2], [9, 2]], 0.5),
        ([[1, 2]], [[1, 2, 3, 4]], 0.5),
        ([[]], [[]], 1.0),
    ],
)
def test_agreement_ends_at_the_first_difference(
    expected: list[list[int]], got: list[list[int]], share: float
) -> None:
    assert agreement(expected, got) == share


def test_agreement_wants_an_answer_to_each_prompt() -> None:
    with pytest.raises(ValueError):
        agreement([[1]], [[1], [2]])


def test_metrics_are_summed_over_labels() -> None:
    assert metric_sum(EXPOSITION, "lmcache_mp_serde_failures_total") == 5
    assert metric_sum(EXPOSITION, "lmcache_mp_serde_absent_total") == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="covers hosts without a GPU")
def test_the_server_starts_with_the_serde_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMCACHE_LOG_LEVEL", "INFO")
    serde: dict[str, object] = {"type": "turboquant", "preset": "turboquant_4bit_nc"}
    server = TurboQuantServer(tmp_path, serde, l1_size_gb=0.25)
    adapter = json.loads(server.command()[-1])
    assert adapter["serde"] == serde
    with server:
        server.clear_l1()
        assert server.metric("encode_duration_seconds_count") == 0
    assert (
        "TurboQuant serde: turboquant_4bit_nc" in (tmp_path / "server.log").read_text()
    )
