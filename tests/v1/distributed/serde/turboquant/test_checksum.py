# SPDX-License-Identifier: Apache-2.0
"""The checksum against its definition, whoever computes it and in how many shares."""

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import checksum as checksum_module
from lmcache.v1.distributed.serde.turboquant.checksum import WORD_BYTES, checksum
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_threads import share_out


def defined_checksum(data: torch.Tensor) -> int:
    """Follow the definition, a word at a time."""
    total, mask = 0, 2**32 - 1
    for position, word in enumerate(data.numpy().view("<u4").tolist()):
        mixed = (word + position * 0x9E3779B1) & mask
        mixed = (mixed ^ mixed >> 15) * 0x85EBCA77 & mask
        mixed = (mixed ^ mixed >> 13) * 0xC2B2AE3D & mask
        mixed ^= mixed >> 16
        total += mixed * (position * 0x27D4EB2F & mask | 1)
    return total % 2**64


def noise(num_bytes: int) -> torch.Tensor:
    """Random bytes."""
    data = bytearray(np.random.RandomState(num_bytes).bytes(num_bytes))
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0).byte()


@pytest.mark.parametrize("words", [*range(20), 64, 1001])
def test_by_its_definition(words: int) -> None:
    data = noise(words * WORD_BYTES)
    assert checksum(data) == defined_checksum(data)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_shares_add_up(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksum_module, "_BYTES_PER_SHARE", 64)
    data = noise(6004)
    assert checksum(data, threads=threads) == defined_checksum(data)


def test_at_any_address() -> None:
    data = noise(4096 + 3)[3:]
    assert checksum(data) == defined_checksum(data.clone())


def test_whole_words_only() -> None:
    with pytest.raises(ValueError, match="4-byte words, got 6 bytes"):
        checksum(noise(6))


@given(place=st.integers(0, 2**12 - 1), change=st.integers(1, 255))
@settings(max_examples=50)
def test_any_changed_byte_shows(place: int, change: int) -> None:
    data = noise(2**12)
    changed = data.clone()
    changed[place] ^= change
    assert checksum(changed, threads=2) != checksum(data, threads=2)


@given(
    total=st.integers(0, 10**5),
    threads=st.integers(1, 9),
    unit=st.integers(1, 64),
    least=st.integers(1, 500),
)
def test_shares_cover_everything_once(
    total: int, threads: int, unit: int, least: int
) -> None:
    shares = share_out(total, threads, unit=unit, least=least)
    assert [item for share in shares for item in share] == list(range(total))
    assert all(len(share) % unit == 0 for share in shares[:-1])
    assert threads > 1 or len(shares) <= 1


@pytest.mark.parametrize("cut", [0, 4, 36, 4096, 300_004])
def test_parts_add_up(cut: int) -> None:
    data = noise(1 << 20)
    parts = checksum(data[:cut]) + checksum(data[cut:], start=cut, threads=2)
    assert parts % 2**64 == checksum(data)
