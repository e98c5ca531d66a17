# SPDX-License-Identifier: Apache-2.0
"""What tests do to trees, and how they compare them."""

# Standard
from pathlib import Path
import shutil

# Third Party
import pytest

# First Party
from patchset.errors import PatchError
from patchset.files import sha256
from patchset.plan import PACKAGE, PatchSet, TreeState
from patchset.tree import apply

SUBPACKAGE = "lmcache/v1/distributed/serde/turboquant"


def package_paths(patch_set: PatchSet) -> list[str]:
    """Return what the patch set lays over a tree without docs and tests."""
    return [path for path in patch_set.release.overlay if path.startswith(PACKAGE)]


def copy_packages(patch_set: PatchSet, repository: Path) -> None:
    """Copy what the patch set lays over a tree without docs and tests."""
    for path in package_paths(patch_set):
        source, target = patch_set.repository / path, repository / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)


def rewrite(path: Path, text: str) -> None:
    """Replace a file by another one, as hard-linked trees need it."""
    path.unlink(missing_ok=True)
    path.write_text(text, "utf-8")


def fingerprint(tree: Path) -> dict[str, tuple[str, int, int]]:
    """Return content, mode and time of change of everything in a tree.

    Args:
        tree: The tree.

    Returns:
        For each path the sha256 (of a link: its target), the mode and the time
        in nanoseconds; folders have no content and no time.
    """
    result = {}
    for path in sorted(tree.rglob("*")):
        status = path.lstat()
        name = path.relative_to(tree).as_posix()
        if path.is_symlink():
            result[name] = (f"link to {path.readlink()}", status.st_mode, 0)
        elif path.is_dir():
            result[name] = ("", status.st_mode, 0)
        else:
            digest = sha256(path.read_bytes())
            result[name] = (digest, status.st_mode, status.st_mtime_ns)
    return result


def refuse(
    tree: Path,
    patch_set: PatchSet,
    message: str,
    mode: TreeState = TreeState.COPIED,
) -> None:
    """Assert that a tree is refused, with a message that matches, and left alone."""
    before = fingerprint(tree)
    with pytest.raises(PatchError, match=message):
        apply(tree, patch_set, mode)
    assert fingerprint(tree) == before
