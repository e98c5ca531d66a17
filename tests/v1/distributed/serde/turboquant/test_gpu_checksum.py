# SPDX-License-Identifier: Apache-2.0
"""The checksum on an accelerator is the CPU's, in parts and in any order."""

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE

# isort: split

# First Party
from lmcache.v1.distributed.serde.turboquant import checksum
from lmcache.v1.distributed.serde.turboquant.kernels import gpu_checksum

BLOCK = gpu_checksum.BLOCK_WORDS


def random_words(count: int) -> torch.Tensor:
    """Words of all bit patterns."""
    generator = torch.Generator().manual_seed(count)
    words = torch.randint(-(2**31), 2**31, (count,), generator=generator)
    return words.to(torch.int32)


def device_sum(parts: list[tuple[int, torch.Tensor]]) -> int:
    """Checksum of parts, each given by its position and words."""
    total = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    for first_position, words in parts:
        checksum.add_device_checksum(words.to(DEVICE), first_position, total)
    return int(total) % 2**64


@pytest.mark.parametrize("count", [0, 1, 5, BLOCK, 3 * BLOCK + 17])
def test_checksum_is_the_cpus(count: int) -> None:
    words = random_words(count)
    assert device_sum([(0, words)]) == checksum.checksum(words.view(torch.uint8))


def test_parts_add_up_in_any_order() -> None:
    words = random_words(2 * BLOCK + 100)
    cuts = [0, 1, 6, BLOCK + 6, len(words)]
    parts = [(a, words[a:b]) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    assert device_sum(parts[::-1]) == checksum.checksum(words.view(torch.uint8))


def test_kernel_and_plain_torch_agree_where_positions_wrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words, first_position = random_words(BLOCK), 2**32 - 7
    by_kernel = device_sum([(first_position, words)])
    monkeypatch.setattr(gpu_checksum, "supports", lambda words: False)
    monkeypatch.setattr(checksum, "_DEVICE_PASS_WORDS", 1000)
    assert device_sum([(first_position, words)]) == by_kernel


def test_a_word_that_moves_changes_the_sum() -> None:
    words = random_words(100)
    assert device_sum([(0, words)]) != device_sum([(1, words)])
