# SPDX-License-Identifier: Apache-2.0
"""A serving engine's side of ``lmcache server``: paged KV and LMCache's own client.

It stores and fetches as vLLM's connector does, without a model.
"""

# Standard
from collections.abc import Sequence
from contextlib import ExitStack
import secrets
import time

# Third Party
import torch
import zmq

# First Party
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transfer_context import create_transfer_context
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

BLOCK_TOKENS = 16

_ALL_LAYERS = slice(None)
_CONNECT_SECONDS = 10.0
_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.02


class Engine:
    """A worker with KV of layers that may differ in width; a context manager.

    Attributes:
        kv: KV by layer, ``[2, blocks, tokens of a block, heads, head_dim]``.
        chunk_tokens: Tokens of the server's chunks.

    Args:
        url: The server's.
        widths: Heads and head_dim of each layer.
        mode: Who copies: ``engine_driven`` or ``lmcache_driven``.
        model: Name of the model.
        windows: Sliding window of each layer in tokens, -1 for none; none at all
            unless given.
        num_tokens: Tokens that the KV has room for.
        device: Where the KV is.

    Raises:
        TimeoutError: If no server answers.
    """

    def __init__(
        self,
        url: str,
        widths: Sequence[tuple[int, int]],
        mode: str = "engine_driven",
        model: str = "model",
        windows: Sequence[int] = (),
        num_tokens: int = 512,
        device: str = "cpu",
    ) -> None:
        self._model = model
        num_blocks = num_tokens // BLOCK_TOKENS
        self.kv = {
            f"layer.{index}": torch.zeros(
                (2, num_blocks, BLOCK_TOKENS, heads, head_dim),
                dtype=torch.bfloat16,
                device=device,
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
        with ExitStack() as cleanup:
            context = cleanup.enter_context(zmq.Context())
            context.setsockopt(zmq.LINGER, 0)
            self._client = RequestClientFactory.create(url, context=context)
            cleanup.callback(self._client.close)
            self.chunk_tokens = self._ask_chunk_tokens(url)
            self._blocks_per_chunk = self.chunk_tokens // BLOCK_TOKENS
            self._transfer = create_transfer_context(
                self.kv,
                instance_id=secrets.randbits(63),
                req_client=self._client,
                mode=mode,
            )
            cleanup.callback(self._transfer.close)
            self._register()
            cleanup.callback(self._unregister)
            self._cleanup = cleanup.pop_all()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def fill(self, seed: int) -> None:
        """Fill the KV with Gaussian numbers."""
        generator = torch.Generator().manual_seed(seed)
        for tensor in self.kv.values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))

    def chunks(self, count: int, layers: slice = _ALL_LAYERS) -> list[torch.Tensor]:
        """Copy the first chunks as ``[2, layers, tokens, heads * head_dim]``."""
        stacked = torch.stack(list(self.kv.values())[layers], dim=1)
        in_order = stacked.flatten(2, 3).flatten(-2)[:, :, : count * self.chunk_tokens]
        return [chunk.clone() for chunk in in_order.split(self.chunk_tokens, dim=2)]

    def store(self, tokens: Sequence[int], tenant: str = "") -> bool:
        """Store the KV of the first blocks.

        Args:
            tokens: Whose KV it is; whole chunks.
            tenant: LMCache's cache salt.

        Returns:
            Whether the server took it.
        """
        key = self._key(tokens, tenant, worker=0)
        future = self._transfer.submit_store(
            key.request_id,
            key,
            self.kv,
            self._blocks(tokens),
            self._transfer.create_recorded_event(),
            self._blocks_per_chunk,
        )
        return bool(future.result(timeout=_TIMEOUT_SECONDS))

    def fetch(self, tokens: Sequence[int], tenant: str = "") -> int:
        """Look tokens up and copy what hits into the first blocks.

        Args:
            tokens: Whose KV is wanted; whole chunks.
            tenant: LMCache's cache salt.

        Returns:
            Chunks that hit.

        Raises:
            RuntimeError: If what hit cannot be retrieved.
            TimeoutError: If the server does not answer in time.
        """
        request = self._key(tokens, tenant, worker=None)
        self._client.lookup(request, 1).result(timeout=_TIMEOUT_SECONDS)
        hits = self._hits(request.request_id)
        if hits:
            known = tokens[: hits * self.chunk_tokens]
            key = self._key(known, tenant, worker=0, request_id=request.request_id)
            future = self._transfer.submit_retrieve(
                key.request_id,
                key,
                self.kv,
                self._blocks(known),
                self._transfer.create_recorded_event(),
                self._blocks_per_chunk,
            )
            if not future.result(timeout=_TIMEOUT_SECONDS):
                raise RuntimeError(f"{hits} chunks hit, but cannot be retrieved")
        self._client.end_session(request.request_id).result(timeout=_TIMEOUT_SECONDS)
        return hits

    def _ask_chunk_tokens(self, url: str) -> int:
        """Ask the server, which shows that there is one."""
        try:
            return self._client.get_chunk_size().result(_CONNECT_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"no LMCache server answers at {url}") from error

    def _register(self) -> None:
        """Tell the server what the KV is."""
        self._transfer.register(
            self.kv,
            self._model,
            1,
            self._blocks_per_chunk,
            _TIMEOUT_SECONDS,
            layout_hints={"kv_layout": "NHD"},
            engine_group_infos=self._infos,
        )

    def _unregister(self) -> None:
        """Finish stores and let the server forget the KV."""
        self._transfer.flush_inflight_stores()
        unregistered = self._transfer.unregister()
        if unregistered is not None:
            unregistered.result(timeout=_TIMEOUT_SECONDS)

    def _hits(self, request_id: str) -> int:
        """Wait for a lookup."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            hits = self._client.query_prefetch_status(request_id).result(
                _TIMEOUT_SECONDS
            )
            if hits is not None:
                return hits
            time.sleep(_POLL_SECONDS)
        raise TimeoutError("timed out waiting for the lookup")

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
            request_id=request_id or secrets.token_hex(8),
            cache_salt=tenant,
            num_kv_readers=1,
        )
