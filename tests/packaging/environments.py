# SPDX-License-Identifier: Apache-2.0
"""Virtual environments to install the fork, or LMCache, into."""

# Standard
from collections.abc import Mapping
from pathlib import Path
import os
import subprocess
import sys
import venv


class Environment:
    """An environment that pip works on from outside; it has no packages itself."""

    def __init__(self, directory: Path) -> None:
        """Make the environment in ``directory``."""
        venv.create(directory, symlinks=True)
        self.directory = directory
        python = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = directory / "lib" / python / "site-packages"

    def pip(self, *arguments: str, settings: Mapping[str, str] = os.environ) -> str:
        """Run pip on the environment.

        Args:
            arguments: The command and its arguments.
            settings: The environment variables.

        Returns:
            What pip printed.

        Raises:
            RuntimeError: pip fails; carries what it said.
        """
        command = [sys.executable, "-m", "pip", "--python", str(self.directory)]
        return run([*command, *arguments], settings)

    def python(self, code: str) -> str:
        """Run code that sees the environment before the packages of the tests."""
        settings = {
            **os.environ,
            "PYTHONPATH": str(self.packages),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LMCACHE_TRACK_USAGE": "false",
            "LMCACHE_DISABLE_BANNER": "1",
        }
        return run([sys.executable, "-c", code], settings)

    def files(self) -> set[str]:
        """Return the paths of everything that is not a folder."""
        return {
            path.relative_to(self.directory).as_posix()
            for path in self.directory.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }


def run(command: list[str], settings: Mapping[str, str] = os.environ) -> str:
    """Run a command and return what it printed; ``RuntimeError`` where it fails."""
    # From a folder of no project: Python puts the current one on its path.
    done = subprocess.run(
        command, env=settings, cwd="/", text=True, capture_output=True
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout
