# SPDX-License-Identifier: Apache-2.0
"""``{"type": "turboquant"}`` alone, through LMCache's StorageManager and disk."""

# Standard
from dataclasses import replace
from pathlib import Path

# Third Party
from msgspec import structs
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.kv_content import OPAQUE, KVContent, TensorFormat
from lmcache.v1.distributed.serde.turboquant.self_description import described_layout
from lmcache.v1.distributed.storage_manager import StorageManager
from lmcache.v1.mp_observability.trace.codecs import decode_value, encode_value
from lmcache.v1.multiprocess.custom_types import RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.group_view import EngineGroupInfo
from lmcache.v1.multiprocess.transport.grpc_impl._proto_gen import (
    common_pb2,
    engine_driven_service_pb2,
    p2p_service_pb2,
)
from lmcache.v1.multiprocess.transport.grpc_impl.proto_codec import (
    compile_request_codec_for_types,
)
from lmcache.v1.multiprocess.transport.zmq_impl.mq import (
    msgspec_decode,
    msgspec_encode,
)
from tests.v1.distributed.serde.turboquant.helpers import gaussian, object_key
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    clear,
    files_of,
    prefetch,
    storage_manager,
    stored_count,
    tensor_of,
    wait_until,
    wait_until_idle,
)

SHAPE = torch.Size((1, 6, 16, 512))
FUSED = TensorFormat("NL_X_NB_NH_BS_CS", 4, 128, KVContent("fused", 4, 64, 64))
PLANES = TensorFormat("NL_X_NB_NH_BS_CS", 2, 256, KVContent("fused_planes", 4, 64, 64))
STATE = TensorFormat("NL_X_NB_NH_BS_CS", 1, 512, OPAQUE)
MODELS = {"attention": FUSED, "planes": PLANES, "recurrent": STATE}
KV_LAYOUTS = {"attention": "fused", "planes": "fused_planes", "recurrent": "opaque"}
TENSOR = gaussian(*SHAPE).bfloat16()


def description_of(tensor_format: TensorFormat | None) -> MemoryLayoutDesc:
    """Describe an object of one tensor."""
    formats = None if tensor_format is None else (tensor_format,)
    return MemoryLayoutDesc([SHAPE], [torch.bfloat16], formats)


def store_one(
    manager: StorageManager, directory: Path, key: ObjectKey, form: TensorFormat | None
) -> None:
    """Store ``TENSOR`` as an object of that format."""
    wanted = stored_count(manager, directory)() + 1
    ((_, memory),) = manager.reserve_write([key], description_of(form)).items()
    tensor_of(memory).copy_(TENSOR)
    manager.finish_write([key])
    wait_until(lambda: len(files_of(directory)) >= wanted, "the store")
    wait_until_idle(manager)


def load_one(
    manager: StorageManager, key: ObjectKey, form: TensorFormat | None
) -> torch.Tensor | None:
    """Load an object from L2 as one of that format; None where it is a miss."""
    clear(manager)
    group = GroupedObjectKeys(
        [key], key.object_group_id, layout_desc=description_of(form)
    )
    if not prefetch(manager, PrefetchTaskSpec([group], fetching_policy="full")).test(0):
        return None
    with manager.read_prefetched_results([key]) as memories:
        (restored,) = [tensor_of(memory).clone() for memory in memories or []]
    manager.finish_read_prefetched([key])
    return restored


def test_models_of_one_shape_are_told_apart_also_after_a_restart(
    tmp_path: Path,
) -> None:
    keys = {model: object_key(at, model) for at, model in enumerate(MODELS)}
    with storage_manager(ADAPTERS["fs"](tmp_path)) as manager:
        for model, key in keys.items():
            store_one(manager, tmp_path, key, MODELS[model])
    sizes = {}
    for path in files_of(tmp_path).values():
        layout = described_layout(memoryview(path.read_bytes())).layouts[0]
        sizes[layout.geometry.kv_layout] = layout.geometry.key_dim
    assert sizes == {"fused": 64, "fused_planes": 64, "opaque": 1}
    with storage_manager(ADAPTERS["fs"](tmp_path)) as manager:
        restored = {
            model: load_one(manager, key, MODELS[model]) for model, key in keys.items()
        }
    assert restored["recurrent"] is not None
    assert torch.equal(restored["recurrent"], TENSOR)
    first, second = restored["attention"], restored["planes"]
    assert first is not None and second is not None
    assert not torch.equal(first, second)
    for lossy in (first, second):
        assert 0 < (lossy - TENSOR).float().square().mean() < 0.01


