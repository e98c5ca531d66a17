# SPDX-License-Identifier: Apache-2.0
"""Run git in a checkout."""

# Standard
from pathlib import Path
import subprocess

# First Party
from patchset.errors import PatchError


def git(checkout: Path, *arguments: str) -> str:
    """Run one git command.

    Args:
        checkout: The checkout to run it in.
        arguments: The command, without ``git``.

    Returns:
        What it printed, without the newline at the end.

    Raises:
        PatchError: git fails; carries what it said.
    """
    command = ["git", "-C", str(checkout), *arguments]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise PatchError(f"{' '.join(command)}: {said}")
    return done.stdout.rstrip("\n")
