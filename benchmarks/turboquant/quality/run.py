# SPDX-License-Identifier: Apache-2.0
"""Runs a plan on a model: every scheme, every condition, every window and question."""

# Standard
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, product

# Third Party
from tqdm import tqdm
import torch

# First Party
from benchmarks.turboquant.quality import retrieval
from benchmarks.turboquant.quality.attention import AttentionRecorder
from benchmarks.turboquant.quality.conditions import PLAIN, Condition, biased
from benchmarks.turboquant.quality.laboratory import Laboratory, Measurement
from benchmarks.turboquant.quality.plan import Plan
from benchmarks.turboquant.quality.schemes import Scheme, all_schemes
from benchmarks.turboquant.quality.windows import (
    Window,
    capture,
    own_cache,
    passages,
)
from language_model import LanguageModel

BATCH_SCHEMES = 8
"""Caches that the model reads after in one pass; weights are read once for all."""


@dataclass(frozen=True)
class Retrieved:
    """One answer from a restored cache.

    Attributes:
        task: Name of the task.
        tokens: Cached tokens.
        depth: Where in them the answer lies, from 0 to 1.
        is_right: Whether it was found.
        surprise: Mean negative log likelihood of the answer's tokens, in nats.
    """

    condition: str
    scheme: str
    task: str
    tokens: int
    depth: float
    is_right: bool
    surprise: float


@dataclass(frozen=True)
class Results:
    """What a run measured.

    Attributes:
        schemes: What was compared, in order.
        measurements: One for each scheme, condition and window.
        retrieved: One for each scheme, condition and question.
        samples: Condition and KV, of a few layers and tokens, for a second encoder.
        head_dim: Width of the model's heads.
    """

    schemes: list[Scheme]
    measurements: list[Measurement]
    retrieved: list[Retrieved]
    samples: list[tuple[str, torch.Tensor]]
    head_dim: int


def run(
    model: LanguageModel, texts: Mapping[str, str], plan: Plan, dtype: torch.dtype
) -> Results:
    """Measure everything that a plan asks for.

    Args:
        model: Who reads; its attention is recorded from now on.
        texts: What it reads, by name.
        plan: How much.
        dtype: Type of the chunks that are stored.

    Returns:
        The results.

    Raises:
        ValueError: If the texts are too short, or the model cannot be measured.
    """
    recorder = AttentionRecorder(model)
    cut = list(islice(passages(model, texts, plan.context, plan.reading), plan.windows))
    if len(cut) < plan.windows:
        raise ValueError(f"expected texts for {plan.windows} windows, got {len(cut)}")
    first = capture(model, recorder, *cut[0])
    laboratory = Laboratory(model, dtype, first.cache.kv[0])
    schemes = all_schemes(
        first.cache.head_dim, first.cache.num_layers, rope_theta=model.rope_theta
    )
    conditions = [PLAIN, *biased(plan.strengths)]
    measurements = []
    for index, (name, passage) in enumerate(tqdm(cut, desc="windows")):
        window = capture(model, recorder, name, passage) if index else first
        applied = conditions if index < plan.biased_windows else [PLAIN]
        measurements += list(_measure(laboratory, window, applied, schemes))
    retrieved = list(_retrieve(laboratory, schemes, plan, texts))
    samples = [
        (condition.name, _sample(laboratory, first, condition, plan.upstream_tokens))
        for condition in (PLAIN, conditions[-1])
    ]
    return Results(schemes, measurements, retrieved, samples, first.cache.head_dim)


def _measure(
    laboratory: Laboratory,
    window: Window,
    conditions: list[Condition],
    schemes: list[Scheme],
) -> Iterator[Measurement]:
    """Measure one window."""
    pairs = list(product(conditions, _batches(schemes)))
    for condition, batch in tqdm(pairs, desc=window.name, leave=False):
        yield from laboratory.measure(window, condition, batch)


def _retrieve(
    laboratory: Laboratory,
    schemes: list[Scheme],
    plan: Plan,
    texts: Mapping[str, str],
) -> Iterator[Retrieved]:
    """Ask every question from every scheme's restored cache."""
    model = laboratory.model
    for make, conditions in tqdm(_haystacks(model, plan, texts), desc="retrieval"):
        haystack = make()
        exact = own_cache(model, haystack.context)
        pairs = list(product(conditions, _batches(schemes)))
        for condition, batch in tqdm(pairs, desc=haystack.task, leave=False):
            restored = [laboratory.restore(exact, condition, each) for each in batch]
            caches = [each.cache for each in restored]
            for question in haystack.questions:
                answers = retrieval.ask(model, caches, question)
                for scheme, answer in zip(batch, answers, strict=True):
                    yield Retrieved(
                        condition=condition.name,
                        scheme=scheme.name,
                        task=haystack.task,
                        tokens=len(haystack.context),
                        depth=question.depth,
                        is_right=answer.is_right,
                        surprise=answer.surprise,
                    )


def _batches(schemes: list[Scheme]) -> list[list[Scheme]]:
    """Cut the schemes into what one pass of the model reads after."""
    starts = range(0, len(schemes), BATCH_SCHEMES)
    return [schemes[start : start + BATCH_SCHEMES] for start in starts]


def _haystacks(
    model: LanguageModel, plan: Plan, texts: Mapping[str, str]
) -> list[tuple[Callable[[], retrieval.Haystack], list[Condition]]]:
    """List what makes the texts that hide something, and the conditions of each."""
    makers: list[tuple[Callable[[], retrieval.Haystack], list[Condition]]] = []
    for tokens in plan.haystacks:
        for depth in plan.depths:
            make = partial(retrieval.passkey, model, tokens, depth)
            makers.append((make, [PLAIN]))
    bias = Condition(plan.strengths[len(plan.strengths) // 2], channels=4)
    for seed, filler in zip(range(plan.crowded), texts.values(), strict=False):
        for make in (
            partial(retrieval.needles, model, plan.haystacks[0], seed, filler),
            partial(retrieval.key_values, model, plan.haystacks[0], seed),
        ):
            makers.append((make, [PLAIN, bias]))
    return makers


def _sample(
    laboratory: Laboratory, window: Window, condition: Condition, tokens: int
) -> torch.Tensor:
    """Take the first, middle and last layer of a window's first tokens."""
    given = laboratory.given(window.cache, condition)
    layers = [0, given.shape[1] // 2, given.shape[1] - 1]
    return given[:, layers, :tokens]
