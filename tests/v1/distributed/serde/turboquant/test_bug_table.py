# SPDX-License-Identifier: Apache-2.0
"""The table of public reports: complete, and every test that it names exists."""

# Standard
from functools import cache
from pathlib import Path
import ast
import re

# Third Party
import pytest

TABLE = Path("docs/design/v1/distributed/serde/turboquant-bugs.md")
ROOT = next(path for path in Path(__file__).parents if (path / TABLE).is_file())
ROW = re.compile(r"\| ([LT]\d+b?) \| (.+?) \| (.+?) \| (.+?) \|")
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")

MISSING_NUMBERS = {"L": {45}, "T": {2, 5, 9, 16, 62, 68, 73}}
LAST_NUMBER = {"L": 48, "T": 75}


def rows() -> dict[str, tuple[str, str, str]]:
    """Source, fault and answer of every row."""
    found = ROW.findall((ROOT / TABLE).read_text())
    assert len({name for name, *_ in found}) == len(found)
    return {name: (source, fault, answer) for name, source, fault, answer in found}


@cache
def functions_of(file: str) -> set[str]:
    """Names of the test functions of a file of this folder."""
    path = Path(__file__).with_name(file)
    if not path.is_file():
        return set()
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }


def test_no_report_is_missing() -> None:
    expected = {"T28b"} | {
        f"{log}{number:02}"
        for log, last in LAST_NUMBER.items()
        for number in range(1, last + 1)
        if number not in MISSING_NUMBERS[log]
    }
    assert rows().keys() == expected


@pytest.mark.parametrize("name", rows())
def test_every_report_has_a_source_and_a_test_or_a_reason(name: str) -> None:
    source, fault, answer = rows()[name]
    assert len(source) > 3 and len(fault) > 10
    named = TEST.findall(answer)
    missing = [(file, test) for file, test in named if test not in functions_of(file)]
    assert not missing
    assert named or len(answer.split()) > 7
