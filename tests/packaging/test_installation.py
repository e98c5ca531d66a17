# SPDX-License-Identifier: Apache-2.0
"""An LMCache that pip installed, patched in place: pip still knows what it owns."""

# Standard
from dataclasses import replace
from pathlib import Path
import compileall

# Third Party
import pytest

# First Party
from patchset.fetch import fetch_wheel
from patchset.files import snapshot
from patchset.plan import PatchSet, TreeState
from patchset.tree import apply, reverse
from tests.packaging.environments import Environment
from tests.packaging.trees import SUBPACKAGE, copy_packages, fingerprint


@pytest.fixture(scope="module")
def environment(
    patch_set: PatchSet, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment with the pinned LMCache; each test puts it back so."""
    made = Environment(tmp_path_factory.mktemp("environment"))
    install(made, patch_set)
    return made


@pytest.fixture
def copied_set(patch_set: PatchSet, tmp_path: Path) -> PatchSet:
    """The patch set with a copy of the package, which a mistake may destroy."""
    copy_packages(patch_set, tmp_path)
    return replace(patch_set, repository=tmp_path)


@pytest.mark.parametrize("mode", [TreeState.COPIED, TreeState.LINKED])
def test_uninstall_leaves_nothing_but_the_repository(
    environment: Environment, copied_set: PatchSet, mode: TreeState
) -> None:
    ours = fingerprint(copied_set.repository)
    apply(environment.packages, copied_set, mode)
    environment.pip("uninstall", "--yes", "lmcache")
    left = {name for name in environment.files() if "lmcache" in name.lower()}
    assert left == set()
    assert not (environment.packages / "lmcache").exists()
    assert fingerprint(copied_set.repository) == ours
    install(environment, copied_set)


def test_reinstall_does_not_write_through_the_link(
    environment: Environment, copied_set: PatchSet
) -> None:
    ours = fingerprint(copied_set.repository)
    apply(environment.packages, copied_set, TreeState.LINKED)
    install(environment, copied_set, "--force-reinstall")
    assert fingerprint(copied_set.repository) == ours
    released = copied_set.release.overlay[SUBPACKAGE]
    assert snapshot(environment.packages / SUBPACKAGE) == released


def test_reverse_restores_the_installation(
    environment: Environment, copied_set: PatchSet
) -> None:
    before = fingerprint(environment.packages)
    apply(environment.packages, copied_set, TreeState.LINKED)
    reverse(environment.packages, copied_set)
    assert fingerprint(environment.packages) == before


def install(environment: Environment, patch_set: PatchSet, *options: str) -> None:
    """Install the pinned wheel, with the bytecode of the subpackage."""
    wheel = str(fetch_wheel(patch_set.release))
    environment.pip("install", "-qq", "--no-deps", "--no-compile", *options, wheel)
    compileall.compile_dir(environment.packages / SUBPACKAGE, quiet=1)
