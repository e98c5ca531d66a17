# SPDX-License-Identifier: Apache-2.0
"""The demo from its command line to its table, with a tiny model."""

# Standard
from dataclasses import replace
from io import StringIO
from pathlib import Path
import json
import math
import os
import re
import subprocess
import sys

# Third Party
from rich.console import Console
import pytest
import torch

# First Party
from comparison import Passage, Row, Scheme, merge_chunks, split_chunks
from demo import main
from demo_report import results_table
from quality import agreement, perplexity, relative_error

EXAMPLE = Path(__file__).parents[2] / "examples" / "serde" / "turboquant"
PRESET = "turboquant_4bit_nc"
OWN_SERDE = '{"type": "fs", "base_path": "unused", "serde": {"type": "%s"}}'
ROW = Row(
    scheme=Scheme("some serde", None),
    raw_bytes=3_000_000,
    stored_bytes=1_000_000,
    bytes_source="disk",
    store_seconds=0.0123,
    load_seconds=0.0456,
    key_error=0.0789,
    value_error=0.0321,
    perplexity=12.3456,
    agreement=0.9375,
)


def table_text(row: Row) -> str:
    console = Console(file=StringIO(), width=100)
    console.print(results_table([row]))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def arguments(model_folder: Path, text_file: Path) -> list[str]:
    return [
        *("--model", str(model_folder), "--text", str(text_file)),
        *("--tokens", "512", "--continuation", "64", "--preset", PRESET),
    ]


