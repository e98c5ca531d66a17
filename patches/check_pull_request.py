# SPDX-License-Identifier: Apache-2.0
"""Run LMCache's own checks on a branch that ``pull_request.py`` made.

Its pre-commit hooks see the files that the branch touches. Its serde tests run
on the code of the branch, with the native extensions of the pinned wheel. All
this happens in a worktree of its own; the checkout is left alone. The exit
status is 1 when a check fails, and 2 when the checks could not be run.
"""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile
import argparse
import os
import subprocess
import sys
import tempfile

# First Party
from patchset.errors import PatchError
from patchset.fetch import fetch_wheel
from patchset.git import git
from patchset.hooks import Check, hook_checks
from patchset.release import load_release
from pull_request import BASE_KEY

# Tests must neither report usage nor leave caches in the worktree.
_SETTINGS = {"LMCACHE_TRACK_USAGE": "false", "PYTHONDONTWRITEBYTECODE": "1"}
_SERDE_TESTS = Check(
    name="serde tests",
    command=(
        sys.executable,
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "log_cli=false"),
        "tests/v1/distributed/serde",
    ),
)


def touched_files(checkout: Path, base: str | None) -> list[str]:
    """Return the files that the branch adds or changes.

    Args:
        checkout: The checkout, on the branch.
        base: Where the branch begins; ``None`` takes what ``pull_request.py``
            wrote down.

    Returns:
        Paths in the checkout.

    Raises:
        PatchError: The branch touches nothing, or git knows no such base.
    """
    if base is None:
        branch = git(checkout, "rev-parse", "--abbrev-ref", "HEAD")
        base = git(checkout, "config", BASE_KEY.format(branch))
    difference = ["diff", "--name-only", "--diff-filter=d", f"{base}...HEAD"]
    files = git(checkout, *difference).splitlines()
    if not files:
        raise PatchError(f"{checkout}: expected changes since {base}, found none")
    return files


@contextmanager
def worktree_of(checkout: Path) -> Iterator[Path]:
    """Give a throwaway worktree of the commit that is checked out."""
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder) / "worktree"
        git(checkout, "worktree", "add", "--quiet", "--detach", str(worktree), "HEAD")
        try:
            yield worktree
        finally:
            git(checkout, "worktree", "remove", "--force", str(worktree))


def complete_package(worktree: Path) -> None:
    """Add what the wheel has and git does not: extensions and generated modules."""
    release = load_release()
    with ZipFile(fetch_wheel(release)) as wheel:
        for name in wheel.namelist():
            replaced = name.startswith(tuple(release.overlay))
            if name.startswith("lmcache/") and not replaced:
                if not (worktree / name).exists():
                    wheel.extract(name, worktree)


def run_check(check: Check, directory: Path) -> bool:
    """Run one check, print its result, and its output where it fails."""
    environment = {**os.environ, **_SETTINGS}
    done = subprocess.run(
        check.command,
        cwd=directory,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode:
        print(f"FAIL  {check.name}", *lines, sep="\n      ", flush=True)
    else:
        print(f"ok    {check.name}  {lines[-1]}".rstrip(), flush=True)
    return not done.returncode


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments, those of the process where ``None``.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument("--base", metavar="REVISION", help="where the branch begins")
    options = parser.parse_args(arguments)
    checkout = options.checkout.resolve()
    try:
        files = touched_files(checkout, options.base)
        with worktree_of(checkout) as worktree:
            checks = list(hook_checks(worktree, files))
            results = [run_check(check, worktree) for check in checks]
            complete_package(worktree)
            results.append(run_check(_SERDE_TESTS, worktree))
    except PatchError as error:
        print(f"check_pull_request: {error}", file=sys.stderr)
        return 2
    print(f"{sum(results)} of {len(results)} checks passed on {len(files)} files")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