def test_attention_and_state_of_one_shape_share_a_task(tmp_path: Path) -> None:
    attention, state = object_key(0), replace(object_key(1), object_group_id=1)
    formats = {attention: FUSED, state: STATE}
    with storage_manager(ADAPTERS["fs"](tmp_path)) as manager:
        for key, form in formats.items():
            memory = manager.reserve_write([key], description_of(form))[key]
            tensor_of(memory).copy_(TENSOR)
        manager.finish_write(list(formats))
        wait_until(lambda: len(files_of(tmp_path)) == 2, "the store")
        wait_until_idle(manager)
        restored = {key: load_one(manager, key, form) for key, form in formats.items()}
    assert restored[attention] is not None and restored[state] is not None
    assert torch.equal(restored[state], TENSOR)
    assert not torch.equal(restored[attention], TENSOR)


@pytest.mark.parametrize("other", [PLANES, STATE], ids=["planes", "recurrent"])
def test_a_payload_of_another_meaning_is_a_miss(
    tmp_path: Path, other: TensorFormat
) -> None:
    key = object_key()
    with storage_manager(ADAPTERS["fs"](tmp_path)) as manager:
        store_one(manager, tmp_path, key, FUSED)
        assert load_one(manager, key, other) is None
        assert load_one(manager, key, None) is None
        assert load_one(manager, key, FUSED) is not None


def test_kv_layout_has_the_last_word(tmp_path: Path) -> None:
    key = object_key()
    with storage_manager(ADAPTERS["fs"](tmp_path), kv_layout="opaque") as manager:
        store_one(manager, tmp_path, key, FUSED)
        restored = load_one(manager, key, FUSED)
    assert restored is not None and torch.equal(restored, TENSOR)


def test_l1_forgets_what_the_last_object_at_a_place_was(tmp_path: Path) -> None:
    with storage_manager(ADAPTERS["fs"](tmp_path)) as manager:
        for form in (FUSED, None):
            key = object_key(0, "fused" if form else "unsaid")
            ((_, memory),) = manager.reserve_write([key], description_of(form)).items()
            assert memory.get_tensor_formats() == (form and (form,))
            manager.finish_write([key])
            clear(manager)


def test_formats_travel_between_servers() -> None:
    descriptions = {0: description_of(FUSED), 1: description_of(None)}
    kind = dict[int, MemoryLayoutDesc]
    assert msgspec_decode(msgspec_encode(descriptions, kind), kind) == descriptions
    groups = [EngineGroupInfo(0, (0,), content=OPAQUE), EngineGroupInfo(1, (1,))]
    encoded = msgspec_encode(groups, list[EngineGroupInfo])
    assert msgspec_decode(encoded, list[EngineGroupInfo]) == groups
    for description in descriptions.values():
        assert decode_value(encode_value(description)) == description


def test_traces_from_before_have_no_formats() -> None:
    encoded = encode_value(description_of(FUSED))
    del encoded["v"]["tensor_formats"]
    assert decode_value(encoded) == description_of(None)


def test_grpc_leaves_out_what_its_messages_lack() -> None:
    encode, decode = compile_request_codec_for_types(
        p2p_service_pb2.MemoryLayoutDesc, (MemoryLayoutDesc,)
    )
    assert decode(encode((description_of(FUSED),), {})) == (description_of(None),)
    encode, decode = compile_request_codec_for_types(
        common_pb2.EngineGroupInfo, (EngineGroupInfo,)
    )
    group = EngineGroupInfo(1, (2, 3), content=OPAQUE)
    assert decode(encode((group,), {})) == (EngineGroupInfo(1, (2, 3)),)
    encode, decode = compile_request_codec_for_types(
        engine_driven_service_pb2.RegisterKvCacheEngineDrivenContextRequest,
        (RegisterEngineDrivenContextPayload,),
    )
    payload = RegisterEngineDrivenContextPayload(
        1, "model", 1, 16, 2, 512, "half", True
    )
    said = structs.replace(payload, tensor_format=FUSED)
    assert decode(encode((said,), {})) == (payload,)


def test_there_is_a_format_for_each_tensor() -> None:
    with pytest.raises(ValueError, match="expected 1 tensor_formats, got 2"):
        MemoryLayoutDesc([SHAPE], [torch.bfloat16], (FUSED, FUSED))
