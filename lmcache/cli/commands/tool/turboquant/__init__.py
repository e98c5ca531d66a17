# SPDX-License-Identifier: Apache-2.0
"""``lmcache tool turboquant``: payloads of the TurboQuant serde, without a server.

Modules that begin with an underscore import torch; commands import them when they run.
"""

# First Party
from lmcache.cli.commands.base import CompositeCommand


class TurboQuantCommand(CompositeCommand):
    """Group of the commands on TurboQuant payloads."""

    def name(self) -> str:
        return "turboquant"

    def help(self) -> str:
        return "Inspect, verify, encode and decode TurboQuant payloads."
