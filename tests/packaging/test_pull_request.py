# SPDX-License-Identifier: Apache-2.0
"""The branch for LMCache, made in a checkout of the real source tree."""

# Standard
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

# Third Party
import pytest

# First Party
from check_pull_request import main as check
from check_pull_request import run_check, touched_files, worktree_of
from patchset.errors import PatchError
from patchset.files import snapshot
from patchset.git import git
from patchset.hooks import hook_checks
from patchset.plan import PatchSet, TreeState
from patchset.tree import plan_swaps, tree_state
from pull_request import COMMITS, main, make_branch
from tests.packaging.conftest import copy_tree
from tests.packaging.trees import SUBPACKAGE, rewrite

AUTHOR = "Ada Lovelace <ada@example.org>"
BRANCH = "turboquant-serde"


@pytest.fixture(scope="module")
def released_checkout(
    pristine_sdist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A git checkout of the release; not to be changed."""
    checkout = copy_tree(
        pristine_sdist, tmp_path_factory.mktemp("released") / "lmcache"
    )
    git(checkout, "init", "--quiet", "--initial-branch=dev")
    # Copies share files by hard links: git must not append to its logs, nor take
    # a new link for a change.
    git(checkout, "config", "core.logAllRefUpdates", "false")
    git(checkout, "config", "core.trustctime", "false")
    git(checkout, "add", "--all")
    git(checkout, *identity("LMCache"), "commit", "--quiet", "--message=LMCache 0.5.6")
    return checkout


@pytest.fixture
def checkout(released_checkout: Path, tmp_path: Path) -> Path:
    """A copy of that checkout, to be changed."""
    return copy_tree(released_checkout, tmp_path / "checkout")


@pytest.fixture(scope="module")
def branch_checkout(
    released_checkout: Path,
    patch_set: PatchSet,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A clone, without ignored files, on the branch; not to be changed."""
    clone = tmp_path_factory.mktemp("branch") / "clone"
    git(released_checkout, "clone", "--quiet", ".", str(clone))
    make_branch(clone, patch_set, BRANCH, AUTHOR)
    return clone


def test_branch_has_one_signed_commit_for_each_concern(branch_checkout: Path) -> None:
    assert git(branch_checkout, "branch", "--show-current") == BRANCH
    log = git(
        branch_checkout, "log", "--reverse", "--format=%an <%ae>%x00%B%x1f", "dev.."
    )
    commits = [entry.strip("\n").split("\0") for entry in log.split("\x1f")[:-1]]
    subjects = [subject for _, subject, _ in COMMITS]
    assert [message.split("\n")[0] for _, message in commits] == subjects
    for author, message in commits:
        assert author == AUTHOR
        assert message.strip().endswith(f"\n\nSigned-off-by: {AUTHOR}")


def test_branch_touches_what_the_patch_set_touches(
    branch_checkout: Path, patch_set: PatchSet, pristine_sdist: Path
) -> None:
    swaps = plan_swaps(pristine_sdist, patch_set, TreeState.COPIED)
    ours = {f"{s.path}/{name}".rstrip("/") for s in swaps for name in s.after}
    theirs = {f"{s.path}/{name}".rstrip("/") for s in swaps for name in s.before}
    changed = git(branch_checkout, "diff", "--name-only", "--no-renames", "dev..")
    assert set(changed.splitlines()) == ours | theirs
    assert set(touched_files(branch_checkout, None)) == ours
    assert tree_state(branch_checkout, patch_set) is TreeState.COPIED
    assert git(branch_checkout, "status", "--porcelain", "--ignored") == ""


def test_each_commit_holds_its_own_paths(branch_checkout: Path) -> None:
    revisions = git(branch_checkout, "rev-list", "--reverse", "dev..").splitlines()
    for revision, (prefixes, _, _) in zip(revisions, COMMITS, strict=True):
        files = git(branch_checkout, "show", "--format=", "--name-only", revision)
        assert all(file.startswith(prefixes) for file in files.splitlines())


def test_branch_knows_nothing_of_this_repository(branch_checkout: Path) -> None:
    for file in touched_files(branch_checkout, None):
        assert b"patchset" not in (branch_checkout / file).read_bytes(), file


def test_data_files_that_lmcache_ignores_are_committed(
    checkout: Path, patch_set: PatchSet, tmp_path: Path
) -> None:
    repository = copy_overlay(patch_set, tmp_path / "repository")
    tests = "tests/v1/distributed/serde/turboquant"
    (repository / tests / "table.csv").write_text("1\n", "utf-8")
    make_branch(checkout, replace(patch_set, repository=repository), BRANCH, AUTHOR)
    assert f"{tests}/table.csv" in touched_files(checkout, "dev")


def add_file(checkout: Path) -> None:
    (checkout / "notes.txt").write_text("mine\n", "utf-8")


def edit_file(checkout: Path) -> None:
    rewrite(checkout / "README.md", "mine\n")


def commit_edit(checkout: Path) -> None:
    rewrite(checkout / SUBPACKAGE / "store_kernel.py", "# mine\n")
    git(checkout, *identity("Me"), "commit", "--all", "--quiet", "--message=Edit")


def add_branch(checkout: Path) -> None:
    git(checkout, "branch", BRANCH)


def remove_git(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "git")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (add_file, "expected a clean checkout, found changes"),
        (edit_file, "expected a clean checkout, found changes"),
        (commit_edit, f"{SUBPACKAGE}/store_kernel.py: expected .*, found "),
        (add_branch, f"expected no branch {BRANCH}, found one"),
        (remove_git, "status --porcelain: fatal: not a git repository"),
    ],
)
def test_checkout_is_refused_and_left_alone(
    checkout: Path,
    patch_set: PatchSet,
    change: Callable[[Path], None],
    message: str,
) -> None:
    change(checkout)
    before = snapshot(checkout)
    with pytest.raises(PatchError, match=message):
        make_branch(checkout, patch_set, BRANCH, AUTHOR)
    assert without_index(snapshot(checkout)) == without_index(before)


