# SPDX-License-Identifier: Apache-2.0
"""RECORD, the list of the files that pip owns, of a wheel or an installation."""

# Standard
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
import csv
import hashlib
import io

# First Party
from patchset.files import sha256, snapshot
from patchset.plan import Swap
from patchset.release import Release
from patchset.transaction import JOURNAL, ORIGINALS

# Path, hash, size. Hash and size are empty where pip does not know them.
Row = tuple[str, str, str]


def read_record(data: bytes) -> list[Row]:
    """Return the rows of a RECORD file."""
    reader = csv.reader(io.StringIO(data.decode("utf-8")))
    return [(path, digest, size) for path, digest, size in reader]


def write_record(rows: Iterable[Row]) -> bytes:
    """Return the RECORD file that holds ``rows``."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def file_row(path: str, data: bytes) -> Row:
    """Return the row of one file."""
    digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return (path, f"sha256={digest.decode('ascii')}", str(len(data)))


def record_swap(tree: Path, release: Release, swaps: Sequence[Swap]) -> Swap | None:
    """Return the change to RECORD that goes with the other changes of a tree.

    pip then owns what is laid over an installation, and the originals kept in
    it, so that uninstalling leaves nothing. It does not own the files behind a
    link: installing another version over it would write into this repository.

    Args:
        tree: The tree.
        release: The pins.
        swaps: All other changes.

    Returns:
        The change, ``None`` for a tree without such a file.
    """
    path = f"{release.project}-{release.version}.dist-info/RECORD"
    if not (tree / path).is_file():
        return None
    swapped = tuple(f"{swap.path}/" for swap in swaps)
    rows: list[Row] = [(JOURNAL, "", ""), (f"{ORIGINALS}/{path}", "", "")]
    for row in read_record((tree / path).read_bytes()):
        moved = f"{row[0]}/".startswith(swapped)
        rows.append((f"{ORIGINALS}/{row[0]}", *row[1:]) if moved else row)
    for swap in swaps:
        rows += _new_rows(swap)
    content = write_record(rows)
    after = {"": sha256(content)}
    return Swap(path=path, before=snapshot(tree / path), after=after, content=content)


def _new_rows(swap: Swap) -> list[Row]:
    """Return the rows of what a swap puts into the tree."""
    if isinstance(swap.content, bytes):
        return [file_row(swap.path, swap.content)]
    if swap.link:
        return [(swap.path, "", "")]
    return [
        file_row(f"{swap.path}/{name}" if name else swap.path, source.read_bytes())
        for name in swap.after
        for source in [swap.content / name]
    ]
