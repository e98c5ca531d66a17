# SPDX-License-Identifier: Apache-2.0
"""Batches of changed payloads, each determined by its seed."""

# Standard
from collections import Counter
from dataclasses import dataclass
from random import Random

# First Party
from tests.v1.distributed.serde.turboquant.fuzz.mutations import MUTATIONS
from tests.v1.distributed.serde.turboquant.fuzz.subjects import Outcome, all_subjects

Counts = Counter[tuple[str, str]]

ALLOWED = {"forged": {Outcome.EXACT, Outcome.OTHER}, "longer": {Outcome.EXACT}}
"""What may come of a mutation that is not refused. Whoever recomputes the checksum
is believed, and gives numbers of the right shape."""

DECODED_SHARE = 1 / 40
"""Share of the mutations that are decoded, which cost most."""


@dataclass(frozen=True)
class Batch:
    """What came of one batch.

    Attributes:
        counts: Payloads by mutation and outcome.
        failures: Description of the wrong outcomes.
    """

    counts: Counts
    failures: list[str]


def run_batch(seed: int, size: int) -> Batch:
    """Give ``size`` changed payloads to the decoders.

    Args:
        seed: Determines every payload of the batch.
        size: How many.

    Returns:
        What came of them.
    """
    random, subjects = Random(seed), all_subjects()
    decoded = list(ALLOWED)
    refused = [kind for kind in MUTATIONS if kind not in ALLOWED]
    counts: Counts = Counter()
    failures: list[str] = []
    while counts.total() < size:
        kind = random.choice(decoded if random.random() < DECODED_SHARE else refused)
        subject = random.choice(subjects)
        payload = MUTATIONS[kind](random, subject)
        if payload == subject.own:
            continue
        outcome = subject.outcome_of(payload)
        counts[kind, outcome.value] += 1
        if outcome not in ALLOWED.get(kind, {Outcome.REFUSED}):
            number = counts.total()
            failures.append(
                f"{kind} {outcome.value}: {subject.name}, payload {number} of batch "
                f"seed {seed}"
            )
    return Batch(counts, failures)
