# SPDX-License-Identifier: Apache-2.0
"""What is added to the keys before a codec sees them.

A constant added to all keys of a head changes no attention weight, so a model whose
keys have a bias behaves as one without, until a codec spends its accuracy on the
bias. It is taken off again after decoding.
"""

# Standard
from collections.abc import Iterable
from dataclasses import dataclass

# Third Party
import torch

_SEED = 20


@dataclass(frozen=True)
class Condition:
    """How large the bias is, and which channels it is in.

    Attributes:
        strength: Magnitude, in medians of the layer's absolute keys.
        channels: How many channels of a head have it; 0: all.
    """

    strength: float = 0
    channels: int = 0

    @property
    def name(self) -> str:
        """What reports call the condition."""
        if not self.strength:
            return "plain"
        where = f"in {self.channels} channels" if self.channels else "spread"
        return f"bias {self.strength:g} {where}"

    def bias(self, keys: torch.Tensor, head_dim: int) -> torch.Tensor:
        """Draw the bias: a magnitude for each layer, signs and channels by head.

        Args:
            keys: ``[layers, tokens, heads * head_dim]``; they set the magnitude.
            head_dim: Width of one head.

        Returns:
            ``[layers, 1, heads * head_dim]``, float32, the same in every run.
        """
        layers, _, hidden = keys.shape
        generator = torch.Generator().manual_seed(_SEED)
        shape = (layers, hidden // head_dim, head_dim)
        signs = torch.randint(2, shape, generator=generator).float() * 2 - 1
        if self.channels:
            order = torch.rand(shape, generator=generator).argsort(dim=-1)
            signs *= order < self.channels
        magnitudes = keys.float().abs().flatten(1).median(dim=1).values
        return signs.flatten(1)[:, None] * magnitudes[:, None, None] * self.strength


PLAIN = Condition()


def biased(strengths: tuple[float, ...]) -> list[Condition]:
    """List the conditions of some strengths, spread and in four channels."""
    return [
        Condition(strength, channels) for channels in (0, 4) for strength in strengths
    ]


def representative(names: Iterable[str]) -> list[str]:
    """Choose the conditions that a figure has room for.

    Args:
        names: Names of conditions, weaker biases first.

    Returns:
        Plain keys, and the middle one of the spread biases and of the others.
    """
    kinds: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        # "bias", strength, kind
        kind = name if name == PLAIN.name else name.split(maxsplit=2)[2]
        kinds.setdefault(kind, []).append(name)
    return [alike[len(alike) // 2] for alike in kinds.values()]
