# SPDX-License-Identifier: Apache-2.0
"""The pinned wheel and source distribution, real and pristine, for every test."""

# Standard
from pathlib import Path
from zipfile import ZipFile
import os
import shutil

# Third Party
import pytest

# First Party
from patchset.fetch import fetch_sdist, fetch_wheel, unpack_sdist
from patchset.plan import PatchSet
from patchset.release import Release, load_release

KINDS = ("wheel", "sdist")


@pytest.fixture(scope="session")
def release() -> Release:
    """The pins."""
    return load_release()


@pytest.fixture(scope="session")
def patch_set() -> PatchSet:
    """The patch set of this repository."""
    return PatchSet()


@pytest.fixture(scope="session")
def pristine_wheel(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned wheel, unpacked; not to be changed."""
    tree = tmp_path_factory.mktemp("wheel")
    with ZipFile(fetch_wheel(release)) as wheel:
        wheel.extractall(tree)
    return tree


@pytest.fixture(scope="session")
def pristine_sdist(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned source distribution, unpacked; not to be changed."""
    return unpack_sdist(fetch_sdist(release), tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def wheel_tree(pristine_wheel: Path, tmp_path: Path) -> Path:
    """A copy of the wheel's tree, to be patched."""
    return copy_tree(pristine_wheel, tmp_path / "wheel")


@pytest.fixture(params=KINDS)
def tree(
    request: pytest.FixtureRequest,
    pristine_wheel: Path,
    pristine_sdist: Path,
    tmp_path: Path,
) -> Path:
    """A copy of the wheel's tree, then of the source tree, to be patched."""
    source = {"wheel": pristine_wheel, "sdist": pristine_sdist}[request.param]
    return copy_tree(source, tmp_path / request.param)


def copy_tree(source: Path, target: Path) -> Path:
    """Copy a tree by hard links: files in it may be replaced, not written to."""
    return Path(shutil.copytree(source, target, copy_function=os.link))
