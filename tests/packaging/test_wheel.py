# SPDX-License-Identifier: Apache-2.0
"""The fork's wheel: built from the checkout by pip, installed, used, removed."""

# Standard
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile
import json
import sys

# Third Party
import pytest

# First Party
from patchset.backend import UnsupportedOperation, build_sdist
from patchset.errors import PatchError
from patchset.fetch import fetch_wheel
from patchset.plan import PatchSet
from patchset.record import file_row, read_record
from patchset.release import REPOSITORY, Release
from patchset.wheel import CUPY_SETTING, build_fork_wheel
from tests.packaging.environments import Environment, run
from tests.packaging.trees import SUBPACKAGE, package_paths

PINNED_INFO = "lmcache-0.5.6.dist-info"
FORK_INFO = "lmcache-0.5.6+turboquant.1.dist-info"

USE = """
from importlib.metadata import entry_points, version
import json, sys
from lmcache.v1.distributed.serde import get_registered_serde_types, turboquant
import lmcache
types = get_registered_serde_types()
versions = [lmcache.__version__, version("lmcache")]
print(json.dumps([*versions, turboquant.__file__, types]), flush=True)
(script,) = entry_points(group="console_scripts", name="lmcache")
sys.argv = ["lmcache", "--help"]
script.load()()
"""


@pytest.fixture(scope="module")
def fork_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``pip wheel .`` builds."""
    directory = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    run([*pip, "--wheel-dir", str(directory), str(REPOSITORY)])
    (wheel,) = directory.iterdir()
    return wheel


def test_wheel_is_named_like_the_pinned_one(fork_wheel: Path, release: Release) -> None:
    pinned = fetch_wheel(release).name
    assert fork_wheel.name == pinned.replace("-0.5.6-", "-0.5.6+turboquant.1-")


def test_wheel_differs_from_the_pinned_one_where_it_has_to(
    fork_wheel: Path, release: Release, patch_set: PatchSet
) -> None:
    with ZipFile(fork_wheel) as fork, ZipFile(fetch_wheel(release)) as pinned:
        ours, theirs = contents(fork, FORK_INFO), contents(pinned, PINNED_INFO)
    packages = tuple(package_paths(patch_set))
    package = {name for name in ours if name.startswith(packages)}
    sources = (patch_set.repository / "lmcache").rglob("*.py")
    assert package == {f.relative_to(patch_set.repository).as_posix() for f in sources}
    replaced = {name for name in theirs if name.startswith(packages)}
    assert ours.keys() - package == theirs.keys() - replaced
    changed = {name for name in ours.keys() - package if ours[name] != theirs[name]}
    patched = {patch.path for patch in patch_set.series if patch.path in ours}
    versioned = {"lmcache/_version.py", "INFO/METADATA", "INFO/RECORD"}
    assert changed == versioned | patched
    assert any(name.endswith(".so") for name in ours)


def test_record_lists_every_file_with_its_hash(fork_wheel: Path) -> None:
    with ZipFile(fork_wheel) as fork:
        data = {name: fork.read(name) for name in fork.namelist()}
    record = f"{FORK_INFO}/RECORD"
    rows = read_record(data[record])
    expected = [file_row(name, data[name]) for name in data.keys() - {record}]
    assert sorted(rows) == sorted([*expected, (record, "", "")])


def test_metadata_differs_in_the_version_alone(
    fork_wheel: Path, release: Release
) -> None:
    ours, theirs = metadata(fork_wheel, FORK_INFO), pinned_metadata(release)
    assert ours["Version"] == "0.5.6+turboquant.1"
    assert without_version(ours) == without_version(theirs)
    assert ours.get_payload() == theirs.get_payload()


def test_setting_takes_cupy_for_cuda_12_and_changes_no_other_byte(
    fork_wheel: Path, patch_set: PatchSet, release: Release, tmp_path: Path
) -> None:
    setting = {CUPY_SETTING: "cupy-cuda12x"}
    wheel = tmp_path / build_fork_wheel(tmp_path, patch_set, setting)
    ours = set(metadata(wheel, FORK_INFO).get_all("Requires-Dist", []))
    theirs = set(pinned_metadata(release).get_all("Requires-Dist", []))
    assert ours - theirs == {"cupy-cuda12x", "cuda-python<13,>=12"}
    assert theirs - ours == {"cupy-cuda13x", "cuda-python<14,>=13"}
    with ZipFile(wheel) as one, ZipFile(fork_wheel) as other:
        pairs = list(zip(one.infolist(), other.infolist(), strict=True))
    assert all(
        a.filename == b.filename and a.date_time == b.date_time for a, b in pairs
    )
    changed = [a.filename for a, b in pairs if a.CRC != b.CRC]
    assert changed == [f"{FORK_INFO}/METADATA", f"{FORK_INFO}/RECORD"]


@pytest.mark.parametrize("cupy", ["", "cupy", "cupy-cuda11x"])
def test_setting_refuses_another_cupy(
    patch_set: PatchSet, tmp_path: Path, cupy: str
) -> None:
    message = f"{CUPY_SETTING}: expected cupy-cuda13x or cupy-cuda12x, found '{cupy}'"
    with pytest.raises(PatchError, match=message):
        build_fork_wheel(tmp_path, patch_set, {CUPY_SETTING: cupy})
    assert not list(tmp_path.iterdir())


def test_fork_installs_works_and_leaves_nothing(
    fork_wheel: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "environment")
    before = environment.files()
    environment.pip("install", "--quiet", "--no-deps", str(fork_wheel))
    printed, said = environment.python(USE).split("usage: lmcache")
    version, recorded, module, types = json.loads(printed.splitlines()[-1])
    assert version == recorded == "0.5.6+turboquant.1"
    assert module == str(environment.packages / SUBPACKAGE / "__init__.py")
    assert "turboquant" in types
    assert "server" in said
    environment.pip("uninstall", "--yes", "lmcache")
    assert environment.files() == before


def test_source_distribution_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperation, match="no source distribution; build a"):
        build_sdist(str(tmp_path))


def contents(wheel: ZipFile, info: str) -> dict[str, tuple[bytes, int]]:
    """Return content and mode of every file, the metadata below ``INFO``."""
    return {
        item.filename.replace(info, "INFO"): (wheel.read(item), item.external_attr)
        for item in wheel.infolist()
        if not item.is_dir()
    }


def metadata(wheel: Path, info: str) -> Message:
    """Return the METADATA of a wheel."""
    with ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"{info}/METADATA").decode("utf-8"))


def pinned_metadata(release: Release) -> Message:
    """Return the METADATA of the pinned wheel."""
    return metadata(fetch_wheel(release), PINNED_INFO)


def without_version(message: Message) -> list[tuple[str, str]]:
    """Return all headers of METADATA but the version."""
    return [(key, value) for key, value in message.items() if key != "Version"]
