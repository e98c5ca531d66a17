# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant inspect``: what payloads hold."""

# Standard
from argparse import ArgumentParser, Namespace
from pathlib import Path

# First Party
from lmcache.cli.commands.base import BaseCommand
from lmcache.cli.commands.tool.turboquant.exit_status import USAGE_ERROR, fail
from lmcache.cli.commands.tool.turboquant.payload_command import (
    add_json_option,
    emit_report,
)


class InspectCommand(BaseCommand):
    """Show the header, sizes and checksum of a payload or of many."""

    def name(self) -> str:
        return "inspect"

    def help(self) -> str:
        return "Show what a payload, or a directory of payloads, holds."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add this command's arguments.

        Args:
            parser: Parser of the command.
        """
        parser.add_argument("path", type=Path, help="A payload, or a directory.")
        add_json_option(parser)

    def execute(self, args: Namespace) -> None:
        """Print the report; exit with 1 where a payload would be refused.

        Args:
            args: Parsed arguments.
        """
        # First Party
        from lmcache.cli.commands.tool.turboquant._payloads import (
            examine,
            find_payloads,
        )
        from lmcache.cli.commands.tool.turboquant._report import add_many, add_one

        try:
            paths = find_payloads(args.path)
        except ValueError as error:
            fail(error, USAGE_ERROR)
        payloads = [examine(path) for path in paths]
        metrics = self.create_metrics(f"TurboQuant {args.path}", args, width=72)
        if args.path.is_file():
            add_one(metrics, payloads[0])
        else:
            add_many(metrics, payloads, args.path)
        emit_report(metrics, payloads)
