# SPDX-License-Identifier: Apache-2.0
"""The pins, and the downloads that are checked against them."""

# Standard
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
import re
import sys

# Third Party
import pytest

# First Party
from patchset import fetch
from patchset.errors import PatchError
from patchset.files import snapshot
from patchset.release import REPOSITORY, Release


def test_every_supported_interpreter_has_a_wheel(release: Release) -> None:
    tags = {
        re.sub(r".*?-(cp\d+)-.*_([^_]+_?64)\.whl", r"\1 \2", x) for x in release.wheels
    }
    pythons = ("cp310", "cp311", "cp312", "cp313")
    machines = ("x86_64", "aarch64")
    assert tags == {f"{python} {machine}" for python in pythons for machine in machines}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_overlay_knows_what_the_release_has_there(
    release: Release, kind: str, request: pytest.FixtureRequest
) -> None:
    tree: Path = request.getfixturevalue(f"pristine_{kind}")
    package_only = kind == "wheel"
    for path, expected in release.overlay.items():
        if path.startswith("lmcache/") or not package_only:
            assert snapshot(tree / path) == expected, path


def test_overlay_covers_every_file_of_the_package(release: Release) -> None:
    files = [f"lmcache/{name}" for name in snapshot(REPOSITORY / "lmcache")]
    assert files
    assert [x for x in files if not x.startswith(tuple(release.overlay))] == []


def test_local_paths_stand_below_the_overlay(release: Release) -> None:
    for path in release.local:
        assert list(REPOSITORY.glob(f"{path.rstrip('/')}*")), path
        assert path.startswith(tuple(release.overlay))


def test_wheel_name_fits_the_interpreter(release: Release) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in fetch.wheel_name(release)


@pytest.mark.parametrize(
    ("module", "attribute", "value"),
    [
        (fetch.sys, "version_info", type("Version", (), {"major": 3, "minor": 9})),
        (fetch.sys, "abiflags", "t"),
        (fetch.platform, "machine", lambda: "riscv64"),
        (fetch.platform, "system", lambda: "Darwin"),
    ],
    ids=["old-python", "free-threaded", "machine", "system"],
)
def test_wheel_name_refuses_another_host(
    release: Release,
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    attribute: str,
    value: object,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, attribute, value)
        with pytest.raises(PatchError, match="0.5.6 has no wheel for cp.*expected one"):
            fetch.wheel_name(release)


def test_fetch_refuses_a_file_with_another_hash(
    release: Release, tmp_path: Path
) -> None:
    name = fetch.wheel_name(release)
    (tmp_path / name).write_bytes(b"not the wheel")
    with pytest.raises(PatchError, match=f"{name}: expected sha256 .*, found "):
        fetch.fetch_wheel(release, tmp_path)


def test_download_with_another_hash_does_not_enter_the_cache(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fetch.wheel_name(release)
    download(monkeypatch, name)
    with pytest.raises(PatchError, match="expected sha256"):
        fetch.fetch_wheel(release, tmp_path)
    assert not (tmp_path / name).exists()


def test_fetch_says_what_pip_downloaded_instead(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(monkeypatch, "other.whl")
    with pytest.raises(PatchError, match="pip downloaded other.whl; expected lmcache"):
        fetch.fetch_wheel(release, tmp_path)


def test_fetch_carries_what_pip_says(release: Release, tmp_path: Path) -> None:
    unknown = replace(release, version="0.0.0.dev999")
    with pytest.raises(
        PatchError, match="(?s)could not download lmcache==0.0.0.*ERROR"
    ):
        fetch.fetch_wheel(unknown, tmp_path)


def download(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let pip download a file of that name that holds something else."""

    def run(command: list[str], **options: object) -> CompletedProcess[str]:
        directory = Path(command[command.index("--dest") + 1])
        (directory / name).write_bytes(b"something else")
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch.subprocess, "run", run)
