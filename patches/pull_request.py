# SPDX-License-Identifier: Apache-2.0
"""Turn a git checkout of LMCache into the branch of a pull request.

The patch set becomes signed-off commits on a new branch, which is then checked
out: code, tests, design document, user guide. The checkout has to be clean and
of the pinned release. The exit status is 2 when it was refused, and then left as
it was.
"""

# Standard
from pathlib import Path
import argparse
import re
import sys
import tempfile

# First Party
from patchset.errors import PatchError
from patchset.git import git
from patchset.plan import PatchSet, TreeState
from patchset.transaction import forget
from patchset.tree import apply, plan_swaps

DEFAULT_BRANCH = "turboquant-serde"

# Key of the git configuration, per branch, that tells where the branch begins.
BASE_KEY = "branch.{}.base"

# How the paths of a commit begin, its subject and its body, in order.
COMMITS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        (
            "lmcache/integration/",
            "lmcache/v1/distributed/api.py",
            "lmcache/v1/distributed/kv_content.py",
            "lmcache/v1/distributed/l2_adapters/",
            "lmcache/v1/distributed/memory_manager/",
            "lmcache/v1/kv_layer_groups.py",
            "lmcache/v1/memory_management.py",
            "lmcache/v1/mp_observability/",
            "lmcache/v1/multiprocess/",
        ),
        "[Core] Let layout descriptions say what tensors hold",
        "A kernel group's KV format, head count and head size, and what the engine\n"
        "says of its KV, reach the objects allocated from a layout description and\n"
        "the estimate of a serde. Nothing changes where nobody says anything.",
    ),
    (
        ("lmcache/v1/distributed/serde/",),
        "[Core] Rewrite the TurboQuant serde",
        "One module for each concern: configuration, byte layout, tables, a plain\n"
        "torch reference and the codec. Payloads of the four presets stay\n"
        "interchangeable with those of the released serde. It also runs on hosts\n"
        "without a GPU, pads with zero bytes and refuses invalid settings when\n"
        "the serde is created.",
    ),
    (
        ("tests/v1/", "requirements/"),
        "[Test] Cover the TurboQuant serde",
        "The tests mirror the package: byte layout to the byte, distortion against\n"
        "theory, frozen payloads, and round trips that really quantise.",
    ),
    (
        ("lmcache/cli/", "tests/cli/"),
        "[CLI] Add lmcache tool turboquant",
        "It inspects and verifies stored payloads, such as those below the base_path\n"
        "of an fs adapter, and encodes and decodes safetensors files.",
    ),
    (
        ("docs/design/",),
        "[Doc] Describe the design of the TurboQuant serde",
        "The byte format, the contracts that it keeps and the reasons for both.",
    ),
    (
        ("docs/source/",),
        "[Doc] Add a TurboQuant page to the user guide",
        "How to choose a preset, what every setting does, what was measured.",
    ),
)


def make_branch(
    checkout: Path, patch_set: PatchSet, branch: str, author: str | None
) -> list[str]:
    """Make the branch and its commits, and check it out.

    Args:
        checkout: A clean git checkout of the pinned release.
        patch_set: What to commit.
        branch: Name of the branch, which must not exist.
        author: ``Name <email>`` that writes and signs the commits; ``None``
            takes git's own configuration.

    Returns:
        The subjects of the commits, oldest first.

    Raises:
        PatchError: The checkout is dirty, of another release or patched already,
            the branch exists, the author has the wrong form, or git fails. The
            checkout is then as it was.
    """
    identity = _identity(author)
    if git(checkout, "status", "--porcelain"):
        raise PatchError(f"{checkout}: expected a clean checkout, found changes")
    if git(checkout, "branch", "--list", branch):
        raise PatchError(f"{checkout}: expected no branch {branch}, found one")
    if not plan_swaps(checkout, patch_set, TreeState.COPIED):
        raise PatchError(f"{checkout}: already patched; nothing to commit")
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder) / "worktree"
        add = ["worktree", "add", "--quiet", "-b", branch, str(worktree), "HEAD"]
        git(checkout, *add)
        try:
            subjects = _commit_all(worktree, patch_set, identity)
        except BaseException:
            _remove_worktree(checkout, worktree)
            git(checkout, "branch", "--quiet", "-D", branch)
            raise
        _remove_worktree(checkout, worktree)
    git(checkout, "config", BASE_KEY.format(branch), git(checkout, "rev-parse", "HEAD"))
    git(checkout, "switch", "--quiet", branch)
    return subjects


def _identity(author: str | None) -> list[str]:
    """Return the git options that set author and committer."""
    if author is None:
        return []
    form = re.fullmatch(r"([^<>]+) <([^<>\s]+@[^<>\s]+)>", author)
    if form is None:
        raise PatchError(f"expected an author 'Name <email>', found {author!r}")
    return ["-c", f"user.name={form[1]}", "-c", f"user.email={form[2]}"]


def _commit_all(worktree: Path, patch_set: PatchSet, identity: list[str]) -> list[str]:
    """Patch a worktree and commit it, group by group; return the subjects."""
    paths = [swap.path for swap in apply(worktree, patch_set)]
    forget(worktree)
    subjects = []
    for prefixes, subject, body in COMMITS:
        group = [path for path in paths if path.startswith(prefixes)]
        if group:
            # Some of our data files match LMCache's .gitignore.
            git(worktree, "add", "--all", "--force", "--", *group)
            message = ["--message", subject, "--message", body]
            commit = ["commit", "--quiet", "--signoff", "--no-verify", *message]
            git(worktree, *identity, *commit)
            subjects.append(subject)
    if git(worktree, "status", "--porcelain"):
        raise PatchError(f"expected a commit for each of {paths}, found some left over")
    return subjects


def _remove_worktree(checkout: Path, worktree: Path) -> None:
    """Remove a worktree and what git knows of it."""
    git(checkout, "worktree", "remove", "--force", str(worktree))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments, those of the process where ``None``.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument("--branch", default=DEFAULT_BRANCH, metavar="NAME")
    parser.add_argument("--author", metavar="'NAME <EMAIL>'")
    options = parser.parse_args(arguments)
    checkout = options.checkout.resolve()
    try:
        subjects = make_branch(checkout, PatchSet(), options.branch, options.author)
    except PatchError as error:
        print(f"pull_request: {error}", file=sys.stderr)
        return 2
    print(f"{checkout}: branch {options.branch}")
    for subject in subjects:
        print(f"  {subject}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
