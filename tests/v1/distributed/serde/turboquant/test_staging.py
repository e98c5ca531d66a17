# SPDX-License-Identifier: Apache-2.0
"""Host tensors staged through little memory give the bytes of whole ones.

Without a GPU the stages run on the CPU, where queues are empty at once.
"""

# Standard
from collections.abc import Iterator
from types import SimpleNamespace

# Third Party
import pytest
import torch

# First Party
from lmcache import torch_dev, torch_device_type
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.accelerators import MemoryShortage
from lmcache.v1.distributed.serde.turboquant.chunks import chunks_of
from lmcache.v1.distributed.serde.turboquant.container import Container, container_of
from lmcache.v1.distributed.serde.turboquant.effort import EFFORTS, PLAIN, Effort
from lmcache.v1.distributed.serde.turboquant.payload import read_payload, write_payload
from lmcache.v1.distributed.serde.turboquant.stager import Stager
from lmcache.v1.distributed.serde.turboquant.staging_decode import Decoding
from lmcache.v1.distributed.serde.turboquant.staging_encode import Encoding
from lmcache.v1.distributed.serde.turboquant.staging_plan import plan_of
from lmcache.v1.distributed.serde.turboquant.workspace import Workspace
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    gaussian,
    unskipped,
)

DEVICE = torch.device(torch_device_type if torch_dev.is_available() else "cpu", 0)
KIB = 1 << 10

TENSORS = {
    "split": (2, 9, 40, 2 * 64),
    "fused": (1, 9, 40, 2 * 2 * 64),
    "fused_planes": (9, 40, 2 * 2 * 64),
    "diff": (1, 9, 40, 2 * (64 + 32)),
    "latent": (1, 9, 40, 64 + 32),
    "components": (1, 18, 40, 2 * 64),
    "opaque": (3, 5, 7, 1111),
}
TWO_WIDTHS = ("diff", "latent")
FINGERPRINT = 0x1234


