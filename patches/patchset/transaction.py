# SPDX-License-Identifier: Apache-2.0
"""Change a tree all at once, keep its originals, and put them back.

Inside the tree, ``STATE_DIRECTORY`` holds the originals under their own paths
and a journal of what was changed. New content is made and checked there first;
the tree itself then changes by renames alone. The journal is written before the
first rename, so that a change that was cut off can be taken back as well.
"""

# Standard
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
import json
import os
import shutil

# First Party
from patchset.errors import PatchError
from patchset.files import Snapshot, describe_difference, remove, snapshot
from patchset.plan import Swap

STATE_DIRECTORY = ".lmcache-turboquant"
JOURNAL = f"{STATE_DIRECTORY}/journal.json"
ORIGINALS = f"{STATE_DIRECTORY}/originals"
_STAGED = f"{STATE_DIRECTORY}/staged"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one path was and what it became."""

    path: str
    before: Snapshot
    after: Snapshot


@dataclass(frozen=True, kw_only=True)
class Journal:
    """What was changed in a tree, and whether the change came to its end."""

    complete: bool
    entries: tuple[Entry, ...]


def read_journal(tree: Path) -> Journal | None:
    """Return the journal of a tree, ``None`` where the tree keeps none."""
    file = tree / JOURNAL
    if not file.is_file():
        return None
    data = json.loads(file.read_text("utf-8"))
    entries = tuple(Entry(**entry) for entry in data["entries"])
    return Journal(complete=data["complete"], entries=entries)


def swap_in(tree: Path, swaps: Sequence[Swap]) -> None:
    """Carry out all swaps, or none.

    Args:
        tree: The tree; holds no ``STATE_DIRECTORY`` yet.
        swaps: The changes.

    Raises:
        PatchError: Writing failed; the tree is as it was before.
    """
    entries = tuple(Entry(path=s.path, before=s.before, after=s.after) for s in swaps)
    try:
        remove(tree / _STAGED)
        for swap in swaps:
            _stage(tree, swap)
        _write_journal(tree, Journal(complete=False, entries=entries))
        for swap in swaps:
            _keep_original(tree, swap.path)
            (tree / _STAGED / swap.path).rename(tree / swap.path)
        remove(tree / _STAGED)
        _write_journal(tree, Journal(complete=True, entries=entries))
    except BaseException as error:
        restore(tree)
        if isinstance(error, OSError):
            raise PatchError(f"{tree}: unchanged, writing failed: {error}") from error
        raise


def restore(tree: Path) -> None:
    """Put the originals back, after a complete change or one that was cut off.

    Args:
        tree: A tree with a ``STATE_DIRECTORY``.
    """
    journal = read_journal(tree)
    for entry in reversed(journal.entries if journal else ()):
        original = tree / ORIGINALS / entry.path
        if os.path.lexists(original):
            remove(tree / entry.path)
            original.rename(tree / entry.path)
        elif not entry.before:
            remove(tree / entry.path)
    forget(tree)


def forget(tree: Path) -> None:
    """Give up the originals: the tree stays as it is and cannot be reversed."""
    remove(tree / STATE_DIRECTORY)


def first_change(tree: Path, journal: Journal) -> str | None:
    """Describe the first file, patched or original, that is not as the journal says.

    Args:
        tree: The tree.
        journal: Its journal.

    Returns:
        What was expected and found, ``None`` where nothing changed.
    """
    for entry in journal.entries:
        original = f"{ORIGINALS}/{entry.path}"
        for path, expected in (entry.path, entry.after), (original, entry.before):
            found = snapshot(tree / path)
            if found != expected:
                return describe_difference(path, expected, found)
    return None


def _stage(tree: Path, swap: Swap) -> None:
    """Make the new content of one path, next to the originals."""
    staged = tree / _STAGED / swap.path
    staged.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(swap.content, bytes):
        staged.write_bytes(swap.content)
        shutil.copymode(tree / swap.path, staged)
    elif swap.link:
        staged.symlink_to(swap.content)
    else:
        for name in swap.after:
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(swap.content / name, staged / name)
    found = snapshot(staged)
    if found != swap.after:
        raise OSError(f"{swap.path} was copied as {found}, expected {swap.after}")


def _keep_original(tree: Path, path: str) -> None:
    """Move what the tree has at ``path``, if anything, to the originals."""
    if os.path.lexists(tree / path):
        original = tree / ORIGINALS / path
        original.parent.mkdir(parents=True, exist_ok=True)
        (tree / path).rename(original)


def _write_journal(tree: Path, journal: Journal) -> None:
    """Replace the journal in one step."""
    draft = tree / f"{JOURNAL}.draft"
    draft.write_text(json.dumps(asdict(journal), indent=1), "utf-8")
    draft.rename(tree / JOURNAL)
