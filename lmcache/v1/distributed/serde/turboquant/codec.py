# SPDX-License-Identifier: Apache-2.0
"""Serializer and deserializer: memory objects in, memory objects out."""

# First Party
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.container import (
    Container,
    container_of,
    require_size,
)
from lmcache.v1.distributed.serde.turboquant.engine import Engine
from lmcache.v1.distributed.serde.turboquant.header import fingerprint
from lmcache.v1.distributed.serde.turboquant.memory import (
    byte_buffer,
    describe,
    stored_tensors,
)
from lmcache.v1.memory_management import MemoryObj

logger = init_logger(__name__)


class TurboQuantSerializer(Serializer):
    """Compress KV tensors into byte buffers.

    Thread-safe: what an instance keeps between calls is a thread's own.

    Args:
        config: What to do with the tensors.

    Raises:
        ValueError: If a preset or the device of ``config`` does not exist.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        self._config = config
        self._engine = Engine(config)
        self._has_warned = False

    def serialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> int:
        """Write the payload of ``src`` to the start of ``dst``.

        The payload is complete when this returns. The same tensors and key give
        the same bytes, whatever thread or batch they are encoded in. A GPU's
        differ from the CPU's where a number lies next to a boundary of two codes.

        Args:
            src: Object holding the KV tensors that the configuration describes.
            dst: Object holding a uint8 buffer of at least
                ``estimate_serialized_size`` bytes.
            key: Key of the object; a frame is bound to it.

        Returns:
            Bytes written: exactly the estimate.

        Raises:
            ValueError: If either object has no tensor, ``src`` is not what the
                configuration describes, ``dst`` is too small, or the two are on
                different accelerators.
        """
        container = container_of(describe(src, "source"), self._config)
        buffer = byte_buffer(dst, "destination")
        require_size(buffer, container.total_bytes, "destination")
        buffer = buffer[: container.total_bytes]
        tensors = stored_tensors(src, "source")
        self._engine.encode(container, tensors, buffer, fingerprint(key))
        self._warn_once_of_no_effect(container)
        return container.total_bytes

    def estimate_serialized_size(
        self,
        layout_desc: MemoryLayoutDesc,
    ) -> int:
        """Return the exact payload size, from the layout alone.

        Args:
            layout_desc: Shapes and dtypes of the KV tensors.

        Returns:
            Size in bytes.

        Raises:
            ValueError: If :meth:`serialize` would refuse such tensors.
        """
        return container_of(layout_desc, self._config).total_bytes

    def _warn_once_of_no_effect(self, container: Container) -> None:
        """Say that an object was stored without any compression, the first time."""
        if self._has_warned or any(layout.quantises for layout in container.layouts):
            return
        self._has_warned = True
        logger.warning(
            "TurboQuant stores an object of %s without compression: its tensors are "
            "opaque, or have no more layers than are skipped",
            [tuple(layout.shape) for layout in container.layouts],
        )


class TurboQuantDeserializer(Deserializer):
    """Restore KV tensors from byte buffers.

    Thread-safe: what an instance keeps between calls is a thread's own.

    Args:
        config: What the tensors were compressed with.

    Raises:
        ValueError: If a preset or the device of ``config`` does not exist.
    """

    def __init__(self, config: TurboQuantSerdeConfig) -> None:
        self._config = config
        self._engine = Engine(config)

    def deserialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> None:
        """Restore the payload at the start of ``src`` into ``dst``.

        The tensors are complete when this returns. A framed payload is checked
        before ``dst`` is touched.

        Args:
            src: Object holding a uint8 buffer that starts with the payload.
            dst: Object holding the KV tensors that the configuration describes.
            key: Key of the object, which a frame must be bound to.

        Raises:
            ValueError: If either object has no tensor, ``dst`` is not what the
                configuration describes, the two are on different accelerators, or
                ``src`` is too small, corrupt or the payload of something else.
        """
        container = container_of(describe(dst, "destination"), self._config)
        buffer = byte_buffer(src, "source")
        tensors = stored_tensors(dst, "destination")
        self._engine.decode(container, buffer, tensors, fingerprint(key))
