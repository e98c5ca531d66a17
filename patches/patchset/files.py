# SPDX-License-Identifier: Apache-2.0
"""Snapshots: what stands at a path, as hashes that can be compared and stored.

A snapshot maps each file below a path to its sha256. A path that is a file
itself has the single key ``""``, a symbolic link has the key ``""`` with its
target, and nothing at all is the empty mapping. Bytecode caches do not count.
"""

# Standard
from pathlib import Path
import hashlib
import os
import shutil

Snapshot = dict[str, str]

_BYTECODE_DIRECTORY = "__pycache__"


def sha256(data: bytes) -> str:
    """Return the hexadecimal sha256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def link_snapshot(target: Path) -> Snapshot:
    """Return the snapshot of a symbolic link to ``target``."""
    return {"": f"link to {target}"}


def snapshot(path: Path) -> Snapshot:
    """Return what stands at ``path``.

    Args:
        path: A file, a directory, a symbolic link, or nothing.

    Returns:
        The snapshot as the module describes it.
    """
    if path.is_symlink():
        return link_snapshot(path.readlink())
    if path.is_file():
        return {"": sha256(path.read_bytes())}
    return {
        file.relative_to(path).as_posix(): sha256(file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file() and _BYTECODE_DIRECTORY not in file.parts
    }


def describe_difference(path: str, expected: Snapshot, found: Snapshot) -> str:
    """Say where two snapshots of one path differ first, in sorted order.

    Args:
        path: The path, for the message.
        expected: What should stand there.
        found: What stands there, not equal to ``expected``.

    Returns:
        The file, what was expected and what was found.
    """
    keys = sorted(expected.keys() | found.keys())
    key = next(key for key in keys if expected.get(key) != found.get(key))
    return (
        f"{path}{'/' if key else ''}{key}: expected {expected.get(key, 'nothing')}, "
        f"found {found.get(key, 'nothing')}"
    )


def remove(path: Path) -> None:
    """Remove whatever stands at ``path``; a link goes, its target stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
