# SPDX-License-Identifier: Apache-2.0
"""The KV tensors that are exchanged, and the settings they are encoded with."""

# Standard
from dataclasses import dataclass
import zlib

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig

SPECIAL_TOKENS = 4
"""Leading tokens of every layer whose rows are not drawn from N(0, 1)."""

CONSTANT = 0.75
LOUD = 200.0
QUIET = 1e-3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One KV tensor and its settings.

    Attributes:
        preset: Name of the preset.
        head_dim: Dimensions of a head vector.
        dtype: Element type of the tensor.
        layers: Layers of the tensor.
        tokens: Tokens of the tensor.
        heads: Head vectors a token.
        block_size: Tokens a block.
        skip: Layers stored raw at either end.
    """

    preset: str
    head_dim: int
    dtype: torch.dtype
    layers: int
    tokens: int
    heads: int
    block_size: int
    skip: int

    @property
    def name(self) -> str:
        """A name that no other case has."""
        dtype = str(self.dtype).removeprefix("torch.")
        shape = f"L{self.layers}-T{self.tokens}-H{self.heads}"
        return f"{self.preset}-D{self.head_dim}-{dtype}-{shape}-skip{self.skip}"

    @property
    def settings(self) -> dict[str, str | int]:
        """Arguments of either side's configuration."""
        return {
            "preset": self.preset,
            "head_dim": self.head_dim,
            "block_size": self.block_size,
            "skip_first_layers": self.skip,
            "skip_last_layers": self.skip,
        }

    @property
    def config(self) -> TurboQuantSerdeConfig:
        """Our configuration."""
        return TurboQuantSerdeConfig(**self.settings)  # type: ignore[arg-type]

    @property
    def compressed_layers(self) -> range:
        """Layers that are not stored raw."""
        return range(self.skip, self.layers - self.skip)

    def source(self) -> torch.Tensor:
        """Draw the KV tensor ``[2, layers, tokens, heads * head_dim]``.

        Returns:
            Normal rows, but for the special tokens: zero, constant, loud
            enough to saturate float8, and quiet. The same in every run.
        """
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        shape = (2, self.layers, self.tokens, self.heads * self.head_dim)
        rows = torch.randn(shape, generator=generator)
        rows[:, :, 0] = 0
        rows[:, :, 1] = CONSTANT
        rows[:, :, 2] *= LOUD
        rows[:, :, 3] *= QUIET
        return rows.to(self.dtype)


def _all_cases() -> list[Case]:
    """Cross presets and head dims; each pair meets every shape and dtype once."""
    shapes = (
        dict(layers=3, tokens=17, heads=1, block_size=16, skip=1),
        dict(layers=3, tokens=5, heads=3, block_size=4, skip=1),
        dict(layers=2, tokens=10, heads=2, block_size=5, skip=0),
    )
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    presets = (
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
    )
    return [
        Case(
            preset=preset,
            head_dim=head_dim,
            dtype=dtypes[(row + column + position) % len(dtypes)],
            **shape,
        )
        for row, preset in enumerate(presets)
        for column, head_dim in enumerate((64, 128, 256))
        for position, shape in enumerate(shapes)
    ]


CASES = _all_cases()
