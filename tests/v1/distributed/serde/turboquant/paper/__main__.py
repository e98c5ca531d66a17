# SPDX-License-Identifier: Apache-2.0
"""Check the package against the paper: print every result, and what mutants fail."""

# Standard
from argparse import ArgumentParser
from pathlib import Path
import sys

# Third Party
from tqdm import tqdm
import torch

# First Party
from tests.v1.distributed.serde.turboquant.paper.checks import CHECKS, Check
from tests.v1.distributed.serde.turboquant.paper.result import Result
from tests.v1.distributed.serde.turboquant.paper.table import (
    mutants_table,
    results_table,
)

BEGIN = "<!-- written by the command above with --document: begin -->"
END = "<!-- written by the command above with --document: end -->"
DOCUMENT = Path(__file__).parents[6] / "docs/design/v1/distributed/serde/turboquant.md"


def main(arguments: list[str]) -> int:
    """Run all checks.

    Args:
        arguments: Of the command line.

    Returns:
        Exit status: 1 if a claim does not hold, or holds for a mutant.
    """
    parser = ArgumentParser(description=__doc__)
    parser.add_argument(
        "--document", action="store_true", help=f"write the tables into {DOCUMENT.name}"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # as in the tests
    genuine: dict[Check, dict[str, list[Result]]] = {}
    broken: dict[Check, dict[str, list[Result]]] = {}
    for check in tqdm(CHECKS, disable=None):
        genuine[check] = {name: check.run(x) for name, x in check.subjects.items()}
        broken[check] = {name: check.run(x) for name, x in check.mutants.items()}
    text = f"{results_table(genuine)}\n\n{mutants_table(broken)}"
    print(text)
    if options.document:
        before, rest = DOCUMENT.read_text().split(BEGIN)
        after = rest.split(END)[1]
        DOCUMENT.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    are_genuine = [
        all(x.holds for x in y) for z in genuine.values() for y in z.values()
    ]
    are_missed = [all(x.holds for x in y) for z in broken.values() for y in z.values()]
    return 0 if all(are_genuine) and not any(are_missed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
