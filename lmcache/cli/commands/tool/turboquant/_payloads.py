# SPDX-License-Identifier: Apache-2.0
"""Payload files: where they are, what they hold, whether they would be decoded."""

# Standard
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import json

# Third Party
import numpy as np
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.declared import format_of
from lmcache.v1.distributed.serde.turboquant.factory import SERDE_TYPE
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.self_description import described_layout

PAYLOAD_SUFFIX = ".data"
"""What LMCache's file adapters append to an object's key."""


@dataclass(frozen=True, kw_only=True)
class Payload:
    """What a file turned out to hold.

    Attributes:
        path: The file.
        file_bytes: Its size.
        layout: What its header describes; None where there is no sound header.
        refusal: Why it would not be decoded; empty where it would.
    """

    path: Path
    file_bytes: int
    layout: FrameLayout | None
    refusal: str

    @property
    def raw_bytes(self) -> int:
        """Bytes of the tensors; 0 where they are not known."""
        layouts = self.layout.layouts if self.layout else ()
        return sum(part.shape.numel() * part.dtype.itemsize for part in layouts)


def find_payloads(path: Path) -> list[Path]:
    """Return the payload files that a path stands for.

    Args:
        path: A payload, or a directory that holds some at any depth.

    Returns:
        The files, sorted.

    Raises:
        ValueError: If there is nothing at ``path``, or no payload in it.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"there is no file or directory {path}")
    found = sorted(x for x in path.rglob(f"*{PAYLOAD_SUFFIX}") if x.is_file())
    if not found:
        raise ValueError(f"no {PAYLOAD_SUFFIX} file in {path}")
    return found


def read_frame(path: Path) -> torch.Tensor:
    """Read a file into a uint8 tensor; raises OSError where it cannot be read."""
    return torch.from_numpy(np.fromfile(path, dtype=np.uint8))


def examine(path: Path, config: TurboQuantSerdeConfig | None = None) -> Payload:
    """Read a file and check it as the serde would.

    Args:
        path: The file.
        config: What the serde that reads it is configured with; None to check it
            against its own header alone.

    Returns:
        What was found.
    """
    num_bytes, layout, refusal = 0, None, ""
    try:
        frame = read_frame(path)
        num_bytes = frame.numel()
        layout = described_layout(frame.numpy().data)
        layout.verify(frame)
        if config is not None:
            _expected_layout(layout, config).verify(frame)
    except (OSError, ValueError) as error:
        refusal = str(error)
    return Payload(path=path, file_bytes=num_bytes, layout=layout, refusal=refusal)


def serde_config(text: str) -> TurboQuantSerdeConfig:
    """Read the ``serde`` object of an L2 adapter's JSON.

    Args:
        text: The JSON.

    Returns:
        The configuration of framed payloads that it describes.

    Raises:
        ValueError: If it is not such an object, turns frames off, or encrypts.
    """
    settings = json.loads(text)
    if not isinstance(settings, dict) or settings.get("type") != SERDE_TYPE:
        raise ValueError(f'expected {{"type": "{SERDE_TYPE}", ...}}, got {text}')
    if settings.get("encrypt") is not None:
        raise ValueError("encrypted payloads show nothing without their key")
    codec_settings = {
        name: value
        for name, value in settings.items()
        if name not in ("type", "max_workers")
    }
    config = TurboQuantSerdeConfig.from_kwargs({"framed": True} | codec_settings)
    if not config.framed:
        raise ValueError("bare payloads hold nothing to check: framed is false")
    return config


def given_config(settings: Mapping[str, object]) -> TurboQuantSerdeConfig:
    """Build a configuration from options, of which None was not given."""
    given = {name: value for name, value in settings.items() if value is not None}
    return TurboQuantSerdeConfig.from_kwargs(given)


def _expected_layout(layout: FrameLayout, config: TurboQuantSerdeConfig) -> FrameLayout:
    """Return how a configuration stores the tensors that a frame holds.

    What it leaves to LMCache is taken to be what the frame says.
    """
    parts = layout.layouts
    description = MemoryLayoutDesc(
        [part.shape for part in parts],
        [part.dtype for part in parts],
        tuple(format_of(part.geometry) for part in parts),
    )
    expected = container_of(description, config)
    if not isinstance(expected, FrameLayout):
        raise ValueError("a bare layout was configured, the payload has a frame")
    return expected
