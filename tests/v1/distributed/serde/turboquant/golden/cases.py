# SPDX-License-Identifier: Apache-2.0
"""Frozen payloads: they must stay readable, and be written again, for ever.

``python -m tests.v1.distributed.serde.turboquant.golden.cases`` writes those
that are missing. One that exists is never overwritten: changed bytes mean that
stored caches can no longer be read.
"""

# Standard
from dataclasses import dataclass
from pathlib import Path
import hashlib

# Third Party
from safetensors import safe_open
from safetensors.torch import save_file
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
)

FOLDER = Path(__file__).parent
SEED = 20260101


@dataclass(frozen=True)
class GoldenCase:
    """One frozen payload and what it was made from."""

    preset: str
    dtype: str
    head_dim: int

    @property
    def name(self) -> str:
        """File name, less its suffix."""
        return f"{self.preset}-{self.dtype}-{self.head_dim}"

    @property
    def path(self) -> Path:
        """The frozen file."""
        return FOLDER / f"{self.name}.safetensors"

    @property
    def config(self) -> TurboQuantSerdeConfig:
        """Two compressed layers between a raw one on either side."""
        return TurboQuantSerdeConfig(
            preset=self.preset,
            head_dim=self.head_dim,
            skip_first_layers=1,
            skip_last_layers=1,
        )

    def tensor(self) -> torch.Tensor:
        """The payload's source: 5 tokens, 2 heads, from ``SEED``."""
        rows = gaussian(2, 4, 5, 2 * self.head_dim, seed=SEED)
        return rows.to(getattr(torch, self.dtype))

    def load(self) -> tuple[torch.Tensor, str]:
        """Read the frozen payload, and the SHA-256 of what it restores to."""
        with safe_open(str(self.path), framework="pt") as file:
            return file.get_tensor("payload"), file.metadata()["restored_sha256"]


CASES = [
    GoldenCase(preset, dtype, head_dim)
    for preset in PRESET_NAMES
    for dtype, head_dim in (("bfloat16", 128), ("float16", 64), ("float32", 80))
]


def digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's bytes."""
    raw = tensor.cpu().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(raw.tobytes()).hexdigest()


def write_missing() -> None:
    """Freeze the cases that have no file yet."""
    for case in CASES:
        if case.path.exists():
            continue
        tensor = case.tensor()
        payload = encode(tensor, case.config)
        restored = decode(payload, tensor, case.config)
        metadata = {"seed": str(SEED), "restored_sha256": digest(restored)}
        save_file({"payload": payload}, str(case.path), metadata)
        print(f"wrote {case.path.name}")


if __name__ == "__main__":
    write_missing()
