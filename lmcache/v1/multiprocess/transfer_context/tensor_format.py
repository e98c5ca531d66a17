# SPDX-License-Identifier: Apache-2.0
"""What a worker that copies its own KV can say of the objects it stores."""

# Standard
from collections.abc import Mapping, Sequence

# Third Party
import torch

# First Party
from lmcache.utils import EngineType
from lmcache.v1.distributed.kv_content import OPAQUE, TensorFormat
from lmcache.v1.gpu_connector.utils import (
    LayoutHints,
    get_head_size,
    get_num_heads,
    normalize_kv_and_discover_format,
)
from lmcache.v1.multiprocess.group_view import EngineGroupInfo


def detect_tensor_format(
    kv_caches: Mapping[str, torch.Tensor],
    layout_hints: LayoutHints | None,
    engine_type: EngineType,
    engine_group_infos: Sequence[EngineGroupInfo],
) -> TensorFormat:
    """Detect the format of KV caches that are stored as one tensor.

    Args:
        kv_caches: Registered caches by layer name.
        layout_hints: The engine's hints for the detection.
        engine_type: The engine.
        engine_group_infos: What the engine says of the caches' only group, if
            anything.

    Returns:
        The format.

    Raises:
        ValueError: If the caches match no known format.
    """
    engine_format, caches = normalize_kv_and_discover_format(
        list(kv_caches.values()), engine_type, layout_hints=layout_hints
    )
    content = None
    for info in engine_group_infos:
        is_attention = not (info.recurrent_state or info.extra_object_group_tag)
        content = info.content if is_attention else OPAQUE
    return TensorFormat(
        engine_kv_format=engine_format.name,
        num_heads=get_num_heads(caches, engine_format),
        head_size=get_head_size(caches, engine_format),
        content=content,
    )
