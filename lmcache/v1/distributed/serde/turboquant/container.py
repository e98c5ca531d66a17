# SPDX-License-Identifier: Apache-2.0
"""What a memory object becomes: a frame, or its payloads and nothing else."""

# Standard
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

# Third Party
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.kv_content import TensorFormat
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.failures import ChangedSettingsError
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout
from lmcache.v1.distributed.serde.turboquant.header import MAGIC
from lmcache.v1.distributed.serde.turboquant.layout import PayloadLayout, layouts_of


@dataclass(frozen=True)
class BareLayout:
    """Payloads one after another, and nothing else.

    Attributes:
        layouts: Payload layouts of the object's tensors, in order.
    """

    layouts: tuple[PayloadLayout, ...]

    body_start = 0
    """Offset of the first byte after a header."""

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """Byte ranges of the payloads."""
        stops = list(accumulate(layout.payload_bytes for layout in self.layouts))
        starts = [0, *stops][: len(stops)]
        return tuple(map(slice, starts, stops))

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(layout.payload_bytes for layout in self.layouts)

    def seal(
        self,
        buffer: torch.Tensor,
        key_fingerprint: int = 0,
        threads: int = 1,
        payload_sum: int | None = None,
    ) -> None:
        """Do nothing: the payloads are all there is."""

    def check(self, buffer: torch.Tensor, key_fingerprint: int | None = None) -> None:
        """Check that a buffer has room for the payloads, and is no frame.

        Args:
            buffer: uint8 tensor that starts with the payloads.
            key_fingerprint: Unused: nothing tells whose payloads they are.

        Raises:
            ValueError: If it is too small, or starts as a frame does.
        """
        require_size(buffer, self.total_bytes, "source")
        if bytes(buffer[: len(MAGIC)].cpu().numpy()) == MAGIC:
            raise ChangedSettingsError(
                "TurboQuant payload has a frame, expected a bare one: set framed to "
                "true"
            )

    def verify(
        self,
        buffer: torch.Tensor,
        key_fingerprint: int | None = None,
        threads: int = 1,
    ) -> None:
        """Do what :meth:`check` does: there is no checksum."""
        self.check(buffer, key_fingerprint)


Container = BareLayout | FrameLayout
"""What an object becomes: ``layouts``, ``spans`` and ``total_bytes``."""


def container_of(
    description: MemoryLayoutDesc, config: TurboQuantSerdeConfig
) -> Container:
    """Lay out what a memory object becomes.

    Args:
        description: Shapes and dtypes of the object's tensors.
        config: What the serde does with them.

    Returns:
        The container.

    Raises:
        ValueError: If the serde cannot store such an object.
    """
    formats = description.tensor_formats
    return _container_of(
        tuple(description.shapes),
        tuple(description.dtypes),
        None if formats is None else tuple(formats),
        config,
    )


@lru_cache(maxsize=256)
def _container_of(
    shapes: tuple[torch.Size, ...],
    dtypes: tuple[torch.dtype, ...],
    formats: tuple[TensorFormat | None, ...] | None,
    config: TurboQuantSerdeConfig,
) -> Container:
    """Do what :func:`container_of` does, once for all objects of a layout."""
    description = MemoryLayoutDesc(list(shapes), list(dtypes), formats)
    layouts = layouts_of(description, config)
    if not config.framed:
        return BareLayout(layouts)
    frame = FrameLayout(layouts)
    _ = frame.records
    return frame


def require_size(buffer: torch.Tensor, num_bytes: int, role: str) -> None:
    """Raise ValueError unless ``buffer`` has ``num_bytes``; ``role`` names it."""
    if buffer.numel() < num_bytes:
        raise ValueError(
            f"TurboQuant {role} buffer too small: needs {num_bytes} bytes, got "
            f"{buffer.numel()}"
        )