class ReachingWorkspace(Workspace):
    """A workspace whose device reaches all host memory, which lies in two regions."""

    def seams(self, tensor: torch.Tensor) -> list[int]:
        return [tensor.data_ptr() + tensor.nbytes // 2]


@pytest.fixture(params=[True, False], ids=["direct", "ring"])
def workspace_type(request: pytest.FixtureRequest) -> type[Workspace]:
    """Workspaces that copy host memory directly, and through a ring."""
    return ReachingWorkspace if request.param and DEVICE.type == "cpu" else Workspace


def config_of(
    kv_layout: str, preset: str, framed: bool, **settings: object
) -> TurboQuantSerdeConfig:
    """Configuration of a tensor of ``TENSORS``; some layers are raw."""
    width = {"value_head_dim": 32} if kv_layout in TWO_WIDTHS else {}
    layers = {"skip_first_layers": 3, "skip_last_layers": 2}
    settings = layers | width | settings
    return unskipped(preset, 64, kv_layout=kv_layout, framed=framed, **settings)


def container_for(
    tensors: list[torch.Tensor], config: TurboQuantSerdeConfig
) -> Container:
    """What tensors become."""
    shapes, dtypes = [t.shape for t in tensors], [t.dtype for t in tensors]
    return container_of(MemoryLayoutDesc(shapes, dtypes), config)


def encoded_whole(
    tensors: list[torch.Tensor],
    container: Container,
    on: torch.device = DEVICE,
    effort: Effort = PLAIN,
) -> torch.Tensor:
    """The bytes that tensors become as a whole on a device, on the CPU."""
    buffer = torch.full((container.total_bytes,), 0xA5, dtype=torch.uint8, device=on)
    for tensor, layout, span in zip(
        tensors, container.layouts, container.spans, strict=True
    ):
        write_payload(tensor.to(on), buffer[span], layout, effort=effort)
    container.seal(buffer, FINGERPRINT)
    return buffer.cpu()


def decoded_whole(
    buffer: torch.Tensor, tensors: list[torch.Tensor], container: Container
) -> Iterator[torch.Tensor]:
    """The tensors that a buffer becomes as a whole on the device, on the CPU."""
    for like, layout, span in zip(
        tensors, container.layouts, container.spans, strict=True
    ):
        tensor = torch.empty_like(like, device=DEVICE)
        read_payload(buffer.to(DEVICE)[span], tensor, layout)
        yield tensor.cpu()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes."""
    return tensor.view(-1).view(torch.uint8)


def check_both_ways(
    workspace: Workspace, tensors: list[torch.Tensor], config: TurboQuantSerdeConfig
) -> None:
    """Stage tensors to bytes and back, and compare with whole ones."""
    container = container_for(tensors, config)
    effort = EFFORTS[config.effort]
    expected = encoded_whole(tensors, container, effort=effort)
    buffer = torch.full((container.total_bytes,), 0x5A, dtype=torch.uint8)
    sources = [as_bytes(tensor) for tensor in tensors]
    encoding = Encoding(workspace, container, effort)
    for _ in range(3):
        buffer.fill_(0x5A)
        encoding.run(sources, buffer, FINGERPRINT)
        assert torch.equal(buffer, expected)
    decoding = Decoding(workspace, container)
    whole = list(decoded_whole(buffer, tensors, container))
    for _ in range(3):
        restored = [torch.empty_like(tensor) for tensor in tensors]
        targets = [as_bytes(tensor) for tensor in restored]
        decoding.run(buffer, targets, FINGERPRINT)
        for ours, exact in zip(restored, whole, strict=True):
            assert torch.equal(as_bytes(ours), as_bytes(exact))


@pytest.mark.parametrize("memory_kib", [160, 1024])
@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("kv_layout", TENSORS)
def test_staged_bytes_are_those_of_the_whole(
    kv_layout: str, framed: bool, memory_kib: int, workspace_type: type[Workspace]
) -> None:
    dtype = torch.int8 if kv_layout == "opaque" else torch.bfloat16
    tensor = (gaussian(*TENSORS[kv_layout], seed=1) * 9).to(dtype)
    config = config_of(kv_layout, "turboquant_4bit_nc", framed)
    workspace = workspace_type(DEVICE, memory_kib * KIB)
    check_both_ways(workspace, [tensor], config)


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_staged_bytes_are_searched_too(
    preset: str, workspace_type: type[Workspace]
) -> None:
    tensor = gaussian(*TENSORS["split"], seed=1).bfloat16()
    config = config_of("split", preset, framed=True, effort="best")
    check_both_ways(workspace_type(DEVICE, 160 * KIB), [tensor], config)
    container = container_for([tensor], config)
    searched = encoded_whole([tensor], container, effort=EFFORTS["best"])
    assert not torch.equal(searched, encoded_whole([tensor], container))


@pytest.mark.parametrize("tokens", [1, 15, 33])
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_odd_sizes_keep_the_checksum(
    preset: str, tokens: int, workspace_type: type[Workspace]
) -> None:
    """Slots of 2 modulo 4 bytes end within a word of the checksum."""
    tensor = gaussian(2, 7, tokens, 3 * 64).half()
    config = config_of("split", preset, framed=True, skip_first_layers=0)
    check_both_ways(workspace_type(DEVICE, 64 * KIB), [tensor], config)


def test_tensors_of_an_object_are_staged_in_turn(
    workspace_type: type[Workspace],
) -> None:
    tensors = [
        gaussian(*TENSORS["split"]).half(),
        torch.arange(1001, dtype=torch.int16).to(torch.uint8),
        torch.empty(2, 9, 0, 128, dtype=torch.float32),
        gaussian(*TENSORS["fused"], seed=2),
    ]
    groups = [{"kv_layout": x} for x in ("split", "opaque", "split", "fused")]
    config = TurboQuantSerdeConfig.from_kwargs(
        {"framed": True, "head_dim": 64, "skip_last_layers": 1, "groups": groups}
    )
    check_both_ways(workspace_type(DEVICE, 400 * KIB), tensors, config)


def test_an_object_without_elements_is_a_frame(
    workspace_type: type[Workspace],
) -> None:
    tensor = torch.empty(2, 4, 0, 128, dtype=torch.float16)
    config = config_of("split", "turboquant_4bit_nc", framed=True)
    check_both_ways(workspace_type(DEVICE, 64 * KIB), [tensor], config)


@pytest.mark.parametrize("memory_kib", [160, 1024])
@pytest.mark.parametrize("where", [70, 5000, -5])
def test_a_changed_byte_is_found_before_a_tensor_is_touched(
    where: int, memory_kib: int, workspace_type: type[Workspace]
) -> None:
    tensor = gaussian(*TENSORS["split"]).half()
    container = container_for(
        [tensor], config_of("split", "turboquant_k8v4", framed=True)
    )
    buffer = encoded_whole([tensor], container)
    buffer[where] ^= 0x10
    untouched = torch.full_like(tensor, 7)
    workspace = workspace_type(DEVICE, memory_kib * KIB)
    operation = Decoding(workspace, container)
    for _ in range(3):
        with pytest.raises(ValueError, match="corrupt|checksum"):
            operation.run(buffer, [as_bytes(untouched)], FINGERPRINT)
        assert torch.equal(untouched, torch.full_like(tensor, 7))


def test_a_layer_that_does_not_fit_is_a_shortage() -> None:
    tensor = gaussian(*TENSORS["split"]).half()
    container = container_for([tensor], config_of("split", "turboquant_k8v4", True))
    with pytest.raises(MemoryShortage, match="got 8192: raise staging_mib"):
        Encoding(Workspace(DEVICE, 8 * KIB), container, PLAIN)


@pytest.mark.parametrize("kv_layout", TENSORS)
def test_chunks_cover_every_byte_once(kv_layout: str) -> None:
    tensor = torch.empty(TENSORS[kv_layout], dtype=torch.float16)
    config = config_of(kv_layout, "turboquant_3bit_nc", framed=True)
    (layout,) = container_for([tensor], config).layouts
    chunks = chunks_of(layout, 40 * KIB)
    assert len(chunks) > 3
    for spans, total in (
        ([s for c in chunks for s in c.tensor_spans], tensor.nbytes),
        ([s for c in chunks for s in c.payload_spans], layout.payload_bytes),
    ):
        ordered = sorted((span.start, span.stop) for span in spans)
        assert [start for start, _ in ordered] == [0] + [s for _, s in ordered[:-1]]
        assert ordered[-1][1] == total
    assert all(c.layout.payload_bytes == c.payload_bytes for c in chunks)


def test_a_plan_leaves_room_for_four_chunks() -> None:
    tensor = torch.empty(2, 80, 256, 1024, dtype=torch.bfloat16, device="meta")
    container = container_for([tensor], unskipped("turboquant_k8v4", framed=True))
    plan = plan_of(container, 64 << 20)
    assert 8 <= len(plan.steps) <= 10
    assert 4 * (plan.tensor_bytes + plan.payload_bytes) <= 64 << 20


def test_an_error_leaves_no_copy_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, waited = Workspace(DEVICE, 64 * KIB), []
    for name in ("inward", "outward"):
        stream = SimpleNamespace(synchronize=lambda name=name: waited.append(name))
        monkeypatch.setattr(workspace, name, stream)
    with workspace.settled_on_error():
        pass
    assert waited == []
    with pytest.raises(KeyError), workspace.settled_on_error():
        raise KeyError
    assert waited == ["inward", "outward"]


def test_a_stager_prepares_once_and_forgets_the_oldest() -> None:
    stager = Stager(DEVICE, 400 * KIB, PLAIN)
    config = config_of("split", "turboquant_4bit_nc", framed=True)
    for tokens in [*range(1, 20), 1]:
        tensor = gaussian(2, 9, tokens, 2 * 64).half()
        container = container_for([tensor], config)
        buffer = torch.zeros(container.total_bytes, dtype=torch.uint8)
        restored = torch.full_like(tensor, torch.nan)
        stager.encode(container, [as_bytes(tensor)], buffer, FINGERPRINT)
        stager.decode(container, buffer, [as_bytes(restored)], FINGERPRINT)
        assert torch.equal(buffer, encoded_whole([tensor], container))
        (whole,) = decoded_whole(buffer, [tensor], container)
        assert torch.equal(restored, whole)
