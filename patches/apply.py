# SPDX-License-Identifier: Apache-2.0
"""Apply the TurboQuant patch set to an LMCache tree, or reverse it.

TREE is a folder that holds the package ``lmcache``: the site-packages of a
virtual environment, an unpacked wheel, an unpacked source distribution or a git
checkout. The exit status is 0 when the tree is as asked for, and 2 when it was
refused, and then left as it was.
"""

# Standard
from pathlib import Path
import argparse
import sys

# First Party
from patchset.errors import PatchError
from patchset.plan import PatchSet, Swap, TreeState
from patchset.tree import apply, plan_reverse, plan_swaps, reverse, tree_state


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments, those of the process where ``None``.

    Returns:
        The exit status.
    """
    options = _parser().parse_args(arguments)
    tree = options.tree.resolve()
    try:
        patch_set = PatchSet()
        if options.status:
            print(f"{tree}: {tree_state(tree, patch_set).value}")
        elif options.reverse:
            _reverse(tree, patch_set, options.dry_run)
        else:
            mode = TreeState.LINKED if options.link else TreeState.COPIED
            _apply(tree, patch_set, mode, options.dry_run)
    except PatchError as error:
        print(f"apply: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument(
        "--dry-run", action="store_true", help="say what would be done, do nothing"
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--link", action="store_true", help="link to this repository: edits are live"
    )
    action.add_argument(
        "--reverse", action="store_true", help="restore the tree, bit for bit"
    )
    action.add_argument(
        "--status", action="store_true", help="say what state the tree is in"
    )
    return parser


def _apply(tree: Path, patch_set: PatchSet, mode: TreeState, dry_run: bool) -> None:
    """Apply the patch set, or only plan it, and report."""
    plan = plan_swaps if dry_run else apply
    swaps = plan(tree, patch_set, mode)
    if not swaps:
        print(f"{tree}: already {mode.value}; nothing to do")
    for swap in swaps:
        print(f"{'would ' if dry_run else ''}{_describe(swap)}")


def _describe(swap: Swap) -> str:
    """Return one line on a change."""
    if isinstance(swap.content, bytes):
        return f"patch {swap.path}"
    verb = "replace" if swap.before else "add"
    return f"{verb} {swap.path} by {'a link to ' if swap.link else ''}{swap.content}"


def _reverse(tree: Path, patch_set: PatchSet, dry_run: bool) -> None:
    """Reverse the patch set, or only plan it, and report."""
    plan = plan_reverse if dry_run else reverse
    paths = plan(tree, patch_set)
    if not paths:
        print(f"{tree}: already {TreeState.PRISTINE.value}; nothing to do")
    for path in paths:
        print(f"{'would ' if dry_run else ''}restore {path}")


if __name__ == "__main__":
    sys.exit(main())
