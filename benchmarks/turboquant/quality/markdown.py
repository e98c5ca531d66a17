# SPDX-License-Identifier: Apache-2.0
"""Tables in Markdown."""

# Standard
from collections.abc import Iterable


def table(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Lay out a table.

    Args:
        headers: Of the columns.
        rows: As many cells each.

    Returns:
        Lines of Markdown.
    """
    heading = list(headers)
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
