# SPDX-License-Identifier: Apache-2.0
"""Build the fork's wheel from the pinned wheel: unpack, patch, repack.

Native extensions, entry points, licences and tags stay those of the pinned
wheel. Its METADATA changes in the version and, where asked, in the two
requirements that depend on the CUDA version of the host.
"""

# Standard
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo
import tempfile

# First Party
from patchset.errors import PatchError
from patchset.fetch import fetch_wheel
from patchset.plan import PatchSet
from patchset.record import Row, file_row, write_record
from patchset.release import REPOSITORY, Release
from patchset.transaction import forget
from patchset.tree import apply

BUILD_DIRECTORY = REPOSITORY / "build"
CUPY_SETTING = "LMCACHE_TURBOQUANT_CUPY"

# For each value of the setting: requirements of the pinned wheel and theirs.
_REQUIREMENTS = {
    "cupy-cuda13x": {},
    "cupy-cuda12x": {
        "cupy-cuda13x": "cupy-cuda12x",
        "cuda-python<14,>=13": "cuda-python<13,>=12",
    },
}

# Every file of the wheel has this date, so that two builds give the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644 << 16


def build_fork_wheel(
    directory: Path,
    patch_set: PatchSet,
    settings: Mapping[str, str],
    build_directory: Path = BUILD_DIRECTORY,
) -> str:
    """Build the fork's wheel for the running interpreter.

    Args:
        directory: Folder that receives the wheel.
        patch_set: What to apply.
        settings: The environment; ``CUPY_SETTING`` may name the cupy package.
        build_directory: Folder for downloads and the unpacked tree.

    Returns:
        File name of the wheel.

    Raises:
        PatchError: The setting is unknown, the pinned wheel cannot be had, or
            the patch set does not apply to it.
    """
    release = patch_set.release
    requirements = _changed_requirements(settings)
    pinned = fetch_wheel(release, build_directory / "pinned")
    name = pinned.name.replace(release.version, release.fork_version, 1)
    with tempfile.TemporaryDirectory(dir=build_directory, prefix="fork-") as folder:
        tree = Path(folder)
        with ZipFile(pinned) as archive:
            archive.extractall(tree)
            attributes = {x.filename: x.external_attr for x in archive.infolist()}
        apply(tree, patch_set)
        forget(tree)
        _set_version(tree, release)
        _set_metadata(tree, release, requirements)
        _pack(tree, directory / name, attributes, release)
    return name


def _changed_requirements(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the requirements to change for the cupy package that is asked for."""
    cupy = settings.get(CUPY_SETTING, "cupy-cuda13x")
    if cupy not in _REQUIREMENTS:
        expected = " or ".join(_REQUIREMENTS)
        raise PatchError(f"{CUPY_SETTING}: expected {expected}, found {cupy!r}")
    return _REQUIREMENTS[cupy]


def _set_version(tree: Path, release: Release) -> None:
    """Let ``lmcache.__version__`` be the version of the fork."""
    public, local = release.fork_version.split("+")
    numbers = tuple(int(number) for number in public.split("."))
    file = tree / "lmcache" / "_version.py"
    _replace(file, repr(release.version), repr(release.fork_version))
    _replace(file, repr(numbers), repr((*numbers, local)))


def _set_metadata(
    tree: Path, release: Release, requirements: Mapping[str, str]
) -> None:
    """Rename the ``.dist-info`` folder and adapt its METADATA."""
    folder = _dist_info(tree, release.project, release.version)
    folder = folder.rename(_dist_info(tree, release.project, release.fork_version))
    metadata = folder / "METADATA"
    version = "\nVersion: {}\n".format
    _replace(metadata, version(release.version), version(release.fork_version))
    requires = "\nRequires-Dist: {}\n".format
    for pinned, wanted in requirements.items():
        _replace(metadata, requires(pinned), requires(wanted))


def _dist_info(tree: Path, project: str, version: str) -> Path:
    """Return the folder of a distribution's metadata."""
    return tree / f"{project}-{version}.dist-info"


def _replace(file: Path, old: str, new: str) -> None:
    """Replace the one place where ``old`` stands in a file."""
    text = file.read_text("utf-8")
    if text.count(old) != 1:
        raise PatchError(
            f"{file}: expected {old!r} once, found it {text.count(old)} times"
        )
    file.write_text(text.replace(old, new), "utf-8")


def _pack(
    tree: Path, wheel: Path, attributes: Mapping[str, int], release: Release
) -> None:
    """Zip a tree, with a new RECORD and the file modes of the pinned wheel."""
    folder = _dist_info(Path(), release.project, release.fork_version)
    record = (folder / "RECORD").as_posix()
    (tree / record).unlink()
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    rows: list[Row] = []
    with ZipFile(wheel, "w") as archive:

        def add(name: str, data: bytes) -> None:
            item = ZipInfo(name, _DATE)
            item.compress_type = ZIP_DEFLATED
            item.external_attr = attributes.get(name, _REGULAR_FILE)
            archive.writestr(item, data)

        for file in files:
            name = file.relative_to(tree).as_posix()
            data = file.read_bytes()
            rows.append(file_row(name, data))
            add(name, data)
        add(record, write_record([*rows, (record, "", "")]))
