# SPDX-License-Identifier: Apache-2.0
"""No changed payload of any layout and preset is decoded to anything wrong.

``make fuzz`` runs the same mutations a million times.
"""

# Standard
from random import Random

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

# First Party
from tests.v1.distributed.serde.turboquant.fuzz.batches import run_batch
from tests.v1.distributed.serde.turboquant.fuzz.mutations import (
    HARMLESS,
    MUTATIONS,
    Mutation,
    forged,
)
from tests.v1.distributed.serde.turboquant.fuzz.subjects import (
    Outcome,
    Subject,
    all_subjects,
)

SUBJECTS = st.sampled_from(all_subjects())
SEEDS = st.integers(0, 2**32)
ACCIDENTS = [
    kind for kind, mutation in MUTATIONS.items() if mutation not in (forged, *HARMLESS)
]


def test_subjects_are_what_they_say() -> None:
    for subject in all_subjects():
        assert subject.outcome_of(subject.own) is Outcome.EXACT
        assert len({len(subject.own), len(subject.other)}) == 1


@pytest.mark.parametrize("kind", ACCIDENTS)
@given(subject=SUBJECTS, seed=SEEDS)
@settings(max_examples=60)
def test_an_accident_is_refused(kind: str, subject: Subject, seed: int) -> None:
    """Before the destination is touched; rewritten headers too, CRC or not."""
    payload = MUTATIONS[kind](Random(seed), subject)
    if payload != subject.own:
        assert subject.outcome_of(payload) is Outcome.REFUSED


@given(subject=SUBJECTS, data=st.binary(max_size=300))
@settings(max_examples=100)
def test_any_bytes_are_refused(subject: Subject, data: bytes) -> None:
    assert subject.outcome_of(data) is Outcome.REFUSED
    assert subject.outcome_of(data + subject.own[len(data) :]) in (
        (Outcome.EXACT,) if subject.own.startswith(data) else (Outcome.REFUSED,)
    )


@given(subject=SUBJECTS, seed=SEEDS)
@settings(max_examples=60)
def test_a_forged_checksum_decodes_to_the_shape_asked_for(
    subject: Subject, seed: int
) -> None:
    """Whoever recomputes the checksum is believed: it finds accidents, not enemies.

    Such a payload may hold any indices, norms and scales, infinite and NaN
    included. It decodes without a crash, and every byte of the tensors follows from
    it: ``Subject.outcome_of`` decodes twice, over different bytes.
    """
    payload = forged(Random(seed), subject)
    assert subject.outcome_of(payload) in (Outcome.EXACT, Outcome.OTHER)


@given(subject=SUBJECTS, seed=SEEDS, kind=st.sampled_from(HARMLESS))
@settings(max_examples=30)
def test_bytes_behind_a_payload_change_nothing(
    subject: Subject, seed: int, kind: Mutation
) -> None:
    assert subject.outcome_of(kind(Random(seed), subject)) is Outcome.EXACT


def test_batches_follow_from_their_seed_and_are_all_right() -> None:
    first, again, other = (run_batch(seed, 200) for seed in (7, 7, 8))
    assert first.counts == again.counts != other.counts
    assert not first.failures and not other.failures
