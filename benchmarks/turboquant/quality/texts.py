# SPDX-License-Identifier: Apache-2.0
"""What the model reads when the user names no text: plays, and Python's own source."""

# Standard
from importlib.util import find_spec
from pathlib import Path

# First Party
from demo_options import packaged_file

_PLAYS = ("hamlet", "macbeth", "othello", "julius_caesar", "henry_v", "richard_iii")
_MODULES = ("argparse", "ipaddress")
_HEADER_CHARACTERS = 4000
"""What is left out: a play's title and licence, a module's docstring."""


def default_texts() -> dict[str, str]:
    """Read the texts.

    Returns:
        Three plays, then a module, and so on, by name.

    Raises:
        ValueError: If the plays are not installed.
        OSError: If a file cannot be read.
    """
    plays = {
        f"{play}_gut.txt": packaged_file(
            "shakespeare", "0.6", f"shksprdata/texts/{play}_gut.txt"
        )
        for play in _PLAYS
    }
    modules = {f"{module}.py": _source(module) for module in _MODULES}
    files = [*plays.items()]
    for position, module in zip((3, 7), modules.items(), strict=True):
        files.insert(position, module)
    return {
        name: path.read_text(encoding="utf-8")[_HEADER_CHARACTERS:]
        for name, path in files
    }


def _source(module: str) -> Path:
    """Find the source of a module of the standard library."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"expected a module with source, got {module}")
    return Path(spec.origin)
