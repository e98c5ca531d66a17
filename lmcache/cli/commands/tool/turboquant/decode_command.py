# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant decode``: payloads to a safetensors file."""

# Standard
from argparse import ArgumentParser, Namespace
from pathlib import Path

# First Party
from lmcache.cli.commands.base import BaseCommand
from lmcache.cli.commands.tool.turboquant.exit_status import (
    REFUSED,
    USAGE_ERROR,
    fail,
)


class DecodeCommand(BaseCommand):
    """Restore the tensors of payloads into a safetensors file."""

    def name(self) -> str:
        return "decode"

    def help(self) -> str:
        return "Restore the tensors of payloads into a safetensors file."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add this command's arguments.

        Args:
            parser: Parser of the command.
        """
        parser.add_argument("path", type=Path, help="A payload, or a directory.")
        parser.add_argument("target", type=Path, help="The safetensors file to write.")

    def execute(self, args: Namespace) -> None:
        """Write the tensors; a payload that is refused leaves no file.

        Args:
            args: Parsed arguments.
        """
        # Third Party
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        # First Party
        from lmcache.cli.commands.tool.turboquant._conversion import decode_payloads
        from lmcache.cli.commands.tool.turboquant._payloads import find_payloads

        try:
            paths = find_payloads(args.path)
        except ValueError as error:
            fail(error, USAGE_ERROR)
        try:
            tensors = decode_payloads(paths, args.path)
            save_file(tensors, args.target)
        except (OSError, ValueError, SafetensorError) as error:
            fail(error, REFUSED)
        metrics = self.create_metrics(f"TurboQuant {args.target}", args, width=72)
        metrics.add("payloads", "Payloads", len(paths))
        metrics.add("tensors", "Tensors", len(tensors))
        metrics.add("raw_bytes", "Bytes", sum(x.nbytes for x in tensors.values()))
        metrics.emit()
