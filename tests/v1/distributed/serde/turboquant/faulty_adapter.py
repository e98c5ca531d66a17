# SPDX-License-Identifier: Apache-2.0
"""An L2 adapter, loaded through LMCache's ``plugin`` type, that lies about loads."""

# Standard
from collections.abc import Callable

# Third Party
import torch

# First Party
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.base import L2TaskId
from lmcache.v1.distributed.l2_adapters.mock_l2_adapter import (
    MockL2Adapter,
    MockL2AdapterConfig,
)
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.memory_management import MemoryObj

Fault = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

BUFFER_FAULTS: dict[str, Fault] = {
    "partial": lambda stored, stale, other: torch.cat(
        [stored[: len(stored) // 2], stale[len(stored) // 2 :]]
    ),
    "late": lambda stored, stale, other: torch.cat([stale[:4096], stored[4096:]]),
    "zeroed": lambda stored, stale, other: torch.zeros_like(stored),
    "stale": lambda stored, stale, other: stale,
    "foreign": lambda stored, stale, other: other,
}
"""What a load leaves in the buffer instead of ``stored``: ``stale`` is what the
buffer held before, ``other`` the bytes stored under another key."""


class FaultyL2Adapter(MockL2Adapter):
    """Keeps objects in memory; spoils what it loads and reports success.

    Args:
        params: ``"bandwidth_gb"`` of the mock adapter underneath.
        l1_memory_desc: Ignored.
    """

    def __init__(self, params: dict, l1_memory_desc: object = None) -> None:
        super().__init__(
            MockL2AdapterConfig(
                max_size_gb=0.1, mock_bandwidth_gb=params["bandwidth_gb"]
            )
        )
        self.fault = ""
        self._loads: dict[L2TaskId, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def submit_load_task(
        self, keys: list[ObjectKey], objects: list[MemoryObj]
    ) -> L2TaskId:
        """Load, and remember what the buffers held before."""
        buffers = [memory.tensor for memory in objects if memory.tensor is not None]
        stale = [buffer.clone() for buffer in buffers]
        task = super().submit_load_task(keys, objects)
        self._loads[task] = (buffers, stale)
        return task

    def query_load_result(self, task_id: int) -> Bitmap | None:
        """Report the load's success, its first object spoilt."""
        bitmap = super().query_load_result(task_id)
        if bitmap is not None:
            (first, *others), stale = self._loads.pop(task_id)
            if self.fault:
                other = others[0] if others else first
                spoilt = BUFFER_FAULTS[self.fault](first.clone(), stale[0], other)
                first.copy_(spoilt)
        return bitmap


def faulty_adapter_config() -> PluginL2AdapterConfig:
    """Configuration that makes LMCache load this module's adapter."""
    return PluginL2AdapterConfig(
        module_path=__name__,
        class_name=FaultyL2Adapter.__name__,
        adapter_params={"bandwidth_gb": 10.0},
    )
