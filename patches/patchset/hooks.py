# SPDX-License-Identifier: Apache-2.0
"""LMCache's pre-commit hooks as commands, without pre-commit and without fixes.

Local hooks run as they stand in the configuration. Hooks from elsewhere run
through the tool that is installed here, which has to be of the version that the
configuration names.
"""

# Standard
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
import atexit
import re
import shlex
import shutil
import sys
import sysconfig
import venv

# Third Party
import yaml

# First Party
from patchset.errors import PatchError

CONFIGURATION = ".pre-commit-config.yaml"

# A hook of the configuration, as YAML has it.
Hook = dict[str, object]

# File name patterns of the hook types that the configuration uses.
_TYPES = {"python": r"\.py$", "text": r"", "c++": r"\.(cpp|h)$", "cuda": r"\.cuh?$"}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A hook that is a Python package: what it checks and how to run it.

    Attributes:
        project: Name of its distribution.
        files: Pattern of the files that it checks.
        command: Module and arguments.
        sees: The packages that the configuration installs beside it, where it
            reads types of others.
    """

    project: str
    files: str
    command: str
    sees: tuple[str, ...] = ()


_TOOLS = {
    "isort": Tool(
        project="isort", files=r"\.pyi?$", command="isort --check-only --diff"
    ),
    "ruff": Tool(project="ruff", files=r"\.pyi?$", command="ruff check --no-fix"),
    "ruff-format": Tool(
        project="ruff", files=r"\.pyi?$", command="ruff format --check --diff"
    ),
    "codespell": Tool(
        project="codespell", files="", command="codespell_lib --toml pyproject.toml"
    ),
    # pre-commit runs it where the project's requirements are not installed.
    "mypy": Tool(
        project="mypy",
        files=r"\.pyi?$",
        command="mypy --config-file=pyproject.toml --python-version=3.12",
        sees=("msgspec", "requests-stubs", "yaml-stubs", "aiofiles-stubs"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Check:
    """One command to run in a checkout; it fails by its exit status."""

    name: str
    command: tuple[str, ...]


def hook_checks(checkout: Path, files: Sequence[str]) -> Iterator[Check]:
    """Yield a check for each hook that concerns some of the files.

    Args:
        checkout: An LMCache checkout.
        files: Paths in it.

    Yields:
        The checks, in the order of the configuration.

    Raises:
        PatchError: A tool is missing, of another version, or not known here.
    """
    text = (checkout / CONFIGURATION).read_text("utf-8")
    for source in yaml.safe_load(text)["repos"]:
        for hook in source["hooks"]:
            chosen = [file for file in files if _concerns(hook, file)]
            if not chosen:
                continue
            if source["repo"] == "local":
                yield _check(hook, shlex.split(str(hook["entry"])), chosen)
            else:
                tool = _tool(hook, source["rev"])
                chosen = [file for file in chosen if re.search(tool.files, file)]
                command = [sys.executable, "-m", *shlex.split(tool.command)]
                if tool.sees:
                    python = _environment(tool.sees) / "bin" / "python"
                    command.append(f"--python-executable={python}")
                yield _check(hook, command, chosen)


@cache
def _environment(packages: tuple[str, ...]) -> Path:
    """Make a virtual environment of these installed packages, for this process."""
    folder = Path(mkdtemp())
    atexit.register(shutil.rmtree, folder)
    venv.create(folder, with_pip=False)
    variables = {"base": str(folder), "platbase": str(folder)}
    target = Path(sysconfig.get_path("purelib", "venv", variables))
    for package in packages:
        (target / package).symlink_to(_installed(package))
    return folder


def _installed(package: str) -> Path:
    """Return the folder of an installed package, or of stubs, which none imports."""
    for kind in ("purelib", "platlib"):
        folder = Path(sysconfig.get_path(kind)) / package
        if folder.is_dir():
            return folder
    raise PatchError(f"{CONFIGURATION}: expected {package} to be installed")


def _check(hook: Hook, command: Sequence[str], files: Sequence[str]) -> Check:
    """Return the check that runs a command on some files."""
    return Check(name=str(hook["id"]), command=(*command, *files))


def _concerns(hook: Hook, file: str) -> bool:
    """Say whether a hook's own filters let a file through."""
    types = hook.get("types_or", hook.get("types", ["text"]))
    if not isinstance(types, list):
        raise PatchError(f"{hook['id']}: expected a list of types, found {types!r}")
    return (
        any(re.search(_TYPES[kind], file) for kind in types)
        and bool(re.search(str(hook.get("files", "")), file))
        and not re.search(str(hook.get("exclude", "^$")), file)
    )


def _tool(hook: Hook, revision: str) -> Tool:
    """Return the tool of a hook, after a look at its version."""
    name = str(hook["id"])
    if name not in _TOOLS:
        raise PatchError(
            f"{CONFIGURATION}: expected one of {', '.join(_TOOLS)}, found {name}"
        )
    tool = _TOOLS[name]
    expected = revision.removeprefix("v")
    try:
        found = version(tool.project)
    except PackageNotFoundError:
        found = "none"
    if found != expected:
        raise PatchError(f"{name}: expected {tool.project} {expected}, found {found}")
    return tool