def test_failing_commit_leaves_no_branch(checkout: Path, patch_set: PatchSet) -> None:
    git(checkout, "config", "user.useConfigOnly", "true")
    git(checkout, "config", "user.name", "")
    with pytest.raises(PatchError, match="commit"):
        make_branch(checkout, patch_set, BRANCH, None)
    assert git(checkout, "branch", "--format=%(refname:short)") == "dev"
    assert len(git(checkout, "worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("author", ["Ada", "Ada <ada>", "<ada@example.org>", ""])
def test_author_needs_a_name_and_an_address(
    released_checkout: Path, patch_set: PatchSet, author: str
) -> None:
    with pytest.raises(PatchError, match="expected an author 'Name <email>', found"):
        make_branch(released_checkout, patch_set, BRANCH, author)


def test_command_makes_the_branch_once(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(checkout), "--branch", "mine", "--author", AUTHOR]) == 0
    assert capsys.readouterr().out.startswith(f"{checkout}: branch mine\n  [Core] ")
    assert main([str(checkout), "--branch", "other", "--author", AUTHOR]) == 2
    assert "already patched; nothing to commit" in capsys.readouterr().err


def test_branch_passes_lmcaches_hooks(branch_checkout: Path) -> None:
    files = touched_files(branch_checkout, None)
    with worktree_of(branch_checkout) as worktree:
        checks = list(hook_checks(worktree, files))
        assert all([run_check(check, worktree) for check in checks])
    names = {check.name for check in checks}
    assert {"check-spdx-header", "ban-direct-torch-device"} < names
    assert {"isort", "ruff", "ruff-format", "codespell", "mypy"} < names


def test_hooks_find_what_is_wrong(checkout: Path) -> None:
    file = f"{SUBPACKAGE}/bad.py"
    text = "import os, torch\nx: int = 'torch.cuda'\n# t{}\n".format("eh")
    (checkout / file).write_text(text, "utf-8")
    git(checkout, "add", "--all")
    git(checkout, *identity("Me"), "commit", "--quiet", "--message=Bad")
    with worktree_of(checkout) as worktree:
        checks = hook_checks(worktree, touched_files(checkout, "HEAD~1"))
        failed = {check.name for check in checks if not run_check(check, worktree)}
    assert failed == {
        "check-spdx-header",
        "ban-direct-torch-device",
        "isort",
        "ruff",
        "ruff-format",
        "codespell",
        "mypy",
    }
    assert git(checkout, "status", "--porcelain") == ""


def test_hooks_refuse_a_tool_of_another_version(
    branch_checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchset.hooks.version", lambda project: "0.0")
    with pytest.raises(PatchError, match="isort: expected isort 6.0.1, found 0.0"):
        list(hook_checks(branch_checkout, [f"{SUBPACKAGE}/codec.py"]))


def test_check_refuses_a_checkout_without_a_branch(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check([str(checkout)]) == 2
    assert "config branch.dev.base" in capsys.readouterr().err
    assert check([str(checkout), "--base", "dev"]) == 2
    assert "expected changes since dev, found none" in capsys.readouterr().err


def identity(name: str) -> list[str]:
    """Return the git options that set author and committer."""
    return ["-c", f"user.name={name}", "-c", "user.email=someone@example.org"]


def copy_overlay(patch_set: PatchSet, target: Path) -> Path:
    """Copy what the patch set lays over a tree; return the new repository."""
    for path in patch_set.release.overlay:
        for name in snapshot(patch_set.repository / path):
            copy = target / path / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((patch_set.repository / path / name).read_bytes())
    return target


def without_index(files: dict[str, str]) -> dict[str, str]:
    """Leave out git's index, which looking at a checkout already refreshes."""
    return {name: digest for name, digest in files.items() if name != ".git/index"}
