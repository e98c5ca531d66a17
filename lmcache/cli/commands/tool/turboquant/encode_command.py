# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant encode``: tensors of a safetensors file to payloads."""

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

_SETTINGS: dict[str, type] = {
    "preset": str,
    "head_dim": int,
    "value_head_dim": int,
    "kv_layout": str,
    "skip_first_layers": int,
    "skip_last_layers": int,
    "rope_theta": float,
    "cuda_device": str,
    "effort": str,
}
"""Settings of the serde that are options of this command."""


class EncodeCommand(BaseCommand):
    """Compress each tensor of a safetensors file into a payload of its own."""

    def name(self) -> str:
        return "encode"

    def help(self) -> str:
        return "Compress the tensors of a safetensors file into payloads."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add this command's arguments.

        Args:
            parser: Parser of the command.
        """
        parser.add_argument("source", type=Path, help="A safetensors file.")
        parser.add_argument(
            "directory", type=Path, help="Where a NAME.data is made of each tensor."
        )
        for setting, kind in _SETTINGS.items():
            option = f"--{setting.replace('_', '-')}"
            parser.add_argument(option, type=kind, help=f"{setting} of the serde.")

    def execute(self, args: Namespace) -> None:
        """Write the payloads and print their sizes.

        Args:
            args: Parsed arguments.
        """
        # Third Party
        from safetensors import SafetensorError, safe_open

        # First Party
        from lmcache.cli.commands.tool.turboquant._conversion import encode_file
        from lmcache.cli.commands.tool.turboquant._payloads import given_config
        from lmcache.cli.commands.tool.turboquant._report import add_many

        try:
            config = given_config({name: getattr(args, name) for name in _SETTINGS})
            tensors = safe_open(args.source, framework="pt")
            args.directory.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError, SafetensorError) as error:
            fail(error, USAGE_ERROR)
        try:
            with tensors:
                payloads = encode_file(tensors, args.directory, config)
        except (OSError, ValueError) as error:
            fail(error, REFUSED)
        metrics = self.create_metrics(f"TurboQuant {args.directory}", args, width=72)
        add_many(metrics, payloads, args.directory)
        metrics.emit()
