# SPDX-License-Identifier: Apache-2.0
"""What one process measures with: a model, its laboratory and the schemes."""

# Standard
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality import retrieval
from benchmarks.turboquant.quality.attention import AttentionRecorder
from benchmarks.turboquant.quality.conditions import Condition
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


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a process needs to know, and can be sent.

    Attributes:
        model: A path that :meth:`LanguageModel.load` takes.
        model_device: Where the model runs.
        serde_device: The serde's setting ``device``.
        threads: Threads of the model and of the serde.
        texts: What the model reads, by name.
        plan: How much.
        dtype: Type of the chunks that are stored.
    """

    model: Path
    model_device: torch.device
    serde_device: str
    threads: int
    texts: Mapping[str, str]
    plan: Plan
    dtype: torch.dtype


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


class Bench:
    """Measures windows and haystacks, one at a time.

    Torch works with the setup's threads in the whole process from now on.

    Args:
        setup: What to measure with.

    Raises:
        ValueError: If the texts are too short, or the model cannot be measured.
        OSError: If a file of the model cannot be read.
    """

    def __init__(self, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        self.setup = setup
        self.model = LanguageModel.load(setup.model, setup.model_device)
        self._recorder = AttentionRecorder(self.model)
        plan = setup.plan
        cut = passages(self.model, setup.texts, plan.context, plan.reading)
        self._passages = list(islice(cut, plan.windows))
        if len(self._passages) < plan.windows:
            raise ValueError(
                f"expected texts for {plan.windows} windows, got {len(self._passages)}"
            )
        self._index = 0
        self._captured = capture(self.model, self._recorder, *self._passages[0])
        cache = self._captured.cache
        self._laboratory = Laboratory(self.model, setup.dtype, cache.kv[0])
        self.head_dim = cache.head_dim
        self.schemes = all_schemes(
            cache.head_dim,
            cache.num_layers,
            rope_theta=self.model.rope_theta,
            device=setup.serde_device,
            threads=setup.threads,
        )

    def measure(self, index: int, condition: Condition) -> list[Measurement]:
        """Measure every scheme on a window.

        Args:
            index: Of the window.
            condition: What is added to its keys.

        Returns:
            The measurements, in the order of the schemes.
        """
        window = self._window(index)
        return [
            measured
            for batch in self._batches()
            for measured in self._laboratory.measure(window, condition, batch)
        ]

    def ask(
        self,
        make: Callable[[LanguageModel], retrieval.Haystack],
        condition: Condition,
    ) -> list[Retrieved]:
        """Ask every question of a haystack from every scheme's restored cache.

        Args:
            make: Writes the haystack in a model's tokens.
            condition: What is added to the keys.

        Returns:
            The answers.

        Raises:
            ValueError: If the haystack cannot be written so.
        """
        haystack = make(self.model)
        exact = own_cache(self.model, haystack.context)
        retrieved = []
        for batch in self._batches():
            caches = [
                self._laboratory.restore(exact, condition, each).cache for each in batch
            ]
            for question in haystack.questions:
                answers = retrieval.ask(self.model, caches, question)
                retrieved += [
                    Retrieved(
                        condition=condition.name,
                        scheme=scheme.name,
                        task=haystack.task,
                        tokens=len(haystack.context),
                        depth=question.depth,
                        is_right=answer.is_right,
                        surprise=answer.surprise,
                    )
                    for scheme, answer in zip(batch, answers, strict=True)
                ]
        return retrieved

    def sample(self, condition: Condition) -> torch.Tensor:
        """Take a few layers and tokens of the first window, for a second encoder.

        Args:
            condition: What is added to the keys.

        Returns:
            ``[2, 3, tokens, hidden]``: the first, middle and last layer.
        """
        given = self._laboratory.given(self._window(0).cache, condition)
        layers = [0, given.shape[1] // 2, given.shape[1] - 1]
        return given[:, layers, : self.setup.plan.upstream_tokens]

    def _window(self, index: int) -> Window:
        """Capture a window, unless it is the last one again."""
        if index != self._index:
            captured = capture(self.model, self._recorder, *self._passages[index])
            self._index, self._captured = index, captured
        return self._captured

    def _batches(self) -> Iterator[list[Scheme]]:
        """Cut the schemes into what one pass of the model reads after."""
        for start in range(0, len(self.schemes), BATCH_SCHEMES):
            yield self.schemes[start : start + BATCH_SCHEMES]
