# SPDX-License-Identifier: Apache-2.0
"""How many bytes chunks take in L2, counted by whoever can."""

# Standard
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

# First Party
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.mp_observability.event import Event

BytesSource = Literal["disk", "adapter", "unknown"]


class L2ByteCounter:
    """Counts bytes by file sizes where there are files, else as the adapter reports."""

    def __init__(self, adapter: L2AdapterConfigBase) -> None:
        """Prepare to count for one adapter.

        Args:
            adapter: Its configuration; one with a ``base_path`` keeps a file a chunk.
        """
        base_path = getattr(adapter, "base_path", None)
        self._folder = Path(base_path) if isinstance(base_path, str) else None
        self._reported: dict[ObjectKey, int] = {}

    def on_keys_stored(self, event: Event) -> None:
        """Take in an adapter's report.

        Args:
            event: An ``L2_KEYS_STORED`` event.
        """
        sizes = zip(event.metadata["keys"], event.metadata["sizes"], strict=True)
        self._reported.update(sizes)

    def count(self, keys: Sequence[ObjectKey]) -> tuple[int | None, BytesSource]:
        """Count what the chunks of some keys take.

        Args:
            keys: Keys that were stored.

        Returns:
            The bytes and who counted them; None if nobody did.
        """
        files = [self._files(key) for key in keys]
        if all(files):
            return sum(p.stat().st_size for paths in files for p in paths), "disk"
        if all(key in self._reported for key in keys):
            return sum(self._reported[key] for key in keys), "adapter"
        return None, "unknown"

    def _files(self, key: ObjectKey) -> list[Path]:
        """The files that carry the key's hash in their name."""
        if self._folder is None:
            return []
        found = self._folder.rglob(f"*{key.chunk_hash.hex()}*")
        return [path for path in found if path.is_file()]
