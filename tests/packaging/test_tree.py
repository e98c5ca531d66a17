# SPDX-License-Identifier: Apache-2.0
"""Applying the patch set to the real trees, and taking it back."""

# Standard
from dataclasses import replace
from pathlib import Path
import json

# Third Party
import pytest

# First Party
from patchset.errors import PatchError
from patchset.files import snapshot
from patchset.plan import PACKAGE, PatchSet, TreeState
from patchset.transaction import JOURNAL
from patchset.tree import apply, plan_reverse, plan_swaps, reverse, tree_state
from tests.packaging.trees import (
    SUBPACKAGE,
    copy_packages,
    fingerprint,
    package_paths,
    refuse,
    rewrite,
)

MODES = (TreeState.COPIED, TreeState.LINKED)


@pytest.mark.parametrize("mode", MODES)
def test_reverse_restores_every_byte(
    tree: Path, patch_set: PatchSet, mode: TreeState
) -> None:
    before = fingerprint(tree)
    apply(tree, patch_set, mode)
    assert tree_state(tree, patch_set) is mode
    reverse(tree, patch_set)
    assert tree_state(tree, patch_set) is TreeState.PRISTINE
    assert fingerprint(tree) == before


def test_patched_tree_has_our_files_and_none_of_theirs(
    tree: Path, patch_set: PatchSet
) -> None:
    apply(tree, patch_set)
    assert snapshot(tree / SUBPACKAGE) == snapshot(patch_set.repository / SUBPACKAGE)
    released = patch_set.release.overlay[SUBPACKAGE]
    assert not snapshot(tree / SUBPACKAGE).items() & released.items()


def test_wheel_gets_the_package_alone(wheel_tree: Path, patch_set: PatchSet) -> None:
    paths = [swap.path for swap in apply(wheel_tree, patch_set)]
    patched = dict.fromkeys(patch.path for patch in patch_set.series)
    assert paths == [
        *package_paths(patch_set),
        *(path for path in patched if path.startswith(PACKAGE)),
        "lmcache-0.5.6.dist-info/RECORD",
    ]
    assert not (wheel_tree / "docs").exists()


def test_source_tree_gets_tests_and_documents_too(
    pristine_sdist: Path, patch_set: PatchSet
) -> None:
    swaps = plan_swaps(pristine_sdist, patch_set, TreeState.COPIED)
    patched = {patch.path for patch in patch_set.series}
    assert {swap.path for swap in swaps} == {*patch_set.release.overlay, *patched}
    files = {f"{swap.path}/{name}" for swap in swaps for name in swap.after}
    assert not {x for x in files if x.startswith(tuple(patch_set.release.local))}


@pytest.mark.parametrize("mode", MODES)
def test_second_apply_does_nothing(
    tree: Path, patch_set: PatchSet, mode: TreeState
) -> None:
    assert apply(tree, patch_set, mode)
    patched = fingerprint(tree)
    assert not apply(tree, patch_set, mode)
    assert fingerprint(tree) == patched


def test_reverse_of_a_released_tree_does_nothing(
    tree: Path, patch_set: PatchSet
) -> None:
    before = fingerprint(tree)
    assert not reverse(tree, patch_set)
    assert fingerprint(tree) == before


def test_plans_write_nothing(tree: Path, patch_set: PatchSet) -> None:
    before = fingerprint(tree)
    swaps = plan_swaps(tree, patch_set, TreeState.COPIED)
    assert fingerprint(tree) == before
    apply(tree, patch_set)
    patched = fingerprint(tree)
    assert plan_reverse(tree, patch_set) == [swap.path for swap in swaps]
    assert fingerprint(tree) == patched


def test_linked_package_follows_edits(
    wheel_tree: Path, patch_set: PatchSet, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    copy_packages(patch_set, repository)
    apply(wheel_tree, replace(patch_set, repository=repository), TreeState.LINKED)
    rewrite(repository / SUBPACKAGE / "added.py", "VALUE = 1\n")
    assert (wheel_tree / SUBPACKAGE / "added.py").read_text("utf-8") == "VALUE = 1\n"
    reverse(wheel_tree, replace(patch_set, repository=repository))
    assert (repository / SUBPACKAGE / "added.py").exists()


def test_bytecode_does_not_count(wheel_tree: Path, patch_set: PatchSet) -> None:
    cache = wheel_tree / SUBPACKAGE / "__pycache__"
    cache.mkdir()
    rewrite(cache / "store_kernel.cpython-311.pyc", "bytecode")
    before = fingerprint(wheel_tree)
    apply(wheel_tree, patch_set)
    assert not cache.exists()
    cache.mkdir()
    rewrite(cache / "codec.cpython-311.pyc", "bytecode")
    reverse(wheel_tree, patch_set)
    assert fingerprint(wheel_tree) == before


def test_failing_write_leaves_the_tree_as_it_was(
    tree: Path, patch_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever rename fails: of an original, of what replaces it, of a journal."""
    before = fingerprint(tree)
    swaps = plan_swaps(tree, patch_set, TreeState.COPIED)
    renames = sum(2 if swap.before else 1 for swap in swaps) + 2
    for failing in range(renames):
        with monkeypatch.context() as patch:
            fail_rename(patch, failing)
            with pytest.raises(
                PatchError, match="unchanged, writing failed: disk full"
            ):
                apply(tree, patch_set)
        assert fingerprint(tree) == before


def test_cut_off_change_can_be_reversed(
    tree: Path, patch_set: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint(tree)
    with monkeypatch.context() as patch:
        fail_rename(patch, 3)
        patch.setattr("patchset.transaction.restore", lambda tree: None)
        with pytest.raises(PatchError):
            apply(tree, patch_set)
    assert fingerprint(tree) != before
    assert not json.loads((tree / JOURNAL).read_text("utf-8"))["complete"]
    refuse(tree, patch_set, "patching was cut off; reverse it first")
    reverse(tree, patch_set)
    assert fingerprint(tree) == before


def fail_rename(monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    """Let one rename fail, counted from 0; all others do their work."""
    rename = Path.rename
    count = 0

    def counted_rename(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == failing + 1:
            raise OSError("disk full")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted_rename)
