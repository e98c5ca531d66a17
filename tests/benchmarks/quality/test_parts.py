# SPDX-License-Identifier: Apache-2.0
"""Biases, measures, intervals and hidden numbers, each on its own."""

# Standard
from math import isnan, log

# Third Party
import pytest
import torch

# First Party
from benchmarks.turboquant.quality import intervals, retrieval
from benchmarks.turboquant.quality.conditions import (
    PLAIN,
    Condition,
    biased,
    representative,
)
from benchmarks.turboquant.quality.laboratory import Laboratory
from benchmarks.turboquant.quality.measures import (
    divergence,
    layer_errors,
    surprise,
    varying_part,
)
from benchmarks.turboquant.quality.windows import passages
from kv_cache import KVCache
from language_model import LanguageModel


def test_a_bias_has_the_asked_size_in_the_asked_channels() -> None:
    keys = torch.randn(2, 50, 3 * 32, generator=torch.Generator().manual_seed(0))
    medians = keys.abs().flatten(1).median(dim=1).values
    for condition, channels in ((Condition(5, 4), 4), (Condition(5), 32)):
        bias = condition.bias(keys, head_dim=32)
        assert bias.shape == (2, 1, 96)
        assert torch.equal(bias, condition.bias(keys, head_dim=32))
        heads = bias.view(2, 3, 32)
        assert (heads.count_nonzero(dim=-1) == channels).all()
        largest = heads.abs().amax(dim=(1, 2))
        torch.testing.assert_close(largest, 5 * medians)
        assert not torch.equal(heads[:, 0].sign(), heads[:, 1].sign())
    assert not Condition().bias(keys, head_dim=32).any()
    names = [condition.name for condition in biased((5, 20))]
    assert names == [
        "bias 5 spread",
        "bias 20 spread",
        "bias 5 in 4 channels",
        "bias 20 in 4 channels",
    ]


def test_a_figure_shows_the_middle_bias_of_each_kind() -> None:
    names = [each.name for each in (PLAIN, *biased((5, 20, 60)))]
    assert representative(names) == ["plain", "bias 20 spread", "bias 20 in 4 channels"]
    assert representative(["plain"]) == ["plain"]


def test_divergence_and_surprise_of_known_predictions() -> None:
    exact = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    restored = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    expected = 0.5 * (0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75))
    assert divergence(restored, exact) == pytest.approx(expected)
    assert divergence(exact, exact) == 0
    targets = torch.tensor([0, 1])
    assert surprise(restored, targets) == pytest.approx(-0.5 * log(0.25 * 0.1))


def test_errors_by_layer_and_what_varies() -> None:
    exact = torch.tensor([[[3.0, 1.0], [5.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    restored = exact.clone()
    restored[1, 0, 0] = 2.0
    errors = layer_errors(exact, restored, exact)
    assert errors == pytest.approx([0, 1 / 2**0.5])
    varying = varying_part(exact)
    assert varying[0].tolist() == [[-1, 0], [1, 0]]


def test_intervals() -> None:
    constant = intervals.mean([2.0, 2.0, 2.0])
    assert (constant.value, constant.low, constant.high) == (2, 2, 2)
    varied = intervals.mean([1.0, 2.0, 3.0, 4.0])
    assert 1 <= varied.low < varied.value == 2.5 < varied.high <= 4
    assert isnan(intervals.mean([1.0]).low)
    # Window by window one is half the other, however much windows differ.
    half = intervals.ratio([1.0, 10.0, 100.0], [2.0, 20.0, 200.0])
    assert (half.value, half.low, half.high) == pytest.approx((0.5, 0.5, 0.5))
    share = intervals.share(8, 8)
    assert share.value == share.high == 1 and 0.6 < share.low < 0.7
    with pytest.raises(ValueError, match="at least one window"):
        intervals.mean([])


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        pytest.param(lambda m, f: retrieval.passkey(m, 512, 0.25), 1, id="passkey"),
        pytest.param(lambda m, f: retrieval.needles(m, 512, 1, f), 4, id="needles"),
        pytest.param(lambda m, f: retrieval.key_values(m, 512, 1), 4, id="key-values"),
    ],
)
def test_what_is_asked_for_is_in_the_cached_text(
    make, numbers: int, model: LanguageModel, texts: dict[str, str]
) -> None:
    haystack = make(model, texts["letters"])
    context = "".join(map(chr, haystack.context.tolist()))
    assert len(context) == 512
    assert len(haystack.questions) == numbers
    answers = set()
    for question in haystack.questions:
        number = "".join(map(chr, question.answer.tolist())).strip()
        place = context.index(number) / len(context)
        assert place == pytest.approx(question.depth, abs=0.1)
        assert number[:-1] in "".join(map(chr, question.reading.tolist()))
        answers.add(number)
    assert len(answers) == numbers


def test_an_answer_is_right_when_every_token_is(model: LanguageModel) -> None:
    haystack = retrieval.passkey(model, 512, 0.5)
    (asked,) = haystack.questions
    cache = model.prefill(haystack.context)
    count = len(asked.answer)
    # The first token does not depend on the rest of the answer.
    reading = asked.reading[: -count + 1]
    believed = model.read_on(cache, reading)[-1:].argmax(dim=-1)
    caches = [cache, cache]
    right, again = retrieval.ask(
        model, caches, retrieval.Question(0.5, reading, believed)
    )
    assert right.is_right and again == right
    other = retrieval.Question(0.5, reading, (believed + 1) % 128)
    (wrong,) = retrieval.ask(model, [cache], other)
    assert not wrong.is_right
    assert wrong.surprise > right.surprise


def test_a_text_too_short_for_a_haystack_is_refused(model: LanguageModel) -> None:
    with pytest.raises(ValueError, match="expected a text of 512 tokens"):
        retrieval.needles(model, 512, 1, "one line\n")


def test_passages_take_texts_in_turn(model: LanguageModel) -> None:
    texts = {"a": "a" * 700, "b": "b" * 300}
    found = list(passages(model, texts, 256, 16))
    assert [name for name, _ in found] == ["a@0", "b@0", "a@272"]
    assert all(len(passage.context) == 256 for _, passage in found)
    for context, message in ((250, "multiple of 256"), (1024, "reads 1024 tokens")):
        with pytest.raises(ValueError, match=message):
            next(passages(model, texts, context, 16))


def test_numbers_that_the_stored_type_does_not_hold_are_refused(
    model: LanguageModel,
) -> None:
    cache = KVCache(torch.full((2, 6, 256, 256), 1e5), head_dim=256)
    laboratory = Laboratory(model, torch.float16, cache.kv[0])
    with pytest.raises(ValueError, match="does not hold .* 1e.05"):
        laboratory.given(cache, Condition())
    assert (
        Laboratory(model, torch.bfloat16, cache.kv[0]).given(cache, Condition()).any()
    )
