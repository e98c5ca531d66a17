# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant inspect`` and ``verify``, and the exit statuses of all."""

# Standard
from collections.abc import Callable
from pathlib import Path
import json
import os
import subprocess
import sys

# Third Party
import pytest

Run = Callable[..., tuple[int, str, str]]
Damage = Callable[[Path, int], None]

SERDE = {
    "type": "turboquant",
    "preset": "turboquant_4bit_nc",
    "head_dim": 64,
    "skip_first_layers": 1,
    "skip_last_layers": 0,
    "max_workers": 2,
}


def test_inspect_shows_a_payloads_tensors_and_layers(run: Run, directory: Path) -> None:
    path = directory / "0.data"
    status, out, _ = run("inspect", path, "--json")
    report = json.loads(out)["metrics"]
    raw_layer, slots = 2 * 16 * 128 * 2, 2 * 16 * 2 * 70
    assert status == 0
    assert report["verdict"] == "intact"
    assert report["file_bytes"] == report["frame_bytes"] == 16_384
    assert report["raw_bytes"] == 3 * raw_layer
    assert report["ratio"] == pytest.approx(3 * raw_layer / 16_384)
    (tensor,) = report["tensors"]
    assert tensor["shape"] == "[2, 3, 16, 128]"
    assert tensor["preset"] == "turboquant_4bit_nc"
    assert tensor["payload_bytes"] == raw_layer + slots
    raw, compressed = report["layers"]
    assert (raw["layers"], raw["stored"], raw["layer_bytes"]) == ("0-0", "raw", 8192)
    assert (compressed["layers"], compressed["layer_bytes"]) == ("1-2", slots // 2)
    assert raw["share"] == pytest.approx(100 * raw_layer / 16_384)
    _, table, _ = run("inspect", path)
    assert "turboquant_4bit_nc" in table and "compressed" in table


def test_inspect_lists_the_payloads_of_a_directory(
    run: Run, directory: Path, damage: Damage
) -> None:
    damage(directory / "1.data", 5000)
    status, out, _ = run("inspect", directory, "--json")
    report = json.loads(out)["metrics"]
    assert status == 1
    assert (report["payloads"], report["refused"]) == (3, 1)
    verdicts = {file["payload"]: file["verdict"] for file in report["files"]}
    assert verdicts["0.data"] == verdicts["nested/2.data"] == "intact"
    assert "is corrupt" in verdicts["1.data"]


def test_inspect_reports_a_file_without_a_header(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "raw.data"
    path.write_bytes(bytes(100))
    status, out, _ = run("inspect", path)
    assert status == 1
    assert "not a framed TurboQuant payload" in out


def test_verify_passes_what_a_server_would_load(run: Run, directory: Path) -> None:
    status, out, _ = run("verify", directory, "--serde", json.dumps(SERDE), "--json")
    report = json.loads(out)["metrics"]
    assert status == 0
    assert (report["payloads"], report["refused"]) == (3, 0)
    assert report["refused_files"] == []


def test_verify_lists_what_is_damaged_and_why(
    run: Run, directory: Path, damage: Damage
) -> None:
    damage(directory / "0.data", 5000)
    damage(directory / "1.data", 40)
    last = directory / "nested" / "2.data"
    last.write_bytes(last.read_bytes()[:5000])
    status, out, _ = run("verify", directory, "--json")
    refused = json.loads(out)["metrics"]["refused_files"]
    assert status == 1
    assert [Path(file["payload"]).name for file in refused] == [
        f"{index}.data" for index in range(3)
    ]
    expected = ("its bytes have", "CRC-32 is wrong", "cut short")
    for file, message in zip(refused, expected, strict=True):
        assert message in file["reason"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"preset": "turboquant_3bit_nc"}, "expected turboquant_3bit_nc"),
        ({"head_dim": 128}, "written with head_dim 64"),
        ({"kv_layout": "fused"}, "kv_layout 'fused' expects"),
        ({"skip_first_layers": 0}, "written with quant_start 1"),
    ],
)
def test_verify_lists_what_was_written_with_other_settings(
    run: Run, directory: Path, setting: dict, message: str
) -> None:
    serde = json.dumps(SERDE | setting)
    status, out, _ = run("verify", directory, "--serde", serde)
    assert status == 1
    assert out.count(message) == 3


def test_verify_takes_what_is_not_set_from_the_payloads(
    run: Run, fused_directory: Path
) -> None:
    open_settings = {x: y for x, y in SERDE.items() if x != "head_dim"}
    for settings, refused in ((open_settings, 0), (SERDE | {"head_dim": 128}, 1)):
        status, _, _ = run("verify", fused_directory, "--serde", json.dumps(settings))
        assert status == refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "missing"), "no file or directory missing"),
        (("verify", "."), "no .data file in ."),
        (("inspect", "missing"), "no file or directory missing"),
        (("decode", "missing", "out"), "no file or directory missing"),
        (("encode", "missing", "out"), "missing"),
        (("verify", ".", "--serde", "{"), "Expecting property name"),
        (("verify", ".", "--serde", '{"type": "fp8"}'), 'expected {"type": "turboq'),
        (("verify", ".", "--serde", json.dumps(SERDE | {"framed": False})), "framed"),
        (("verify", ".", "--serde", json.dumps(SERDE | {"presett": 1})), "'preset'?"),
        (("verify", ".", "--serde", json.dumps(SERDE | {"encrypt": {}})), "encrypted"),
        (("encode", "x", "y", "--preset", "turboquant_5bit"), "Unsupported"),
        (("encode", "x", "y", "--head-dim", "half"), "invalid int value"),
    ],
)
def test_usage_errors_exit_with_2(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*arguments)
    assert status == 2
    assert message in err
    assert not list(tmp_path.iterdir())


HELP_PROBE = """
import sys
from lmcache.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print([x for x in sys.modules if x.startswith("lmcache.v1.distributed.serde")])
print([x for x in sys.modules if x.startswith("lmcache.cli.commands.tool.turbo")])
"""


@pytest.mark.parametrize(
    ("arguments", "is_listed"),
    [(["--help"], False), (["tool", "-h"], True), (["tool", "turboquant", "-h"], True)],
)
def test_help_does_not_import_the_serde(arguments: list[str], is_listed: bool) -> None:
    command = [sys.executable, "-c", HELP_PROBE, *arguments]
    environment = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    *_, serde_modules, command_modules = done.stdout.splitlines()
    assert serde_modules == "[]"
    assert ("turboquant" in command_modules) is is_listed
