# SPDX-License-Identifier: Apache-2.0
"""A serving engine's side of LMCache: paged KV on the CPU, LMCache's own client."""

# Standard
from collections.abc import Sequence
from types import TracebackType
import itertools
import time

# Third Party
import torch
import zmq

# First Party
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory
from tests.server.lmcache_server import CHUNK_TOKENS
from tests.v1.distributed.serde.turboquant.helpers import gaussian

SECONDS = 60.0
BLOCK_TOKENS = 16
NUM_BLOCKS = 32
BLOCKS_PER_CHUNK = CHUNK_TOKENS // BLOCK_TOKENS

ALL_LAYERS = slice(None)

_instances = itertools.count(1)


class Engine:
    """A worker with KV of layers that may differ in width; a context manager.

    Args:
        url: The server's.
        widths: Heads and head_dim of each layer.
        mode: Who copies: ``engine_driven`` or ``lmcache_driven``.
        model: Name of the model.
        windows: Sliding window of each layer in tokens, -1 for none; none at all
            unless given.
    """

    def __init__(
        self,
        url: str,
        widths: Sequence[tuple[int, int]],
        mode: str = "engine_driven",
        model: str = "model",
        windows: Sequence[int] = (),
    ) -> None:
        self._model = model
        self.kv = {
            f"layer.{index}": torch.zeros(
                (2, NUM_BLOCKS, BLOCK_TOKENS, heads, head_dim), dtype=torch.bfloat16
            )
            for index, (heads, head_dim) in enumerate(widths)
        }
        layers = list(zip(widths, windows or [-1] * len(widths), strict=True))
        groups = list(dict.fromkeys(layers))
        self._infos = [
            EngineGroupInfo(
                engine_group_id=number,
                layer_indices=tuple(i for i, x in enumerate(layers) if x == group),
                tokens_per_block=BLOCK_TOKENS,
                sw_size_tokens=group[1],
            )
            for number, group in enumerate(groups)
        ]
        self._context = zmq.Context()
        self._context.setsockopt(zmq.LINGER, 0)
        self._client = RequestClientFactory.create(url, context=self._context)
        self._transfer = create_transfer_context(
            self.kv, instance_id=next(_instances), req_client=self._client, mode=mode
        )
        self._transfer.register(
            self.kv,
            model,
            1,
            BLOCKS_PER_CHUNK,
            SECONDS,
            layout_hints={"kv_layout": "NHD"},
            engine_group_infos=self._infos,
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transfer.flush_inflight_stores()
        unregistered = self._transfer.unregister()
        if unregistered is not None:
            unregistered.result(timeout=SECONDS)
        self._transfer.close()
        self._client.close()
        self._context.term()

    def fill(self, seed: int) -> None:
        """Fill the KV with Gaussian numbers."""
        for index, tensor in enumerate(self.kv.values()):
            tensor.copy_(gaussian(*tensor.shape, seed=seed + index))

    def chunks(self, count: int, layers: slice = ALL_LAYERS) -> list[torch.Tensor]:
        """The first chunks as ``[2, layers, tokens, heads * head_dim]``."""
        stacked = torch.stack(list(self.kv.values())[layers], dim=1)
        in_order = stacked.flatten(2, 3).flatten(-2)[:, :, : count * CHUNK_TOKENS]
        return [chunk.clone() for chunk in in_order.split(CHUNK_TOKENS, dim=2)]

    def store(self, tokens: Sequence[int], tenant: str = "") -> bool:
        """Store the KV of the first blocks under tokens."""
        key = self._key(tokens, tenant, worker=0)
        future = self._transfer.submit_store(
            key.request_id,
            key,
            self.kv,
            self._blocks(tokens),
            self._transfer.create_recorded_event(),
            BLOCKS_PER_CHUNK,
        )
        return bool(future.result(timeout=SECONDS))

    def fetch(self, tokens: Sequence[int], tenant: str = "") -> int:
        """Look tokens up and copy what hits into the first blocks.

        Returns:
            Chunks that hit.
        """
        request = self._key(tokens, tenant, worker=None)
        self._client.lookup(request, 1).result(timeout=SECONDS)
        hits = self._hits(request.request_id)
        if hits:
            known = tokens[: hits * CHUNK_TOKENS]
            key = self._key(known, tenant, worker=0, request_id=request.request_id)
            future = self._transfer.submit_retrieve(
                key.request_id,
                key,
                self.kv,
                self._blocks(known),
                self._transfer.create_recorded_event(),
                BLOCKS_PER_CHUNK,
            )
            assert future.result(timeout=SECONDS)
        self._client.end_session(request.request_id).result(timeout=SECONDS)
        return hits

    def _hits(self, request_id: str) -> int:
        """Wait for a lookup."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            hits = self._client.query_prefetch_status(request_id).result(SECONDS)
            if hits is not None:
                return hits
            time.sleep(0.02)
        raise AssertionError("timed out waiting for the lookup")

    def _blocks(self, tokens: Sequence[int]) -> list[list[int]]:
        """The first blocks, for each group."""
        return [list(range(len(tokens) // BLOCK_TOKENS)) for _ in self._infos]

    def _key(
        self,
        tokens: Sequence[int],
        tenant: str,
        worker: int | None,
        request_id: str = "",
    ) -> IPCCacheServerKey:
        """Name KV; the tenant is LMCache's cache salt."""
        return IPCCacheServerKey(
            model_name=self._model,
            world_size=1,
            worker_id=worker,
            token_ids=tuple(tokens),
            start=0,
            end=len(tokens),
            request_id=request_id or f"request-{next(_instances)}",
            cache_salt=tenant,
            num_kv_readers=1,
        )
