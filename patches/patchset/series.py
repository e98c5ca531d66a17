# SPDX-License-Identifier: Apache-2.0
"""The numbered patches: unified diffs without context and without upstream text.

A hunk carries the lines that the fork adds. The upstream lines that it takes
out are named by place and sha256 alone; ``patches/README.md`` has the format.
A patch can therefore be applied, but only the original file can reverse it.
"""

# Standard
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
import io
import re

# First Party
from patchset.errors import PatchError
from patchset.files import sha256
from patchset.release import PATCHES_DIRECTORY

_OLD = re.compile(r"--- (?P<path>\S+) sha256:(?P<digest>[0-9a-f]{64})")
_NEW = re.compile(r"\+\+\+ (?P<path>\S+) sha256:(?P<digest>[0-9a-f]{64})")
_HUNK = re.compile(
    r"@@ -(?P<line>\d+),(?P<removed>\d+)(?: sha256:(?P<digest>[0-9a-f]{64}))?"
    r" \+(?P<added>\d+) @@"
)


@dataclass(frozen=True, kw_only=True)
class Hunk:
    """Lines that replace other lines, or stand between two.

    Attributes:
        line: First line taken out, counted from 1; where none is taken out,
            the line after which the new ones stand (0: at the top).
        removed: How many lines are taken out.
        digest: sha256 of the lines taken out, ``None`` where there are none.
        added: The new lines, each with its newline.
    """

    line: int
    removed: int
    digest: str | None
    added: tuple[bytes, ...]

    @property
    def start(self) -> int:
        """Index, from 0, of the first line that the hunk takes out or moves."""
        return self.line - 1 if self.removed else self.line


@dataclass(frozen=True, kw_only=True)
class FilePatch:
    """What one patch does to one file."""

    patch: str
    path: str
    before: str
    after: str
    hunks: tuple[Hunk, ...]

    def apply(self, original: bytes) -> bytes:
        """Return the patched file.

        Args:
            original: Content of the file, with the sha256 ``before``.

        Returns:
            The content with the sha256 ``after``.

        Raises:
            PatchError: The file, or the lines that a hunk names, are not the
                ones that the patch was made for, or the result is not ``after``.
        """
        self._expect("the file", self.before, original)
        lines = original.splitlines(keepends=True)
        for hunk in reversed(self.hunks):
            end = hunk.start + hunk.removed
            if hunk.digest is not None:
                place = f"lines {hunk.line} to {end}"
                self._expect(place, hunk.digest, b"".join(lines[hunk.start : end]))
            lines[hunk.start : end] = hunk.added
        patched = b"".join(lines)
        self._expect("the patched file", self.after, patched)
        return patched

    def _expect(self, what: str, digest: str, found: bytes) -> None:
        """Raise ``PatchError`` unless ``found`` has the sha256 ``digest``."""
        if sha256(found) != digest:
            raise PatchError(
                f"{self.patch}: {self.path}: expected {what} to have sha256 "
                f"{digest}, found {sha256(found)}"
            )


def load_series(directory: Path = PATCHES_DIRECTORY) -> tuple[FilePatch, ...]:
    """Read the patches of a folder in the order of their numbers.

    Args:
        directory: Folder with files named ``NNNN-subject.patch``.

    Returns:
        The file patches, in the order in which they apply.

    Raises:
        PatchError: A patch does not follow the format.
    """
    files = sorted(directory.glob("[0-9][0-9][0-9][0-9]-*.patch"))
    return tuple(
        file_patch
        for file in files
        for file_patch in parse_patch(file.read_text("utf-8"), file.name)
    )


