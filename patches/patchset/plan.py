# SPDX-License-Identifier: Apache-2.0
"""Compare a tree with the patch set and work out what has to change.

Nothing here writes. A tree is judged by content: each path that the patch set
touches has to be as the release has it, or as the patch set leaves it, and all
of them alike.
"""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
import re

# First Party
from patchset.errors import PatchError
from patchset.files import Snapshot, describe_difference, link_snapshot, snapshot
from patchset.release import REPOSITORY, Release, load_release
from patchset.series import FilePatch, load_series

# Every tree has the package. Other paths (docs, tests) concern source trees
# alone: next to an installed package such a folder would be somebody else's.
PACKAGE = "lmcache/"

_VERSION = re.compile(r"^__version__ = .*'([^']+)'$", re.MULTILINE)


class TreeState(Enum):
    """What the patch set finds in a tree."""

    PRISTINE = "as released"
    COPIED = "patched, by copy"
    LINKED = "patched, by link"


@dataclass(frozen=True, kw_only=True)
class PatchSet:
    """The pins, the series and the repository whose files are laid over a tree."""

    release: Release = field(default_factory=load_release)
    series: tuple[FilePatch, ...] = field(default_factory=load_series)
    repository: Path = REPOSITORY


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One path of a tree and what takes its place.

    Attributes:
        path: Path in the tree.
        before: What the tree has there now.
        after: What stands there afterwards.
        content: The new content of a file, or a path to copy or to link to.
        link: Whether ``content`` is linked to.
    """

    path: str
    before: Snapshot
    after: Snapshot
    content: bytes | Path
    link: bool = False


@dataclass(frozen=True, kw_only=True)
class Target:
    """One path that the patch set touches, in its possible states."""

    path: str
    states: dict[TreeState, Snapshot]
    source: Path | None = None
    patches: tuple[FilePatch, ...] = ()

    def swap(self, tree: Path, mode: TreeState) -> Swap:
        """Return the change that brings a pristine path into the state ``mode``."""
        content: bytes | Path
        if self.source is not None:
            content = self.source
        else:
            content = (tree / self.path).read_bytes()
            for patch in self.patches:
                content = patch.apply(content)
        return Swap(
            path=self.path,
            before=self.states[TreeState.PRISTINE],
            after=self.states[mode],
            content=content,
            link=self.source is not None and mode is TreeState.LINKED,
        )


def find_targets(tree: Path, patch_set: PatchSet) -> list[Target]:
    """Return everything that the patch set touches in a tree of this kind.

    Args:
        tree: Folder that holds ``lmcache/``.
        patch_set: What to apply.

    Returns:
        The targets: what is laid over the tree, then what is patched in it.

    Raises:
        PatchError: ``tree`` is not a tree of the pinned release, or the
            repository lacks something that is to be laid over it.
    """
    check_release(tree, patch_set.release)
    targets = [_overlay_target(path, patch_set) for path in patch_set.release.overlay]
    patched_paths = dict.fromkeys(patch.path for patch in patch_set.series)
    targets += [_series_target(path, patch_set) for path in patched_paths]
    everything = is_source_tree(tree, patch_set.release)
    found = [t for t in targets if everything or t.path.startswith(PACKAGE)]
    for target in found:
        if not target.states[TreeState.COPIED]:
            raise PatchError(f"expected {target.source} to be laid over, found nothing")
        if not (tree / target.path).parent.is_dir():
            raise PatchError(f"{tree}: expected a folder that holds {target.path}")
    return found


def is_source_tree(tree: Path, release: Release) -> bool:
    """Say whether a tree is LMCache's source, not an installed or unpacked wheel."""
    project_file = tree / "pyproject.toml"
    name = f'name = "{release.project}"'
    return project_file.is_file() and name in project_file.read_text("utf-8")


def check_release(tree: Path, release: Release) -> None:
    """Check that a folder is a tree of the pinned release, or of the fork.

    Args:
        tree: The folder.
        release: The pins.

    Raises:
        PatchError: There is no ``lmcache`` package in it, or another version.
    """
    package = tree / PACKAGE
    if not (package / "__init__.py").is_file():
        raise PatchError(f"{tree}: expected a folder that holds the package lmcache")
    version_file = package / "_version.py"
    if not version_file.is_file() and is_source_tree(tree, release):
        return  # A git checkout has none; the hashes of its files decide.
    text = version_file.read_text("utf-8") if version_file.is_file() else ""
    found = _VERSION.search(text)
    version = found[1] if found else "no version"
    if version not in (release.version, release.fork_version):
        raise PatchError(
            f"{version_file}: expected LMCache {release.version}, found {version}"
        )


def judge(tree: Path, targets: Sequence[Target]) -> TreeState:
    """Return the one state that all targets are in.

    Args:
        tree: The tree.
        targets: What ``find_targets`` returned for it.

    Returns:
        The state.

    Raises:
        PatchError: A target is in no known state, or they are not all in the
            same; names a file, what was expected and what was found.
    """
    possible = {}
    for target in targets:
        found = snapshot(tree / target.path)
        possible[target.path] = {s for s in TreeState if target.states[s] == found}
        if not possible[target.path]:
            raise PatchError(f"{tree}: {_explain(target, found)}")
    common = set(TreeState).intersection(*possible.values())
    if not common:
        states = "; ".join(
            f"{path} is {' or '.join(sorted(state.value for state in states))}"
            for path, states in possible.items()
        )
        raise PatchError(f"{tree}: half patched: {states}")
    return common.pop()


def _overlay_target(path: str, patch_set: PatchSet) -> Target:
    """Return the target for something of the repository laid over a tree."""
    source = patch_set.repository / path
    local = tuple(patch_set.release.local)
    ours = {
        name: digest
        for name, digest in snapshot(source).items()
        if not f"{path}/{name}".startswith(local)
    }
    states = {
        TreeState.PRISTINE: patch_set.release.overlay[path],
        TreeState.COPIED: ours,
        TreeState.LINKED: link_snapshot(source),
    }
    return Target(path=path, states=states, source=source)


def _series_target(path: str, patch_set: PatchSet) -> Target:
    """Return the target for a file of the release that the series patches."""
    patches = tuple(patch for patch in patch_set.series if patch.path == path)
    states = dict.fromkeys(TreeState, {"": patches[-1].after})
    states[TreeState.PRISTINE] = {"": patches[0].before}
    return Target(path=path, states=states, patches=patches)


def _explain(target: Target, found: Snapshot) -> str:
    """Say where a target differs from the known state that it is closest to."""

    def shared(state: TreeState) -> int:
        return len(target.states[state].items() & found.items())

    closest = max(TreeState, key=shared)
    difference = describe_difference(target.path, target.states[closest], found)
    return f"{difference} (closest to {closest.value})"
