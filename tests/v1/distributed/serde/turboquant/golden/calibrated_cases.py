# SPDX-License-Identifier: Apache-2.0
"""Frozen frames of presets that need one, written by the reference.

``python -m tests.v1.distributed.serde.turboquant.golden.calibrated_cases`` writes
those that are missing. One that exists is never overwritten.
"""

# Standard
from dataclasses import dataclass, field
from pathlib import Path

# Third Party
from safetensors import safe_open
from safetensors.torch import save_file
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig, reference
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.header import ALIGNMENT_BYTES
from lmcache.v1.distributed.serde.turboquant.kv_layout import kv_views
from lmcache.v1.distributed.serde.turboquant.layout import layouts_of
from tests.v1.distributed.serde.turboquant.golden.cases import SEED, digest
from tests.v1.distributed.serde.turboquant.helpers import gaussian

FOLDER = Path(__file__).parent / "calibrated"


@dataclass(frozen=True)
class CalibratedCase:
    """One frozen frame and what it was made from: one layer, nothing raw."""

    preset: str
    dtype: str
    shape: tuple[int, ...]
    settings: dict = field(hash=False)

    @property
    def name(self) -> str:
        """File name, less its suffix."""
        return f"{self.preset}-{self.dtype}-{self.shape[-2]}-{self.shape[-1]}"

    @property
    def path(self) -> Path:
        """The frozen file."""
        return FOLDER / f"{self.name}.safetensors"

    @property
    def frame(self) -> FrameLayout:
        """Layout of the frame."""
        config = TurboQuantSerdeConfig(
            preset=self.preset,
            framed=True,
            skip_first_layers=0,
            skip_last_layers=0,
            **self.settings,
        )
        dtype = getattr(torch, self.dtype)
        description = MemoryLayoutDesc([torch.Size(self.shape)], [dtype])
        return FrameLayout(layouts_of(description, config), page_bytes=ALIGNMENT_BYTES)

    def tensor(self) -> torch.Tensor:
        """The source: rows about an offset that all tokens share, but one."""
        offset = gaussian(*self.shape[:-2], 1, self.shape[-1], seed=SEED + 1)
        rows = gaussian(*self.shape, seed=SEED) + 3 * offset
        rows[..., 0, :] *= 0.1
        return rows.to(getattr(torch, self.dtype))

    def encode(self) -> torch.Tensor:
        """Write the frame with the reference."""
        frame = self.frame
        (layout,), (span,) = frame.layouts, frame.spans
        data = torch.zeros(frame.total_bytes, dtype=torch.uint8)
        payload = data[span]
        views = kv_views(self.tensor(), layout.geometry)
        slots = payload[layout.slots_span].view(layout.compressed_shape)
        parts = layout.side_table.parts(payload[layout.side_table_span])
        reference.encode_layers(views, slots, layout.slot, 0, parts)
        frame.seal(data)
        return data

    def decode(self, data: torch.Tensor) -> torch.Tensor:
        """Restore a frame with the reference."""
        frame = self.frame
        frame.verify(data)
        (layout,), (span,) = frame.layouts, frame.spans
        payload, tensor = data[span], torch.empty_like(self.tensor())
        views = kv_views(tensor, layout.geometry)
        slots = payload[layout.slots_span].view(layout.compressed_shape)
        parts = layout.side_table.parts(payload[layout.side_table_span])
        reference.decode_layers(slots, views, layout.slot, 0, parts)
        return tensor

    def load(self) -> tuple[torch.Tensor, str]:
        """Read the frozen frame, and the SHA-256 of what it restores to."""
        with safe_open(str(self.path), framework="pt") as file:
            return file.get_tensor("frame"), file.metadata()["restored_sha256"]


CASES = [
    CalibratedCase(
        "turboquant_4bit_cc", "bfloat16", (2, 1, 64, 128), {"rope_theta": 1e4}
    ),
    CalibratedCase("turboquant_k4v3_cc", "float16", (2, 1, 64, 64), {"head_dim": 64}),
    CalibratedCase("turboquant_k3v4_cc", "float32", (2, 1, 64, 80), {"head_dim": 80}),
    CalibratedCase(
        "turboquant_3bit_cc",
        "bfloat16",
        (1, 1, 65, 96),
        {"kv_layout": "diff", "head_dim": 64, "value_head_dim": 32},
    ),
    CalibratedCase(
        "turboquant_k3v2_cc",
        "float16",
        (2, 1, 100, 128),
        {"head_dim": 64, "rope_theta": 1e6},
    ),
    CalibratedCase("turboquant_2bit_cc", "bfloat16", (2, 1, 63, 64), {"head_dim": 64}),
    CalibratedCase(
        "turboquant_4bit_tc", "bfloat16", (2, 1, 64, 128), {"rope_theta": 1e4}
    ),
    CalibratedCase("turboquant_3bit_tc", "float32", (2, 1, 64, 80), {"head_dim": 80}),
    CalibratedCase("turboquant_2bit_tc", "float16", (2, 1, 64, 64), {"head_dim": 64}),
    CalibratedCase("turboquant_4bit_t", "bfloat16", (2, 1, 3, 128), {}),
    CalibratedCase("turboquant_3bit_t", "float32", (2, 1, 3, 80), {"head_dim": 80}),
    CalibratedCase("turboquant_2bit_t", "float16", (2, 1, 3, 64), {"head_dim": 64}),
    CalibratedCase(
        "turboquant_2bit_cc",
        "bfloat16",
        (1, 1, 64, 96),
        {"kv_layout": "latent", "head_dim": 64, "value_head_dim": 32},
    ),
]


def write_missing() -> None:
    """Freeze the cases that have no file yet."""
    FOLDER.mkdir(exist_ok=True)
    for case in CASES:
        if not case.path.exists():
            data = case.encode()
            metadata = {"restored_sha256": digest(case.decode(data))}
            save_file({"frame": data}, str(case.path), metadata)


if __name__ == "__main__":
    write_missing()
