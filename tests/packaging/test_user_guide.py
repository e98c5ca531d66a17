# SPDX-License-Identifier: Apache-2.0
"""The user guide keeps up with the serde."""

# Standard
from dataclasses import fields
import re

# Third Party
import pytest

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from patchset.release import REPOSITORY

SETTINGS = {field.name for field in fields(TurboQuantSerdeConfig)}
SETTINGS |= {"max_workers", "encrypt"}


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("docs/source/mp/turboquant.rst", r"   \* - .*"),
        ("patches/0001-user-guide.patch", r"\+ {5,}.*"),
    ],
)
def test_every_setting_is_named(page: str, lines: str) -> None:
    table = re.findall(lines, (REPOSITORY / page).read_text())
    named = set(re.findall(r"``(\w+)``", "\n".join(table)))
    assert SETTINGS - named == set()
