# SPDX-License-Identifier: Apache-2.0
"""Device work on memory that stays where it is, queued by one call."""

# Standard
from collections.abc import Callable
from typing import Any

# First Party
from lmcache import torch_dev


class Launch:
    """Work that is queued on the current stream again and again.

    The first time its kernels are launched one by one, and compiled if need be. Where
    the device can, the second time records them as a graph, and from then on one call
    launches them all. Not thread-safe.

    Args:
        work: Queues the work. It must not allocate, nor wait for the device.
        is_recordable: Whether the device can record it.
    """

    def __init__(self, work: Callable[[], None], is_recordable: bool) -> None:
        self._work = work
        self._is_recordable = is_recordable and hasattr(torch_dev, "CUDAGraph")
        self._has_run = False
        self._graph: Any = None

    def __call__(self) -> None:
        """Queue the work on the current stream, which is not the default one."""
        if self._graph is None and not (self._is_recordable and self._has_run):
            self._work()
            self._has_run = True
            return
        if self._graph is None:
            graph = torch_dev.CUDAGraph()
            # Other threads may allocate meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._work()
            finally:
                graph.capture_end()
            self._graph = graph
        self._graph.replay()
