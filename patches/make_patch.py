# SPDX-License-Identifier: Apache-2.0
"""Write a patch: print what turns files of one LMCache tree into those of another.

RELEASED is a tree of the pinned release, EDITED a copy with the PATHs edited.
Put a message in front of the output and save it as ``NNNN-subject.patch``.
"""

# Standard
from pathlib import Path
import argparse
import sys

# First Party
from patchset.series import compose_file_patch


def main() -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("released", type=Path, metavar="RELEASED")
    parser.add_argument("edited", type=Path, metavar="EDITED")
    parser.add_argument("paths", nargs="+", metavar="PATH")
    options = parser.parse_args()
    for path in options.paths:
        before = (options.released / path).read_bytes()
        after = (options.edited / path).read_bytes()
        sys.stdout.write(compose_file_patch(path, before, after))
    return 0


if __name__ == "__main__":
    sys.exit(main())
