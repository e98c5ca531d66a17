# SPDX-License-Identifier: Apache-2.0
"""Engine-driven transfer: what a worker says reaches the server's descriptions."""

# Standard
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

# Third Party
import msgspec
import pytest
import torch

# First Party
from lmcache.v1.distributed.kv_content import OPAQUE, KVContent, TensorFormat
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.layout import layouts_of
from lmcache.v1.multiprocess.custom_types import (
    RegisterEngineDrivenContextPayload,
    RegisterEngineDrivenContextResponse,
)
from lmcache.v1.multiprocess.engine_context import (
    LayoutDescRegistry,
    MPCacheServerContext,
)
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.modules.engine_driven_transfer import (
    EngineDrivenTransferModule,
)
from lmcache.v1.multiprocess.transfer_context import EngineDrivenTransferContext
from lmcache.v1.multiprocess.transport.base import RequestClient
from lmcache.v1.multiprocess.transport.zmq_impl.mq import (
    msgspec_decode,
    msgspec_encode,
)

NUM_LAYERS, NUM_BLOCKS, BLOCK_SIZE, NUM_HEADS, HEAD_SIZE = 2, 6, 4, 2, 64
FUSED_SHAPE = (NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, 2 * HEAD_SIZE)
SPLIT_SHAPE = (2, NUM_BLOCKS, NUM_HEADS, BLOCK_SIZE, HEAD_SIZE)
FUSED = KVContent("fused", NUM_HEADS, HEAD_SIZE, HEAD_SIZE)
SERDE = TurboQuantSerdeConfig.from_kwargs({"framed": True})


class Server:
    """LMCache's server side, which a worker reaches through encoded messages."""

    def __init__(self) -> None:
        self.registry = LayoutDescRegistry()
        context = SimpleNamespace(
            shm_pool_info={"shm_name": "", "pool_size": 0},
            chunk_size=BLOCK_SIZE * 2,
            layout_desc_registry=self.registry,
            storage_manager=MagicMock(),
            get_read_owners=MagicMock(),
        )
        self.module = EngineDrivenTransferModule(cast(MPCacheServerContext, context))

    def register_kv_cache_engine_driven_context(
        self, payload: RegisterEngineDrivenContextPayload
    ) -> MagicMock:
        """Send a registration; return the future of its response."""
        kind = RegisterEngineDrivenContextPayload
        received = msgspec_decode(msgspec_encode(payload, kind), kind)
        future = MagicMock()
        future.result.return_value = (
            self.module.register_kv_cache_engine_driven_context(received)
        )
        return future


def registered_format(
    shape: Sequence[int], infos: Sequence[EngineGroupInfo] = ()
) -> tuple[str | None, int]:
    """Register caches; return how the serde reads their objects, and its key width."""
    server = Server()
    worker = EngineDrivenTransferContext(1, cast(RequestClient, server))
    worker.register(
        {f"layer.{at}": torch.zeros(tuple(shape)) for at in range(NUM_LAYERS)},
        model_name="model",
        world_size=1,
        blocks_in_chunk=2,
        mq_timeout=1.0,
        layout_hints={"kv_layout": "HND"},
        engine_group_infos=infos,
    )
    description = server.registry.find("model", 1)
    assert description is not None
    (layout,) = layouts_of(description, SERDE)
    return layout.geometry.kv_layout, layout.geometry.key_dim


def infos_of(content: KVContent | None, **settings: object) -> list[EngineGroupInfo]:
    """The only group, of that content."""
    layers = tuple(range(NUM_LAYERS))
    return [EngineGroupInfo(0, layers, content=content, **settings)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape, infos, expected",
    [
        (SPLIT_SHAPE, [], ("split", HEAD_SIZE)),
        (FUSED_SHAPE, infos_of(FUSED), ("fused", HEAD_SIZE)),
        (FUSED_SHAPE, infos_of(OPAQUE), ("opaque", 1)),
        (FUSED_SHAPE, infos_of(FUSED, recurrent_state=True), ("opaque", 1)),
        (SPLIT_SHAPE, infos_of(None, recurrent_state=True), ("opaque", 1)),
        ((NUM_BLOCKS, BLOCK_SIZE, 576), [], ("opaque", 1)),
    ],
    ids=["split", "fused", "opaque", "recurrent", "recurrent-split", "latent"],
)
def test_the_serde_needs_no_settings(
    shape: tuple[int, ...], infos: list[EngineGroupInfo], expected: tuple[str, int]
) -> None:
    assert registered_format(shape, infos) == expected


def test_fused_caches_of_an_engine_that_says_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="unless the serde setting kv_layout"):
        registered_format(FUSED_SHAPE)


def test_workers_from_before_say_nothing() -> None:
    server = Server()
    payload = RegisterEngineDrivenContextPayload(
        instance_id=1,
        model_name="model",
        world_size=1,
        block_size=BLOCK_SIZE,
        num_layers=NUM_LAYERS,
        hidden_dim_size=128,
        dtype_str="float32",
        use_mla=False,
        tensor_format=TensorFormat("NL_X_TWO_NB_NH_BS_HS", NUM_HEADS, HEAD_SIZE),
    )
    fields = msgspec.to_builtins(payload)
    del fields["tensor_format"]
    old = msgspec.convert(fields, RegisterEngineDrivenContextPayload)
    response = server.register_kv_cache_engine_driven_context(old).result()
    assert isinstance(response, RegisterEngineDrivenContextResponse)
    description = server.registry.find("model", 1)
    assert description is not None and description.tensor_formats is None
