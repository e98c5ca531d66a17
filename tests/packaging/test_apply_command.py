# SPDX-License-Identifier: Apache-2.0
"""The command line of ``patches/apply.py``."""

# Standard
from pathlib import Path
import subprocess
import sys

# First Party
from patchset.release import REPOSITORY
from tests.packaging.trees import SUBPACKAGE, rewrite


def run(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a tree."""
    command = [sys.executable, str(REPOSITORY / "patches" / "apply.py"), str(tree)]
    return subprocess.run([*command, *options], text=True, capture_output=True)


def test_life_of_a_tree(wheel_tree: Path) -> None:
    swapped = f"replace {SUBPACKAGE} by {REPOSITORY / SUBPACKAGE}"
    assert run(wheel_tree, "--status").stdout == f"{wheel_tree}: as released\n"
    assert run(wheel_tree, "--dry-run").stdout.startswith(f"would {swapped}\n")
    assert run(wheel_tree, "--reverse").stdout.endswith("as released; nothing to do\n")
    assert run(wheel_tree).stdout.startswith(f"{swapped}\n")
    assert run(wheel_tree).stdout.endswith("already patched, by copy; nothing to do\n")
    dry = run(wheel_tree, "--reverse", "--dry-run").stdout
    assert dry.startswith(f"would restore {SUBPACKAGE}\n")
    assert run(wheel_tree, "--reverse").stdout == dry.replace("would ", "")
    linked = run(wheel_tree, "--link").stdout
    assert linked.startswith(swapped.replace(" by ", " by a link to "))
    assert run(wheel_tree, "--status").stdout.endswith("patched, by link\n")


def test_refused_tree_gives_status_2_and_one_line(wheel_tree: Path) -> None:
    rewrite(wheel_tree / SUBPACKAGE / "store_kernel.py", "# edited by hand\n")
    for options in ([], ["--dry-run"], ["--link"], ["--status"], ["--reverse"]):
        done = run(wheel_tree, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"apply: {wheel_tree}: {SUBPACKAGE}/store_kernel")
        assert done.stderr.count("\n") == 1
