# SPDX-License-Identifier: Apache-2.0
"""Engines' KV caches of every format, and what LMCache's grouping makes of them."""

# Standard
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

# Third Party
import torch

# First Party
from lmcache.lmcache_native import EngineKVFormat
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.gpu_connector.kv_format.specs import get_spec_class
from lmcache.v1.kv_layer_groups import KVLayerGroupsManager
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import get_layout_desc
from lmcache.v1.platform.base.cache_context import BaseCacheContext

NUM_BLOCKS, BLOCK_SIZE, NUM_LAYERS, CHUNK = 3, 16, 2, 32
NUM_HEADS, HEAD_SIZE = 4, 64

DEVICE = "meta"
"""Tensors that have a device which is not the CPU, and no data."""


def caches_of(
    engine_format: EngineKVFormat,
    num_heads: int = NUM_HEADS,
    head_size: int = HEAD_SIZE,
    dtype: torch.dtype = torch.bfloat16,
):
    """What an engine registers in a format, as LMCache normalises it."""
    spec = get_spec_class(engine_format)
    names = engine_format.name.rsplit("_X_", 1)[-1].split("_")
    sizes = {"NB": NUM_BLOCKS, "NL": NUM_LAYERS, "TWO": 2, "ONE": 1}
    sizes |= {"BS": BLOCK_SIZE, "BSV": BLOCK_SIZE, "BSS": head_size}
    sizes |= {"NH": num_heads, "HS": head_size, "CS": head_size}
    sizes["NBBS"] = NUM_BLOCKS * BLOCK_SIZE

    def tensor() -> torch.Tensor:
        shape = [sizes[name] for name in names]
        return torch.empty(shape, dtype=dtype, device=DEVICE)

    if spec.is_cross_layer:
        return tensor()
    if spec.is_kv_list:
        return [[tensor() for _ in range(NUM_LAYERS)] for _ in range(2)]
    if spec.is_kv_second_tuple:
        return [(tensor(), tensor()) for _ in range(NUM_LAYERS)]
    return [tensor() for _ in range(NUM_LAYERS)]


def describe_caches(
    caches: object,
    formats: Sequence[EngineKVFormat],
    infos: Sequence[EngineGroupInfo] = (),
    *,
    separate: bool = False,
) -> list[MemoryLayoutDesc]:
    """Describe the objects that LMCache stores these caches in, one a group."""
    manager = KVLayerGroupsManager(
        caches,  # type: ignore[arg-type]
        engine_kv_formats=formats,
        engine_group_infos=infos,
        lmcache_tokens_per_chunk=CHUNK,
        separate_object_groups=separate,
    )

    def shape_and_dtype(num_tokens: int, index: int) -> tuple[torch.Size, torch.dtype]:
        group = manager.kernel_groups[index]
        sizes = (group.shape_desc.kv_size, group.num_layers, num_tokens)
        return torch.Size((*sizes, group.hidden_dim_size)), group.dtype

    context = SimpleNamespace(
        kv_layer_groups_manager=manager, get_kernel_group_shape_dtype=shape_and_dtype
    )
    return [
        get_layout_desc(cast(BaseCacheContext, context), CHUNK, index)
        for index in range(manager.num_object_groups)
    ]
