# SPDX-License-Identifier: Apache-2.0
"""The CPU backend's threads: they change no byte, and nobody else's settings."""

# Standard
from concurrent.futures import ThreadPoolExecutor
import multiprocessing

# Third Party
import numba
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.cpu_helpers import (
    cpu_decode,
    cpu_encode,
    layout_of,
)
from tests.v1.distributed.serde.turboquant.helpers import PRESET_NAMES, gaussian


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_bytes(preset: str, threads: int) -> None:
    tensor = gaussian(2, 6, 203, 5 * 128).bfloat16()
    layout = layout_of(tensor, preset, 128, skip_first_layers=1, skip_last_layers=1)
    payload = cpu_encode(tensor, layout)
    assert torch.equal(cpu_encode(tensor, layout, threads), payload)
    restored = cpu_decode(payload, layout, threads)
    expected = cpu_decode(payload, layout)
    assert torch.equal(restored[:, 1:-1], expected[:, 1:-1])


def test_thread_settings_of_others_are_left_alone() -> None:
    before = torch.get_num_threads(), numba.get_num_threads()
    tensor = gaussian(2, 4, 512, 1024)
    layout = layout_of(tensor, PRESET_NAMES[0], 128)
    cpu_decode(cpu_encode(tensor, layout, threads=2), layout, threads=2)
    assert (torch.get_num_threads(), numba.get_num_threads()) == before


def test_operations_at_the_same_time() -> None:
    tensors = [gaussian(2, 4, 200, 512, seed=seed).half() for seed in range(8)]
    layout = layout_of(tensors[0], PRESET_NAMES[1], 128)
    expected = [cpu_encode(tensor, layout) for tensor in tensors]
    with ThreadPoolExecutor(8) as workers:
        payloads = workers.map(lambda tensor: cpu_encode(tensor, layout, 2), tensors)
        assert all(map(torch.equal, payloads, expected))


def encode_with_two_threads() -> None:
    """Enough work for two threads to be asked."""
    torch.set_num_threads(1)  # torch's own do not survive a fork
    tensor = gaussian(2, 4, 200, 512)
    cpu_encode(tensor, layout_of(tensor, PRESET_NAMES[0], 128), threads=2)


def test_a_forked_process_has_threads_of_its_own() -> None:
    threads_of_torch = torch.get_num_threads()
    encode_with_two_threads()
    torch.set_num_threads(threads_of_torch)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=encode_with_two_threads, daemon=True)
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 0
