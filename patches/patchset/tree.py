# SPDX-License-Identifier: Apache-2.0
"""Apply the patch set to a tree, reverse it, and say what state a tree is in."""

# Standard
from collections.abc import Sequence
from pathlib import Path

# First Party
from patchset.errors import PatchError
from patchset.plan import PatchSet, Swap, TreeState, find_targets, judge
from patchset.record import record_swap
from patchset.transaction import first_change, read_journal, restore, swap_in


def tree_state(tree: Path, patch_set: PatchSet) -> TreeState:
    """Return the state of a tree.

    Args:
        tree: Folder that holds ``lmcache/``.
        patch_set: What it is compared with.

    Returns:
        The state that all paths are in.

    Raises:
        PatchError: The tree is of another release, half patched, changed by
            hand, cut off while it was patched, or patched by another version
            of the patch set.
    """
    targets = find_targets(tree, patch_set)
    journal = read_journal(tree)
    if journal is not None and not journal.complete:
        raise PatchError(f"{tree}: patching was cut off; reverse it first")
    try:
        return judge(tree, targets)
    except PatchError as error:
        if journal is not None and first_change(tree, journal) is None:
            raise PatchError(
                f"{tree}: patched from another version of this repository; "
                f"reverse it first ({error})"
            ) from error
        raise


def plan_swaps(tree: Path, patch_set: PatchSet, mode: TreeState) -> list[Swap]:
    """Return the changes that bring a tree into the state ``mode``.

    Args:
        tree: Folder that holds ``lmcache/``.
        patch_set: What to apply.
        mode: ``TreeState.COPIED`` or ``TreeState.LINKED``.

    Returns:
        The changes, none where the tree is in that state already.

    Raises:
        PatchError: The tree is in none of the states that ``tree_state``
            returns, or is patched in the other mode.
    """
    state = tree_state(tree, patch_set)
    if state is mode:
        return []
    if state is not TreeState.PRISTINE:
        raise PatchError(
            f"{tree}: expected a tree {TreeState.PRISTINE.value} or {mode.value}, "
            f"found it {state.value}; reverse it first"
        )
    swaps = [target.swap(tree, mode) for target in find_targets(tree, patch_set)]
    record = record_swap(tree, patch_set.release, swaps)
    return swaps if record is None else [*swaps, record]


def apply(
    tree: Path, patch_set: PatchSet, mode: TreeState = TreeState.COPIED
) -> Sequence[Swap]:
    """Bring a tree into the state ``mode``.

    Args:
        tree: Folder that holds ``lmcache/``.
        patch_set: What to apply.
        mode: ``TreeState.COPIED`` or ``TreeState.LINKED``.

    Returns:
        The changes made, none where the tree was in that state already.

    Raises:
        PatchError: As ``plan_swaps``, or writing failed. The tree is then as it
            was before.
    """
    swaps = plan_swaps(tree, patch_set, mode)
    if swaps:
        swap_in(tree, swaps)
    return swaps


def plan_reverse(tree: Path, patch_set: PatchSet) -> list[str]:
    """Return the paths that a reverse would restore.

    Args:
        tree: Folder that holds ``lmcache/``.
        patch_set: The patch set; what was applied is read from the tree.

    Returns:
        The paths, none where the tree is as released.

    Raises:
        PatchError: The tree holds no originals, or was changed since.
    """
    journal = read_journal(tree)
    if journal is None:
        state = tree_state(tree, patch_set)
        if state is TreeState.PRISTINE:
            return []
        raise PatchError(
            f"{tree}: {state.value}, but it holds no originals to restore; "
            f"install LMCache {patch_set.release.version} or check it out anew"
        )
    change = first_change(tree, journal) if journal.complete else None
    if change is not None:
        raise PatchError(f"{tree}: changed after it was patched: {change}")
    return [entry.path for entry in journal.entries]


def reverse(tree: Path, patch_set: PatchSet) -> list[str]:
    """Restore the originals of a patched tree, bit for bit.

    Args:
        tree: Folder that holds ``lmcache/``.
        patch_set: The patch set; what was applied is read from the tree.

    Returns:
        The paths restored, none where the tree is as released.

    Raises:
        PatchError: As ``plan_reverse``.
    """
    paths = plan_reverse(tree, patch_set)
    if paths:
        restore(tree)
    return paths
