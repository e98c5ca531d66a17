# SPDX-License-Identifier: Apache-2.0
"""Texts that hide numbers, and whether a model finds them in a restored cache.

A passkey at several depths, several needles in one text, and a list of keys and
values, after RULER (arXiv 2404.06654), short enough for a CPU.
"""

# Standard
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
import re

# Third Party
import torch

# First Party
from benchmarks.turboquant.quality.measures import surprise
from kv_cache import KVCache
from language_model import LanguageModel

_PLACES = (
    "Vienna Lisbon Oslo Cairo Lima Quito Dublin Prague Athens Havana Ottawa Warsaw"
).split()
_ANIMALS = "otter heron badger falcon lynx marten osprey weasel".split()
_COLOURS = "amber cobalt crimson ivory jade ochre scarlet violet".split()
_NOISE = (
    "The river runs past the mill and the road bends to the north. "
    "People walk there in the evening and come back before dark. "
)
CROWDED_QUESTIONS = 4
_PAIRS = 8


@dataclass(frozen=True)
class Question:
    """What is asked of a cached text.

    Attributes:
        depth: Where in the text the answer lies, from 0 to 1.
        reading: Rest of the text, question and answer, without the last token.
        answer: Tokens of the answer.
    """

    depth: float
    reading: torch.Tensor
    answer: torch.Tensor


@dataclass(frozen=True)
class Haystack:
    """A text and what is asked of it.

    Attributes:
        task: Name of the task.
        context: Tokens to cache.
        questions: At least one.
    """

    task: str
    context: torch.Tensor
    questions: list[Question]


@dataclass(frozen=True)
class Answer:
    """What a model answered to one question.

    Attributes:
        is_right: Whether every token of the answer was the most likely one.
        surprise: Mean negative log likelihood of the answer's tokens, in nats.
    """

    is_right: bool
    surprise: float


def passkey(model: LanguageModel, num_tokens: int, depth: float) -> Haystack:
    """Hide one number in noise.

    Args:
        model: Whose tokens to count.
        num_tokens: Tokens to cache.
        depth: Where to hide it, from 0 to 1.

    Returns:
        The text and one question.

    Raises:
        ValueError: If a token depends on what follows it.
    """
    number = _number(Random(f"{num_tokens} {depth}"))
    needle = f"The pass key is {number}. Remember it. {number} is the pass key. "

    def text(size: int) -> str:
        before = round(size * depth)
        return _NOISE * before + needle + _NOISE * (size - before)

    asked = [(needle, "\nWhat is the pass key? The pass key is", f" {number}")]
    return _haystack(model, "passkey", num_tokens, text, asked)


def needles(model: LanguageModel, num_tokens: int, seed: int, filler: str) -> Haystack:
    """Hide several named numbers in a real text.

    Args:
        model: Whose tokens to count.
        num_tokens: Tokens to cache.
        seed: Chooses names and numbers.
        filler: The real text.

    Returns:
        The text and a question for each needle.

    Raises:
        ValueError: If the filler is too short, or a needle is not among the tokens.
    """
    random = Random(seed)
    places = random.sample(_PLACES, CROWDED_QUESTIONS)
    numbers = [_number(random) for _ in places]
    hidden = [
        f"\nThe magic number of {place} is {number}.\n"
        for place, number in zip(places, numbers, strict=True)
    ]
    words = re.findall(r"\S+\s*", filler)

    def text(size: int) -> str:
        parts = []
        for index, needle in enumerate(hidden):
            own = words[index * size : (index + 1) * size]
            parts += [*own[: size // 2], needle, *own[size // 2 :]]
        return "".join(parts)

    asked = [
        (needle, f"\nThe magic number of {place} is", f" {number}")
        for needle, place, number in zip(hidden, places, numbers, strict=True)
    ]
    return _haystack(model, "multi-needle", num_tokens, text, asked)


def key_values(model: LanguageModel, num_tokens: int, seed: int) -> Haystack:
    """List keys and values amid noise and ask for some values.

    Args:
        model: Whose tokens to count.
        num_tokens: Tokens to cache.
        seed: Chooses keys and values.

    Returns:
        The text and the questions.

    Raises:
        ValueError: If the list is longer than the text.
    """
    random = Random(seed)
    keys = [f"{colour} {animal}" for colour in _COLOURS for animal in _ANIMALS]
    values = {key: _number(random) for key in random.sample(keys, _PAIRS)}
    pairs = {key: f"{key}: {value}\n" for key, value in values.items()}
    listed = "\n\n" + "".join(pairs.values()) + "\n"

    def text(size: int) -> str:
        before = size // 2
        return _NOISE * before + listed + _NOISE * (size - before)

    asked = [
        (pairs[key], f"\n\nOne value of the list again:\n{key}:", f" {values[key]}")
        for key in random.sample(list(values), CROWDED_QUESTIONS)
    ]
    return _haystack(model, "key-value", num_tokens, text, asked)


def ask(
    model: LanguageModel, caches: Sequence[KVCache], question: Question
) -> list[Answer]:
    """Let a model answer from a cached text, restored in several ways.

    Each token is asked for after the right ones before it: a model that never errs
    so would have written the answer.

    Args:
        model: Who answers.
        caches: The text as it was restored, each time.
        question: What is asked.

    Returns:
        The answers, in the order of the caches.
    """
    read = model.read_on_each(caches, question.reading).cpu()
    return [
        Answer(
            is_right=torch.equal(logits.argmax(dim=-1), question.answer),
            surprise=surprise(logits, question.answer),
        )
        for logits in read[:, -len(question.answer) :]
    ]


def _number(random: Random) -> str:
    return str(random.randint(10000, 99999))


def _fitting_size(
    model: LanguageModel, num_tokens: int, text: Callable[[int], str]
) -> int:
    """Find the smallest size whose text has at least so many tokens."""
    longest = -1
    size = 1
    while (length := len(model.encode(text(size)))) < num_tokens:
        if length <= longest:
            raise ValueError(f"expected a text of {num_tokens} tokens, got {length}")
        longest = length
        size = max(size + 1, size * num_tokens // max(length, 1))
    while size > 1 and len(model.encode(text(size - 1))) >= num_tokens:
        size -= 1
    return size


def _haystack(
    model: LanguageModel,
    task: str,
    num_tokens: int,
    text: Callable[[int], str],
    asked: Sequence[tuple[str, str, str]],
) -> Haystack:
    """Cut a text of the right size into what is cached and what is read.

    ``asked`` has the needle, the question and the answer of each question.
    """
    whole = text(_fitting_size(model, num_tokens, text))
    context = model.encode(whole)[:num_tokens]
    questions = []
    for needle, question, answer in asked:
        start = whole.index(needle)
        prompt = model.encode(whole + question)
        token_ids = model.encode(whole + question + answer)
        if not (
            torch.equal(token_ids[: len(prompt)], prompt)
            and torch.equal(token_ids[:num_tokens], context)
        ):
            raise ValueError(f"{model.name}: tokens of a text depend on what follows")
        if len(model.encode(whole[: start + len(needle)])) > num_tokens:
            raise ValueError(f"expected {needle!r} among {num_tokens} cached tokens")
        questions.append(
            Question(
                depth=round(start / len(whole), 2),
                reading=token_ids[num_tokens:-1],
                answer=token_ids[len(prompt) :],
            )
        )
    return Haystack(task, context, questions)