def test_demo_measures_none_fp8_and_the_preset(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    assert main([*arguments, "--skip-layers", "0", "--json", str(result)]) == 0
    document = json.loads(result.read_text())
    rows = {row["serde"]: row for row in document["rows"]}
    exact_perplexity = document["exact_cache"]["perplexity"]
    raw_bytes = 2 * 5 * 512 * 2 * 64 * 2

    assert list(rows) == ["no serde", "fp8", PRESET]
    assert all(row["raw_bytes"] == raw_bytes for row in rows.values())
    assert all(row["bytes_source"] == "disk" for row in rows.values())
    for row in rows.values():
        assert row["ratio"] == raw_bytes / row["stored_bytes"]
        assert row["perplexity"] == pytest.approx(exact_perplexity, rel=0.5)
        assert row["perplexity"] != exact_perplexity
    assert rows["no serde"]["stored_bytes"] == raw_bytes
    assert rows["no serde"]["key_error"] == rows["no serde"]["value_error"] == 0
    assert rows["fp8"]["stored_bytes"] == raw_bytes // 2
    assert 0.01 < rows["fp8"]["key_error"] < 0.03
    # 68 bytes a slot of 256 at 4 bits and head_dim 64, beside the frame.
    assert 3.4 < rows[PRESET]["ratio"] <= 256 / 70
    assert 0.08 < rows[PRESET]["key_error"] < 0.11
    assert rows[PRESET]["agreement"] <= rows["no serde"]["agreement"]
    output = capsys.readouterr().out
    assert all(name in output for name in rows)
    assert f"{rows[PRESET]['stored_bytes']:,}" in output


@pytest.mark.parametrize("kind", ["fs_native", "resp", "s3", "mock"])
def test_every_kind_of_storage_holds_the_same_bytes(
    kind: str,
    arguments: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = tmp_path / "result.json"
    options = ["--l2", kind, "--skip-layers", "1", "--json", str(result)]
    assert main([*arguments, *options]) == 0
    document = json.loads(result.read_text())
    rows = {row["serde"]: row for row in document["rows"]}
    assert document["settings"]["l2_adapter"] == kind
    assert f"L2 adapter {kind}" in capsys.readouterr().out
    raw_bytes = 2 * 5 * 512 * 2 * 64 * 2
    # Two chunks, each of a header, two raw layers and three of 512 slots of 70 bytes.
    pages = math.ceil((128 + 2 * raw_bytes / 10 + 3 * 512 * 70) / 4096)
    expected = {"no serde": raw_bytes, "fp8": raw_bytes // 2, PRESET: 2 * 4096 * pages}
    assert {name: row["stored_bytes"] for name, row in rows.items()} == expected
    assert 0.05 < rows[PRESET]["key_error"] < 0.11


def test_own_adapter_and_its_serde(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    serde = {"type": "fp8", "fp8_dtype": "float8_e5m2"}
    adapter = {"type": "fs", "base_path": str(folder), "serde": serde}
    result = tmp_path / "result.json"
    options = ["--l2-adapter", json.dumps(adapter), "--json", str(result)]
    assert main([*arguments, *options]) == 0
    output = capsys.readouterr().out
    assert "yours: fp8" in output
    # The settings of an adapter and its serde may hold secrets.
    assert "float8_e5m2" not in result.read_text()
    assert str(folder) not in result.read_text()
    assert "first 2 and last 2 of the 5 layers raw" in " ".join(output.split())
    assert folder.is_dir() and not list(folder.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "1000"], "multiple of 256.*1000"),
        (["--tokens", "0"], "multiple of 256.*got 0"),
        (["--tokens", "2048"], "reads up to 2048 tokens"),
        (["--tokens", "768"], "more than 832 tokens, got 700"),
        (["--continuation", "0"], "--continuation must be at least 1, got 0"),
        (["--skip-layers", "-1"], "--skip-layers must be at least 0, got -1"),
        (["--skip-layers", "3"], "none of the 5 layers"),
        (["--preset", "turboquant_4bit"], "turboquant_4bit.*turboquant_4bit_nc"),
        (["--l2-adapter", "{"], "Invalid JSON"),
        (["--l2-adapter", '{"type": "tape"}'], "--l2-adapter( #1)?: .*"),
        (["--l2-adapter", '{"type": "fs"}'], "base_path"),
        (["--l2-adapter", OWN_SERDE % "zip"], "Unknown serde type 'zip'"),
        (["--model", "nowhere"], "folder with config.json, got nowhere"),
        (["--text", "nowhere.txt"], "nowhere.txt"),
        (["--json", "nowhere/result.json"], "no folder nowhere"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str],
    options: list[str],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main([*arguments, *options]) == 2
    errors = capfd.readouterr().err
    assert re.search(f"^demo.py: error: .*{message}", errors, re.MULTILINE)
    assert "Traceback" not in errors


def test_nothing_but_the_error_is_printed() -> None:
    command = [sys.executable, str(EXAMPLE / "demo.py"), "--tokens", "300"]
    # Whatever the log level of this test run, the demo's own default counts.
    environment = {k: v for k, v in os.environ.items() if k != "LMCACHE_LOG_LEVEL"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1


def test_chunks_merge_to_what_was_split() -> None:
    kv = torch.arange(2 * 3 * 768 * 4).reshape(2, 3, 768, 4)
    chunks = split_chunks(kv)
    assert [tuple(chunk.shape) for chunk in chunks] == [(2, 3, 256, 4)] * 3
    assert all(chunk.is_contiguous() for chunk in chunks)
    assert torch.equal(chunks[1], kv[:, :, 256:512])
    assert torch.equal(merge_chunks(chunks), kv)


@pytest.mark.parametrize("num_tokens", [0, 255, 300])
def test_split_refuses_partial_chunks(num_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of 256 tokens, got {num_tokens}"):
        split_chunks(torch.zeros(2, 1, num_tokens, 4))


def test_passage_targets_follow_what_is_read() -> None:
    passage = Passage.from_tokens(torch.arange(11), num_context=6, num_reading=4)
    assert passage.context.tolist() == [0, 1, 2, 3, 4, 5]
    assert passage.reading.tolist() == [6, 7, 8, 9]
    assert passage.targets.tolist() == [7, 8, 9, 10]


def test_table_shows_what_was_measured() -> None:
    cells = table_text(ROW).splitlines()[-1].split()
    expected = "some serde 3.0 1,000,000 3.00 12 46 0.0789 0.0321 12.346 93.8"
    assert cells == expected.split()


def test_table_never_invents_bytes() -> None:
    unknown = replace(ROW, stored_bytes=None, bytes_source="unknown")
    assert table_text(unknown).split().count("n/a") == 2
    assert "1,000,000*" in table_text(replace(ROW, bytes_source="adapter"))


def test_quality_measures() -> None:
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert relative_error(exact, torch.tensor([3.0, 3.0])) == pytest.approx(0.2)
    uniform = torch.zeros(5, 8)
    assert perplexity(uniform, torch.arange(5)) == pytest.approx(8)
    logits = torch.eye(4)
    assert agreement(logits, logits) == 1
    assert agreement(logits, logits[[0, 1, 3, 2]]) == 0.5
    with pytest.raises(ValueError, match="expected a tensor of"):
        relative_error(exact, torch.zeros(3))
    with pytest.raises(ValueError, match="not all zero"):
        relative_error(torch.zeros(2), exact)
