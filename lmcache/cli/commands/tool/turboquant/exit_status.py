# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of the TurboQuant commands; 0 says that all is well."""

# Standard
from typing import NoReturn
import sys

REFUSED = 1
"""Something would not be decoded, or could not be encoded."""

USAGE_ERROR = 2
"""An argument is wrong; nothing was done."""


def fail(message: object, status: int) -> NoReturn:
    """End the command with a message on stderr.

    Args:
        message: What went wrong.
        status: The exit status.
    """
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)
