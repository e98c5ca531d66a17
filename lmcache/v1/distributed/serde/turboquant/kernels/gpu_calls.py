# SPDX-License-Identifier: Apache-2.0
"""Launches of Triton kernels, made again without Triton's look at every argument.

To find the compiled kernel of a launch, Triton inspects all its arguments, which takes
longer than the launch. Which one it is depends on nothing but the device, constants
and launch options, the arguments' types, and of each number, addresses included,
whether it is 1 and whether it is a multiple of ``ADDRESS_UNIT``. So where memory has
moved by multiples of that, and all else is the same, the kernel is the same.
"""

# Standard
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
import inspect

# Third Party
import torch

ADDRESS_UNIT = 16
"""Bytes of the widest load; kernels differ where an address is no multiple of it."""

_Moving = list[tuple[int, int, int]]
"""Of each argument that moves: its index, the tensor it lies in, its offset there."""


@dataclass(frozen=True)
class Call:
    """A launch.

    Attributes:
        kernel: Function decorated with ``triton.jit``.
        grid: Programs along each dimension.
        arguments: Its first arguments.
        options: Its other arguments, and launch options, by name.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[object, ...]
    options: Mapping[str, object]

    def __call__(self) -> Any:
        """Launch on the current stream; return the compiled kernel, if there is one.

        Triton's interpreter has none.
        """
        return self.kernel[self.grid](*self.arguments, **self.options)

    def bound(self) -> tuple[object, ...]:
        """Return all arguments in the order of the kernel's parameters."""
        signature = inspect.signature(self.kernel.fn)
        named = {
            name: option
            for name, option in self.options.items()
            if name in signature.parameters
        }
        return signature.bind(*self.arguments, **named).args


class Replay:
    """Launches that are made again on tensors elsewhere. Not thread-safe.

    Args:
        calls: Returns the launches for some tensors. For tensors of the same sizes,
            whose addresses differ by multiples of ``ADDRESS_UNIT``, it must return the
            same ones but for addresses in the tensors.
    """

    def __init__(self, calls: Callable[..., Iterable[Call]]) -> None:
        self._calls = calls
        self._launches: list[tuple[Callable[..., Any], tuple, _Moving]] | None = None
        self._kept: list[tuple[object, ...]] = []

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Launch on the current stream of the current device, that of the tensors."""
        if self._launches is None:
            self._record(tensors)
            return
        starts = [tensor.data_ptr() for tensor in tensors]
        for launch, arguments, moving in self._launches:
            placed = list(arguments)
            for index, tensor, offset in moving:
                placed[index] = starts[tensor] + offset
            launch(*placed)

    def _record(self, tensors: tuple[torch.Tensor, ...]) -> None:
        """Launch as Triton does, and note what was launched."""
        calls = list(self._calls(*tensors))
        compiled = [call() for call in calls]
        if None in compiled:
            return
        launches = []
        for call, kernel in zip(calls, compiled, strict=True):
            arguments = call.bound()
            grid = (*call.grid, 1, 1)[:3]
            moving = [
                (index, *place)
                for index, argument in enumerate(arguments)
                if (place := _place(argument, tensors)) is not None
            ]
            launches.append((kernel[grid], tuple(map(_address, arguments)), moving))
            # Tables whose addresses are noted must live on.
            fixed = set(range(len(arguments))) - {index for index, *_ in moving}
            self._kept.append(tuple(arguments[index] for index in fixed))
        self._launches = launches


def _place(
    argument: object, tensors: tuple[torch.Tensor, ...]
) -> tuple[int, int] | None:
    """Return in which of some tensors an argument lies, and its offset there."""
    if not isinstance(argument, torch.Tensor):
        return None
    for index, tensor in enumerate(tensors):
        offset = argument.data_ptr() - tensor.data_ptr()
        if 0 <= offset < tensor.nbytes:
            return index, offset
    return None


def _address(argument: object) -> object:
    """Return the address of a tensor, and anything else as it is."""
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else argument
