# SPDX-License-Identifier: Apache-2.0
"""The patch format, and the patches written in it."""

# Standard
from pathlib import Path

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

# First Party
from patchset.errors import PatchError
from patchset.plan import PatchSet
from patchset.series import compose_file_patch, load_series, parse_patch

BEFORE = b"one\ntwo\nthree\nfour\n"
AFTER = b"zero\none\n2\n3\nfour\nfive\n"
HASH = "0" * 64
HEADERS = f"--- a.txt sha256:{HASH}\n+++ a.txt sha256:{HASH}\n"

# An upstream line this long in a patch would be a copy, not a coincidence.
TELLING_LENGTH = 25

texts = st.lists(st.sampled_from(["", "a", "b", "+a", "--- c", "@@"]), min_size=1).map(
    lambda lines: "".join(f"{line}\n" for line in lines).encode("utf-8")
)


def test_patch_names_removed_lines_and_quotes_added_ones() -> None:
    patch = compose_file_patch("a.txt", BEFORE, AFTER)
    lines = patch.splitlines()
    assert [
        line.split(" sha256:")[0] for line in lines if line[:2] in ("--", "@@")
    ] == [
        "--- a.txt",
        "@@ -0,0 +1 @@",
        "@@ -2,2",
        "@@ -4,0 +1 @@",
    ]
    assert [line for line in lines if line[:1] == "+" and line[:3] != "+++"] == [
        "+zero",
        "+2",
        "+3",
        "+five",
    ]


@settings(deadline=None, derandomize=True)
@given(before=texts, after=texts)
def test_composed_patch_gives_the_edited_file(before: bytes, after: bytes) -> None:
    if before == after:
        return
    text = f"Why\n\n{compose_file_patch('a.txt', before, after)}"
    (file_patch,) = parse_patch(text, "0001-a.patch")
    assert file_patch.path == "a.txt"
    assert file_patch.apply(before) == after


def test_patch_of_two_files() -> None:
    text = compose_file_patch("a", BEFORE, AFTER) + compose_file_patch(
        "b", AFTER, BEFORE
    )
    first, second = parse_patch(text, "0001-a.patch")
    assert (first.path, second.path) == ("a", "b")
    assert second.apply(first.apply(BEFORE)) == BEFORE


def test_patch_refuses_another_file() -> None:
    (patch,) = parse_patch(compose_file_patch("a.txt", BEFORE, AFTER), "0001-a.patch")
    with pytest.raises(PatchError, match="0001-a.patch: a.txt: expected the file to"):
        patch.apply(BEFORE + b"five\n")


def test_patch_refuses_lines_that_are_not_the_named_ones() -> None:
    text = compose_file_patch("a.txt", BEFORE, AFTER).replace("@@ -2,2 ", "@@ -3,2 ")
    (patch,) = parse_patch(text, "0001-a.patch")
    with pytest.raises(PatchError, match="expected lines 3 to 4 to have sha256"):
        patch.apply(BEFORE)


def test_patch_refuses_a_wrong_result() -> None:
    text = compose_file_patch("a.txt", BEFORE, AFTER).replace("+five", "+six")
    (patch,) = parse_patch(text, "0001-a.patch")
    with pytest.raises(PatchError, match="expected the patched file to have sha256"):
        patch.apply(BEFORE)


def test_compose_refuses_a_file_without_final_newline() -> None:
    with pytest.raises(PatchError, match="end with a newline"):
        compose_file_patch("a.txt", BEFORE, b"one")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Only a message\n", "x.patch: expected a line '--- PATH"),
        (f"--- a.txt\n+++ a.txt sha256:{HASH}\n", "x.patch:1: expected '--- PATH"),
        (f"--- a.txt sha256:{HASH}\n", "x.patch:2: expected '[+]{3} PATH"),
        (HEADERS.replace("+++ a", "+++ b"), "x.patch:2: expected the path a.txt"),
        (HEADERS, "x.patch:1: expected hunks in ascending order"),
        (f"{HEADERS} one\n", "x.patch:3: expected '@@ -LINE"),
        (f"{HEADERS}@@ -1,1 +1 @@\n+a\n", "x.patch:3: expected a sha256 exactly"),
        (f"{HEADERS}@@ -1,0 sha256:{HASH} +1 @@\n+a\n", "expected a sha256 exactly"),
        (f"{HEADERS}@@ -1,0 +0 @@\n", "a hunk that changes something"),
        (f"{HEADERS}@@ -1,0 +2 @@\n+a\n", "x.patch:3: expected 2 lines with a '[+]'"),
        (f"{HEADERS}@@ -1,0 +1 @@\n-a\n", "x.patch:3: expected 1 lines with a '[+]'"),
        (
            f"{HEADERS}@@ -4,0 +1 @@\n+a\n@@ -2,0 +1 @@\n+a\n",
            "expected hunks in ascending order",
        ),
    ],
)
def test_parser_names_the_line_it_refuses(text: str, message: str) -> None:
    with pytest.raises(PatchError, match=message):
        parse_patch(text, "x.patch")


def test_series_applies_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    second = compose_file_patch("a.txt", AFTER, BEFORE)
    (tmp_path / "0002-b.patch").write_text(second, "utf-8")
    first = compose_file_patch("a.txt", BEFORE, AFTER)
    (tmp_path / "0001-z.patch").write_text(first, "utf-8")
    (tmp_path / "README.md").write_text("--- not a patch\n", "utf-8")
    assert [patch.patch for patch in load_series(tmp_path)] == [
        "0001-z.patch",
        "0002-b.patch",
    ]


def test_series_applies_to_the_release(
    patch_set: PatchSet, pristine_sdist: Path
) -> None:
    contents: dict[str, bytes] = {}
    for patch in patch_set.series:
        released = (pristine_sdist / patch.path).read_bytes()
        contents[patch.path] = patch.apply(contents.get(patch.path, released))


def test_series_quotes_no_line_of_the_release(
    patch_set: PatchSet, pristine_sdist: Path
) -> None:
    upstream = {
        line.strip()
        for file in pristine_sdist.rglob("*")
        if file.suffix in {".md", ".po", ".py", ".rst", ".txt", ".toml", ".yaml"}
        for line in file.read_bytes().splitlines()
    }
    added = {
        line.strip()
        for patch in patch_set.series
        for hunk in patch.hunks
        for line in hunk.added
    }
    assert added
    assert not {line for line in added & upstream if len(line) >= TELLING_LENGTH}
