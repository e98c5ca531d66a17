# SPDX-License-Identifier: Apache-2.0
"""Frozen frames of presets that need one stay readable, and are written again."""

# Standard
import struct

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.presets import ALL_PRESETS
from lmcache.v1.distributed.serde.turboquant.standalone import TurboQuantCodec
from tests.v1.distributed.serde.turboquant.golden.calibrated_cases import (
    CASES,
    FOLDER,
    CalibratedCase,
)
from tests.v1.distributed.serde.turboquant.golden.cases import digest


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_frozen_frame_is_written_and_read(case: CalibratedCase) -> None:
    frozen, restored_digest = case.load()
    assert torch.equal(case.encode(), frozen)
    restored = case.decode(frozen)
    assert digest(restored) == restored_digest
    described = TurboQuantCodec.from_bytes(frozen.numpy().tobytes())
    assert described.dtype == restored.dtype
    torch.testing.assert_close(described, restored, rtol=2**-7, atol=2**-7)


def test_every_frozen_frame_belongs_to_a_case() -> None:
    names = {path.stem for path in FOLDER.glob("*.safetensors")}
    assert names == {case.name for case in CASES}
    assert {case.preset for case in CASES} == {
        name for name, preset in ALL_PRESETS.items() if preset.needs_frame
    }


def test_a_frame_byte_by_byte() -> None:
    """One head of 64: where each number of the design document lies."""
    case = next(x for x in CASES if x.preset == "turboquant_k4v3_cc")
    data = case.load()[0].numpy().tobytes()
    record = data[40:100]
    assert record[:4] == bytes([6, 1, 1, 4])
    assert struct.unpack("<7If", record[4:36]) == (2, 1, 64, 64, 0, 0, 0, 0.0)
    statistics, kept, position = 2 * 64 * 2, 64 * 2, 4
    table = statistics + kept + position
    assert struct.unpack("<HHIIIQ", record[36:]) == (
        64,
        64,
        0,
        1,
        table,
        64 * 60 + table,
    )
    payload = data[128:]
    (token,) = struct.unpack_from("<i", payload, statistics + kept)
    assert token == 0
    row = torch.frombuffer(bytearray(payload[statistics:]), dtype=torch.bfloat16)
    assert torch.equal(row[:64], case.tensor()[0, 0, 0].bfloat16())
    norms = [payload[table + 60 * t + 33] for t in range(64)]
    assert norms[0] < 0x80 <= min(norms[1:])
