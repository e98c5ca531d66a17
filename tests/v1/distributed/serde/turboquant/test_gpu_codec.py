# SPDX-License-Identifier: Apache-2.0
"""GPU kernels behind the public classes: what one device writes, any reads."""

# Standard
from dataclasses import replace

# Third Party
import pytest
import torch

# First Party
from tests.v1.distributed.serde.turboquant.gpu_helpers import DEVICE, needs_gpu

# isort: split

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import TurboQuantSerdeConfig, reference
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.kernels import gpu
from tests.v1.distributed.serde.turboquant.closeness import (
    assert_payloads_alike,
    assert_restored_alike,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    KV_DTYPES,
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    unskipped,
)

pytestmark = needs_gpu

SHAPES = {
    "split": (2, 4, 21, 3 * 128),
    "fused": (1, 4, 21, 3 * 2 * 128),
    "fused_planes": (1, 4, 21, 3 * 2 * 128),
    "components": (1, 2 * 4, 21, 3 * 128),
}


def payload_of(
    stored: torch.Tensor, tensor: torch.Tensor, config: TurboQuantSerdeConfig
) -> torch.Tensor:
    """The payload of the only tensor, within a frame or bare, on the CPU."""
    description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
    return stored.cpu()[container_of(description, config).spans[0]]


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("kv_layout", SHAPES)
@pytest.mark.parametrize("dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_devices_read_each_others_payloads(
    preset: str, dtype: torch.dtype, kv_layout: str, framed: bool
) -> None:
    config = unskipped(preset, kv_layout=kv_layout, framed=framed, skip_first_layers=1)
    tensor = gaussian(*SHAPES[kv_layout], seed=3).to(dtype)
    by_cpu, by_gpu = encode(tensor, config), encode(tensor.to(DEVICE), config)
    payload = payload_of(by_gpu, tensor, config)
    specified = payload_of(by_cpu, tensor, config)
    bare = replace(config, framed=False, block_size=1 if framed else config.block_size)
    assert_payloads_alike(payload, specified, tensor, bare)
    for stored in (by_cpu, by_gpu):
        restored = decode(stored.to(DEVICE), tensor, config).cpu()
        expected = decode(stored.cpu(), tensor, config)
        assert_restored_alike(restored, expected, 128)


def test_a_gpu_verifies_what_it_decodes() -> None:
    config = unskipped("turboquant_4bit_nc", framed=True)
    tensor = gaussian(*SHAPES["split"]).half().to(DEVICE)
    frame = encode(tensor, config)
    frame[5000] ^= 1
    for device in (DEVICE, torch.device("cpu")):
        with pytest.raises(ValueError, match="checksum"):
            decode(frame.to(device), tensor, config)


@pytest.mark.parametrize("kv_layout", SHAPES)
def test_kernels_do_the_work_where_they_can(
    kv_layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for backend in (gpu, reference):
        for name in ("encode_layers", "decode_layers"):
            monkeypatch.setattr(
                backend, name, lambda *_, backend=backend: calls.append(backend)
            )
    config = unskipped("turboquant_4bit_nc", kv_layout=kv_layout)
    tensor = gaussian(*SHAPES[kv_layout]).half().to(DEVICE)
    decode(encode(tensor, config), tensor, config)
    expected = reference if kv_layout == "fused_planes" else gpu
    assert calls == [expected, expected]


def test_a_caller_on_another_stream_sees_finished_work() -> None:
    config = unskipped("turboquant_3bit_nc")
    tensor = gaussian(2, 8, 512, 8 * 128).half().to(DEVICE)
    expected = encode(tensor, config).cpu()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        payload = encode(tensor, config)
    assert torch.equal(payload.cpu(), expected)
