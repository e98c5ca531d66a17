# SPDX-License-Identifier: Apache-2.0
"""Launches made again elsewhere: the arguments are those that Triton would pass."""

# Standard
from collections.abc import Callable
from typing import Any

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, needs_gpu

# isort: split

# First Party
from lmcache.v1.distributed.serde.turboquant.checksum import CONSTANTS, checksum
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_calls import Call, Replay
from lmcache.v1.distributed.serde.turboquant.kernels.gpu_checksum import checksum_call

TABLE = torch.arange(8)
NUMBERS = (1, 16)


class FakeKernel:
    """A kernel that notes what it is launched with, by Triton and once compiled."""

    def __init__(self) -> None:
        self.jit_launches: list[tuple] = []
        self.compiled_launches: list[tuple] = []

    @staticmethod
    def fn(
        source: object, target: object, table: object, one: int, SIZE: int, x: object
    ) -> None:
        """Have the parameters of a kernel."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: object, **options: object) -> object:
            self.jit_launches.append((grid, arguments, options))
            return self.compiled()

        return launch

    def compiled(self) -> Any:
        """Return what stands for the compiled kernel."""
        kernel = self

        class Compiled:
            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                return lambda *arguments: kernel.compiled_launches.append(
                    (grid, arguments)
                )

        return Compiled()


class InterpretedKernel(FakeKernel):
    """A kernel that is never compiled."""

    def compiled(self) -> None:
        return None


def replay_of(kernel: FakeKernel) -> Replay:
    """Launches of a kernel on half of one tensor and the whole of another."""

    def calls(source: torch.Tensor, target: torch.Tensor) -> list[Call]:
        options = {"x": None, "SIZE": 64, "num_warps": 1}
        call = Call(kernel, (3, 2), (source[4:], target, TABLE, NUMBERS[0]), options)
        return [call, call]

    return Replay(calls)


def test_only_addresses_change() -> None:
    kernel = FakeKernel()
    replay = replay_of(kernel)
    objects = [(torch.zeros(8), torch.zeros(8)) for _ in range(3)]
    for source, target in objects:
        replay(source, target)
    assert len(kernel.jit_launches) == 2
    expected = []
    for source, target in objects[1:]:
        arguments = (source.data_ptr() + 16, target.data_ptr(), TABLE.data_ptr())
        expected += [((3, 2, 1), (*arguments, 1, 64, None))] * 2
    assert kernel.compiled_launches == expected


def test_what_triton_interprets_is_launched_by_it() -> None:
    kernel = InterpretedKernel()
    replay = replay_of(kernel)
    for _ in range(3):
        replay(torch.zeros(8), torch.zeros(8))
    assert len(kernel.jit_launches) == 6
    assert not kernel.compiled_launches


def test_a_launch_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    replay = replay_of(kernel)

    def fail() -> None:
        raise RuntimeError("out of registers")

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "compiled", fail)
        with pytest.raises(RuntimeError, match="registers"):
            replay(torch.zeros(8), torch.zeros(8))
    replay(torch.zeros(8), torch.zeros(8))
    assert len(kernel.jit_launches) == 3
    assert not kernel.compiled_launches


def test_a_tensor_that_does_not_move_lives_on() -> None:
    made: list[Any] = []

    def calls(*tensors: torch.Tensor) -> list[Call]:
        made.append(FakeKernel())
        table = torch.arange(1000)
        return [Call(made[0], (1,), (*tensors, table, 1), {"x": None, "SIZE": 1})]

    replay = Replay(calls)
    replay(torch.zeros(8), torch.zeros(8))
    others = [torch.zeros(1000, dtype=torch.int64) for _ in range(8)]
    replay(torch.zeros(8), torch.zeros(8))
    ((_, arguments),) = made[0].compiled_launches
    assert arguments[2] not in {other.data_ptr() for other in others}


@needs_gpu
def test_a_compiled_kernel_is_launched_on_other_memory() -> None:
    total = torch.zeros((), dtype=torch.int64, device=DEVICE)
    replay = Replay(lambda words: [checksum_call(words[4:], 0, total, CONSTANTS)])
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(-(2**31), 2**31, (9999,), generator=generator).int()
        on_gpu = words.to(DEVICE)
        replay(on_gpu)
        expected = checksum(words[4:].view(torch.uint8))
        assert int(total) % 2**64 == expected
        total.zero_()
