# SPDX-License-Identifier: Apache-2.0
"""A plan cut into what can be measured in any order, by any process."""

# Standard
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

# First Party
from benchmarks.turboquant.quality import retrieval
from benchmarks.turboquant.quality.bench import Bench, Retrieved
from benchmarks.turboquant.quality.conditions import PLAIN, Condition, biased
from benchmarks.turboquant.quality.laboratory import Measurement
from benchmarks.turboquant.quality.plan import Plan
from language_model import LanguageModel


@dataclass(frozen=True)
class ReadOn:
    """Every scheme on one window under one condition.

    Attributes:
        index: Of the window.
        condition: What is added to its keys.
        weight: Tokens to process, about.
    """

    index: int
    condition: Condition
    weight: int

    def perform(self, bench: Bench) -> list[Measurement]:
        """Measure it."""
        return bench.measure(self.index, self.condition)


@dataclass(frozen=True)
class Find:
    """Every question of one haystack under one condition.

    Attributes:
        make: Writes the haystack in a model's tokens.
        condition: What is added to its keys.
        weight: Tokens to process, about.
    """

    make: Callable[[LanguageModel], retrieval.Haystack]
    condition: Condition
    weight: int

    def perform(self, bench: Bench) -> list[Retrieved]:
        """Measure it."""
        return bench.ask(self.make, self.condition)


Task = ReadOn | Find


def tasks(plan: Plan, texts: Mapping[str, str]) -> list[Task]:
    """Cut a plan into tasks.

    Args:
        plan: How much is measured.
        texts: What crowded haystacks are made of, by name.

    Returns:
        The tasks in the order of reports: windows, then haystacks.
    """
    return [*_windows(plan), *_passkeys(plan), *_crowded(plan, texts)]


def _windows(plan: Plan) -> Iterator[ReadOn]:
    """Each window under plain keys, the first ones under every bias too."""
    for index in range(plan.windows):
        is_biased = index < plan.biased_windows
        for condition in [PLAIN, *(biased(plan.strengths) if is_biased else [])]:
            yield ReadOn(index, condition, weight=2 * plan.context)


def _passkeys(plan: Plan) -> Iterator[Find]:
    """A passkey at every depth of every length."""
    for tokens in plan.haystacks:
        for depth in plan.depths:
            make = partial(retrieval.passkey, num_tokens=tokens, depth=depth)
            yield Find(make, PLAIN, weight=2 * tokens)


def _crowded(plan: Plan, texts: Mapping[str, str]) -> Iterator[Find]:
    """Several needles, and lists, under plain keys and under the middle bias."""
    tokens = plan.haystacks[0]
    bias = Condition(plan.strengths[len(plan.strengths) // 2], channels=4)
    for seed, filler in zip(range(plan.crowded), texts.values(), strict=False):
        for make in (
            partial(retrieval.needles, num_tokens=tokens, seed=seed, filler=filler),
            partial(retrieval.key_values, num_tokens=tokens, seed=seed),
        ):
            for condition in (PLAIN, bias):
                # The text is stored once and read on from once for each question.
                weight = (1 + retrieval.CROWDED_QUESTIONS) * tokens
                yield Find(make, condition, weight)
