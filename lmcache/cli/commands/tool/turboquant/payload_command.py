# SPDX-License-Identifier: Apache-2.0
"""What the commands that report on stored payloads share."""

# Standard
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import TYPE_CHECKING
import sys

# First Party
from lmcache.cli.commands.tool.turboquant.exit_status import REFUSED
from lmcache.cli.metrics import Metrics

if TYPE_CHECKING:
    # First Party
    from lmcache.cli.commands.tool.turboquant._payloads import Payload


def add_json_option(parser: ArgumentParser) -> None:
    """Add ``--json``.

    Args:
        parser: Parser of the command.
    """
    parser.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="The same as --format json.",
    )


def emit_report(metrics: Metrics, payloads: Sequence["Payload"]) -> None:
    """Print a report; exit with ``REFUSED`` where a payload would be refused.

    Args:
        metrics: The report.
        payloads: What it is about.
    """
    metrics.emit()
    if any(payload.refusal for payload in payloads):
        sys.exit(REFUSED)
