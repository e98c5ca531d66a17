# SPDX-License-Identifier: Apache-2.0
"""The paper's claims hold for the package, and for no broken codec."""

# Standard
from collections.abc import Iterator

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.paper.__main__ import BEGIN, DOCUMENT, END
from tests.v1.distributed.serde.turboquant.paper.checks import CHECKS, Check
from tests.v1.distributed.serde.turboquant.paper.mutants import (
    KEY_MUTANTS,
    PRODUCT_MUTANTS,
    SIZE_MUTANTS,
    TABLE_MUTANTS,
)
from tests.v1.distributed.serde.turboquant.paper.subjects import CPU_KERNELS
from tests.v1.distributed.serde.turboquant.paper.table import (
    mutants_table,
    results_table,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads of torch would wait for each other longer than they work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def subjects() -> Iterator[object]:
    """Every check with everything that has to meet it."""
    for check in CHECKS:
        for name in check.subjects:
            yield pytest.param(check, name, id=f"{check.name}-{name}")


def mutants() -> Iterator[object]:
    """Every check with the mutants that it has to find."""
    for check in CHECKS:
        for name in check.mutants:
            yield pytest.param(check, name, id=f"{check.name}-{name}")


@pytest.mark.parametrize(("check", "subject"), subjects())
def test_claim_holds(check: Check, subject: str) -> None:
    results = check.run(check.subjects[subject])
    assert results
    assert not [x for x in results if not x.holds]
    assert not [x for x in results if not x.is_sharp]


@pytest.mark.parametrize(("check", "mutant"), mutants())
def test_check_rejects_mutant(check: Check, mutant: str) -> None:
    assert [x for x in check.run(check.mutants[mutant]) if not x.holds]


def test_every_check_has_mutants_and_every_mutant_a_check() -> None:
    assert all(check.mutants for check in CHECKS)
    known = KEY_MUTANTS | PRODUCT_MUTANTS | SIZE_MUTANTS | TABLE_MUTANTS
    assert {name for check in CHECKS for name in check.mutants} == set(known)


def test_table_shows_what_fails_and_joins_subjects_that_agree() -> None:
    check = next(x for x in CHECKS if x.name == "norms_kept")
    kept, lost = check.run(CPU_KERNELS), check.run(KEY_MUTANTS["norm lost"])
    found = {check: {"one": kept, "two": kept, "three": lost}}
    rows = results_table(found).splitlines()[2:]
    assert len(rows) == 2
    assert "| one, two |" in rows[0] and rows[0].endswith("| holds |")
    assert "| three |" in rows[1] and rows[1].endswith("| FAILS (2 of 2) |")
    assert mutants_table({check: {"three": lost}}).endswith("| three 2/2 |")


def test_design_document_holds_every_check_and_mutant() -> None:
    tables = DOCUMENT.read_text().split(BEGIN)[1].split(END)[0].splitlines()
    assert "FAILS" not in "".join(tables)
    for check in CHECKS:
        (row,) = [x for x in tables if x.startswith(f"| `{check.name}` |")]
        listed = row.split(" | ")[1].removesuffix(" |").split(", ")
        assert [x.rpartition(" ")[0] for x in listed] == list(check.mutants)
