# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant verify``: what a server would refuse to load."""

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


class VerifyCommand(BaseCommand):
    """Check every payload below a directory of an L2 adapter."""

    def name(self) -> str:
        return "verify"

    def help(self) -> str:
        return "Check every payload of an L2 directory; list what would be refused."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add this command's arguments.

        Args:
            parser: Parser of the command.
        """
        parser.add_argument("directory", type=Path, help="base_path of the adapter.")
        parser.add_argument(
            "--serde",
            metavar="JSON",
            help="The adapter's serde object: also list what was written with other "
            "settings. Without it each payload is checked against its own header.",
        )
        add_json_option(parser)

    def execute(self, args: Namespace) -> None:
        """Print the report; exit with 1 where a payload would be refused.

        Args:
            args: Parsed arguments.
        """
        # Third Party
        from tqdm import tqdm

        # First Party
        from lmcache.cli.commands.tool.turboquant._payloads import (
            examine,
            find_payloads,
            serde_config,
        )
        from lmcache.cli.commands.tool.turboquant._report import add_refused

        try:
            config = serde_config(args.serde) if args.serde else None
            paths = find_payloads(args.directory)
        except ValueError as error:
            fail(error, USAGE_ERROR)
        # None: no bar where stderr is not a terminal.
        bar = tqdm(paths, unit="payload", disable=True if args.quiet else None)
        payloads = [examine(path, config) for path in bar]
        metrics = self.create_metrics(f"TurboQuant {args.directory}", args, width=72)
        add_refused(metrics, payloads, args.directory)
        emit_report(metrics, payloads)
