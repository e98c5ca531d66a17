# SPDX-License-Identifier: Apache-2.0
"""What sizes the temporary buffers of a serde's task have."""

# Standard
from collections.abc import Sequence

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde import SerdeProcessor, serialized_layout_desc
from lmcache.v1.memory_management import MemoryObj


def buffer_layouts(
    temp_keys: Sequence[ObjectKey],
    objects: Sequence[MemoryObj],
    serde: SerdeProcessor,
) -> list[tuple[MemoryLayoutDesc, list[ObjectKey]]]:
    """Group the buffers of a task by layout.

    A task may hold objects of several object groups, whose sizes differ. Each
    distinct object is estimated once.

    Args:
        temp_keys: Keys of the buffers.
        objects: The objects that they belong to, in the same order.
        serde: What estimates a buffer's size.

    Returns:
        Layouts of buffers, and the keys of those that have it.

    Raises:
        ValueError: If the serde refuses an object.
    """
    found: list[tuple[MemoryLayoutDesc, list[ObjectKey]]] = []
    for temp_key, memory_obj in zip(temp_keys, objects, strict=True):
        description = MemoryLayoutDesc(
            memory_obj.get_shapes(),
            memory_obj.get_dtypes(),
            memory_obj.get_tensor_formats(),
        )
        for known, members in found:
            if known == description:
                members.append(temp_key)
                break
        else:
            found.append((description, [temp_key]))
    return [
        (serialized_layout_desc(description, serde), members)
        for description, members in found
    ]