def parse_patch(text: str, name: str) -> list[FilePatch]:
    """Read one patch.

    Args:
        text: Content of the patch; what stands before the first ``---`` line is
            its message.
        name: File name, for error messages.

    Returns:
        One entry for each file, in the order of the patch.

    Raises:
        PatchError: The text does not follow the format; names the line.
    """
    lines = list(io.StringIO(text))
    starts = [at for at, line in enumerate(lines) if line.startswith("--- ")]
    if not starts:
        raise PatchError(f"{name}: expected a line '--- PATH sha256:...', found none")
    ends = [*starts[1:], len(lines)]
    return [_parse_file(lines, *span, name) for span in zip(starts, ends, strict=True)]


def compose_file_patch(path: str, before: bytes, after: bytes) -> str:
    """Write the part of a patch that turns one file into another.

    Args:
        path: Path of the file in the tree.
        before: The upstream content.
        after: The wanted content.

    Returns:
        Text that ``parse_patch`` reads; of ``before`` it holds only hashes.

    Raises:
        PatchError: One of the two does not end with a newline.
    """
    if not (before.endswith(b"\n") and after.endswith(b"\n")):
        raise PatchError(f"{path}: expected both versions to end with a newline")
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    parts = [f"--- {path} sha256:{sha256(before)}\n+++ {path} sha256:{sha256(after)}\n"]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        place = f"-{start},0"
        if end > start:
            digest = sha256(b"".join(old[start:end]))
            place = f"-{start + 1},{end - start} sha256:{digest}"
        added = [f"+{line.decode('utf-8')}" for line in new[new_start:new_end]]
        parts += [f"@@ {place} +{len(added)} @@\n", *added]
    return "".join(parts)


def _parse_file(lines: list[str], start: int, end: int, name: str) -> FilePatch:
    """Read the lines ``start`` to ``end``: two headers, then hunks."""
    old = _match(_OLD, lines, start, end, name, "--- PATH sha256:HASH")
    new = _match(_NEW, lines, start + 1, end, name, "+++ PATH sha256:HASH")
    if old["path"] != new["path"]:
        raise PatchError(f"{name}:{start + 2}: expected the path {old['path']}")
    hunks = tuple(_parse_hunks(lines, start + 2, end, name))
    starts = [hunk.start for hunk in hunks]
    ends = [hunk.start + hunk.removed for hunk in hunks]
    if not hunks or any(a > b for a, b in zip(ends, starts[1:], strict=False)):
        raise PatchError(
            f"{name}:{start + 1}: expected hunks in ascending order that do not "
            f"overlap, found lines {starts}"
        )
    return FilePatch(
        patch=name,
        path=old["path"],
        before=old["digest"],
        after=new["digest"],
        hunks=hunks,
    )


def _parse_hunks(lines: list[str], at: int, end: int, name: str) -> Iterator[Hunk]:
    """Yield the hunks that stand from line ``at`` to line ``end``."""
    header_form = "@@ -LINE,COUNT sha256:HASH +COUNT @@"
    while at < end:
        header = _match(_HUNK, lines, at, end, name, header_form)
        removed, count = int(header["removed"]), int(header["added"])
        if bool(removed) != bool(header["digest"]) or not removed + count:
            raise PatchError(
                f"{name}:{at + 1}: expected a sha256 exactly where lines are taken "
                f"out, and a hunk that changes something; found {lines[at].rstrip()!r}"
            )
        body = lines[at + 1 : min(at + 1 + count, end)]
        if len(body) < count or not all(line.startswith("+") for line in body):
            raise PatchError(f"{name}:{at + 1}: expected {count} lines with a '+'")
        yield Hunk(
            line=int(header["line"]),
            removed=removed,
            digest=header["digest"],
            added=tuple(line[1:].encode("utf-8") for line in body),
        )
        at += 1 + count


def _match(
    pattern: re.Pattern[str], lines: list[str], at: int, end: int, name: str, form: str
) -> re.Match[str]:
    """Match one whole line or raise ``PatchError`` with the form that it lacks."""
    line = lines[at].rstrip("\n") if at < end else ""
    found = pattern.fullmatch(line)
    if found is None:
        raise PatchError(f"{name}:{at + 1}: expected '{form}', found {line!r}")
    return found
