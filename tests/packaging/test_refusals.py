# SPDX-License-Identifier: Apache-2.0
"""Trees that the patch set does not touch, and what it says about them."""

# Standard
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
import shutil

# Third Party
import pytest

# First Party
from patchset.errors import PatchError
from patchset.plan import PatchSet, TreeState
from patchset.transaction import ORIGINALS, STATE_DIRECTORY
from patchset.tree import apply, reverse
from tests.packaging.trees import (
    SUBPACKAGE,
    copy_packages,
    fingerprint,
    refuse,
    rewrite,
)


def break_package(tree: Path) -> None:
    shutil.rmtree(tree / "lmcache")


def break_version(tree: Path) -> None:
    file = tree / "lmcache" / "_version.py"
    rewrite(file, file.read_text("utf-8").replace("0.5.6", "0.5.7"))


def break_version_file(tree: Path) -> None:
    rewrite(tree / "lmcache" / "_version.py", "commit_id = None\n")


def break_module(tree: Path) -> None:
    rewrite(tree / SUBPACKAGE / "store_kernel.py", "# edited by hand\n")


def remove_module(tree: Path) -> None:
    (tree / SUBPACKAGE / "decode_kernel.py").unlink()


def add_module(tree: Path) -> None:
    rewrite(tree / SUBPACKAGE / "extra.py", "# added by hand\n")


def remove_parent(tree: Path) -> None:
    shutil.rmtree(tree / Path(SUBPACKAGE).parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (break_package, "expected a folder that holds the package lmcache"),
        (break_version, "_version.py: expected LMCache 0.5.6, found 0.5.7"),
        (break_version_file, "_version.py: expected LMCache 0.5.6, found no version"),
        (break_module, f"{SUBPACKAGE}/store_kernel.py: expected a5ae4b8.*, found "),
        (remove_module, f"{SUBPACKAGE}/decode_kernel.py: expected .*, found nothing"),
        (add_module, f"{SUBPACKAGE}/extra.py: expected nothing, found .*as released"),
        (remove_parent, f"expected a folder that holds {SUBPACKAGE}"),
    ],
)
def test_apply_refuses_another_tree(
    tree: Path, patch_set: PatchSet, change: Callable[[Path], None], message: str
) -> None:
    change(tree)
    refuse(tree, patch_set, message)


def test_apply_refuses_a_half_patched_tree(
    pristine_sdist: Path, patch_set: PatchSet, tmp_path: Path
) -> None:
    tree = Path(shutil.copytree(pristine_sdist, tmp_path / "sdist"))
    shutil.rmtree(tree / SUBPACKAGE)
    shutil.copytree(patch_set.repository / SUBPACKAGE, tree / SUBPACKAGE)
    refuse(
        tree, patch_set, f"half patched: {SUBPACKAGE} is patched, by copy; .* is as rel"
    )


def test_apply_refuses_a_repository_without_the_package(
    wheel_tree: Path, patch_set: PatchSet, tmp_path: Path
) -> None:
    empty = replace(patch_set, repository=tmp_path / "empty")
    refuse(wheel_tree, empty, "expected .*turboquant to be laid over, found nothing")


def test_apply_refuses_a_tree_patched_from_another_version(
    wheel_tree: Path, patch_set: PatchSet, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    copy_packages(patch_set, repository)
    older = replace(patch_set, repository=repository)
    apply(wheel_tree, older)
    rewrite(repository / SUBPACKAGE / "added.py", "VALUE = 1\n")
    refuse(wheel_tree, older, "patched from another version .*; reverse it first")
    reverse(wheel_tree, older)
    assert apply(wheel_tree, older)


@pytest.mark.parametrize("folder", ["", f"{ORIGINALS}/"])
def test_reverse_refuses_a_tree_changed_since(
    wheel_tree: Path, patch_set: PatchSet, folder: str
) -> None:
    apply(wheel_tree, patch_set)
    rewrite(wheel_tree / f"{folder}{SUBPACKAGE}/__init__.py", "# edited by hand\n")
    before = fingerprint(wheel_tree)
    with pytest.raises(PatchError, match="changed after it was patched: .*__init__.py"):
        reverse(wheel_tree, patch_set)
    assert fingerprint(wheel_tree) == before


def test_reverse_refuses_a_tree_without_originals(
    wheel_tree: Path, patch_set: PatchSet
) -> None:
    apply(wheel_tree, patch_set)
    shutil.rmtree(wheel_tree / STATE_DIRECTORY)
    with pytest.raises(PatchError, match="patched, by copy, but it holds no originals"):
        reverse(wheel_tree, patch_set)


def test_modes_do_not_mix(wheel_tree: Path, patch_set: PatchSet) -> None:
    apply(wheel_tree, patch_set, TreeState.COPIED)
    message = (
        "expected a tree as released or patched, by link, found it patched, by copy"
    )
    refuse(wheel_tree, patch_set, message, mode=TreeState.LINKED)
