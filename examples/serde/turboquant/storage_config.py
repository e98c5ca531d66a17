# SPDX-License-Identifier: Apache-2.0
"""How LMCache's storage manager is configured for one L2 adapter."""

# Standard
from argparse import Namespace

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import (
    L2AdapterConfigBase,
    L2AdaptersConfig,
    parse_args_to_l2_adapters_config,
)
from lmcache.v1.distributed.serde import create_serde_processor
from lmcache.v1.platform import current_device_spec

# Room for what the allocator rounds up and keeps apart.
_L1_SPARE_BYTES = 64 << 20


def parse_l2_adapter(spec: str) -> L2AdapterConfigBase:
    """Read an adapter spec with LMCache's own parser.

    Args:
        spec: The JSON that ``lmcache server --l2-adapter`` takes.

    Returns:
        The adapter's configuration; ``serde_config`` is None unless the spec has one.

    Raises:
        ValueError: If LMCache refuses the spec.
    """
    try:
        parsed = parse_args_to_l2_adapters_config(Namespace(l2_adapter=[spec]))
    except ImportError as error:
        # LMCache imports all adapters in search of an unknown type.
        raise ValueError(
            f"--l2-adapter: its type is unknown or misses a package ({error})"
        ) from error
    return parsed.adapters[0]


def serialized_bytes(adapter: L2AdapterConfigBase, layout: MemoryLayoutDesc) -> int:
    """Ask the adapter's serde how large a chunk becomes.

    Args:
        adapter: An adapter's configuration.
        layout: Shape and type of a chunk.

    Returns:
        Bytes of a serialized chunk; 0 without a serde.

    Raises:
        ValueError: If the serde cannot store such a chunk.
    """
    if adapter.serde_config is None:
        return 0
    serde = create_serde_processor(adapter.serde_config)
    try:
        return serde.estimate_serialized_size(layout)
    finally:
        serde.close()


def manager_config(
    adapter: L2AdapterConfigBase, bytes_in_flight: int
) -> StorageManagerConfig:
    """Configure a storage manager whose L1 never has to evict.

    Args:
        adapter: The one L2 adapter.
        bytes_in_flight: What chunks and their serialized form take at once.

    Returns:
        The configuration.
    """
    l1_bytes = 2 * bytes_in_flight + _L1_SPARE_BYTES
    memory = L1MemoryManagerConfig(
        size_in_bytes=l1_bytes,
        use_lazy=current_device_spec.is_pin_supported,
        init_size_in_bytes=l1_bytes,
        # Containers often give shared memory only 64 MB.
        shm_name="",
    )
    return StorageManagerConfig(
        l1_manager_config=L1ManagerConfig(memory_config=memory),
        eviction_config=EvictionConfig(eviction_policy="noop"),
        l2_adapter_config=L2AdaptersConfig(adapters=[adapter]),
    )
