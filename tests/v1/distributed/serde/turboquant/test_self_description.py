# SPDX-License-Identifier: Apache-2.0
"""Frames that nobody vouches for: what is wrong is refused, at little cost.

``b24`` and the like number what tqai's LMCache plugin 0.1.0 does with such bytes: it
restores wrong tensors, or works for 16 seconds on a header of 120 bytes.
"""

# Standard
from dataclasses import replace
import math
import struct
import time
import tracemalloc
import zlib

# Third Party
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantCodec
from lmcache.v1.distributed.serde.turboquant.checksum import checksum
from lmcache.v1.distributed.serde.turboquant.header import Header, header_bytes
from lmcache.v1.distributed.serde.turboquant.record import (
    DTYPE_CODES,
    KV_LAYOUT_CODES,
    PRESET_CODES,
    TensorRecord,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    decode,
    encode,
    gaussian,
    slot_of,
    unskipped,
)

CONFIG = unskipped("turboquant_3bit_nc", 64, skip_first_layers=1)
DATA = TurboQuantCodec(CONFIG).to_bytes(gaussian(2, 4, 20, 2 * 64).half())
HEADER = Header.unpack(DATA)
(RECORD,) = HEADER.records
MOST_EXPANSION = 11
"""float32 from 3 bits and scales: 8192 bytes out of a slot of 774, at most."""

HUGE = 2**32 - 1
OPAQUE = replace(
    RECORD,
    preset="",
    kv_layout="opaque",
    head_dim=1,
    value_head_dim=0,
    quant_start=1,
    quant_end=1,
)


def forge(*records: TensorRecord, total_bytes: int | None = None) -> bytes:
    """A frame whose CRC and checksum are right, whatever its header says."""
    body, head_bytes = DATA[header_bytes(1) :], header_bytes(len(records))
    if total_bytes is None:
        total_bytes = head_bytes + len(body)
    body = body[: max(0, total_bytes - head_bytes)]
    header = Header(
        key_fingerprint=0,
        records=records,
        total_bytes=total_bytes,
        checksum=checksum(torch.tensor(list(body), dtype=torch.uint8)),
    )
    return header.pack() + body


def patched(offset: int, value: bytes) -> bytes:
    """``DATA`` with other bytes in its header, and the CRC of those."""
    end = header_bytes(1) - 4
    content = DATA[:offset] + value + DATA[offset + len(value) : end]
    return content + struct.pack("<I", zlib.crc32(content)) + DATA[end + 4 :]


def huge_opaque(*shape: int) -> bytes:
    """A header of an opaque tensor that is consistent, and 128 bytes long."""
    size = torch.Size(shape).numel()
    record = replace(OPAQUE, dtype=torch.uint8, shape=shape, payload_bytes=size)
    return forge(record, total_bytes=header_bytes(1) + size)[:128]


def huge_split(num_layers: int, num_tokens: int) -> bytes:
    """A header of compressed layers that is consistent, and 128 bytes long."""
    size = num_layers * num_tokens * 2 * 54
    record = replace(
        RECORD,
        shape=(2, num_layers, num_tokens, 128),
        quant_start=0,
        quant_end=num_layers,
        payload_bytes=size,
    )
    return forge(record, total_bytes=-(-(header_bytes(1) + size) // 64) * 64)[:128]


HOSTILE = {
    "b27-opaque": (huge_opaque(2**30, 2**30), "cut short"),
    "b27-tokens": (huge_split(1, 2**30), "cut short"),
    "b27-layers": (huge_split(2**30, 1), "cut short"),
    "b27-width": (forge(replace(RECORD, shape=(2, 4, 20, HUGE))), "divisible"),
    "b27-volume": (forge(replace(RECORD, shape=(HUGE,) * 7)), "no tensor"),
    "b27-nothing": (forge(replace(RECORD, shape=(HUGE,) * 6 + (0,))), "no tensor"),
    "b27-payload": (forge(replace(RECORD, payload_bytes=2**63)), "contradicts"),
    "b27-total": (forge(RECORD, total_bytes=2**63), "not 9223372036854775808"),
    "b27-tensors": (forge(*[RECORD] * 1024), "contradicts"),
    "b27-empties": (
        forge(
            *[replace(OPAQUE, shape=(HUGE, 0), payload_bytes=0)] * 1024,
            total_bytes=header_bytes(1024),
        ),
        "holds 1024 tensors, expected 1",
    ),
    "no-tensor": (forge(total_bytes=64), "holds 0 tensors, expected 1"),
    "b24-magic": (patched(0, b"TQ01"), "not a framed TurboQuant payload"),
    "b24-version": (patched(8, b"\x02"), "version 2"),
    "b26-preset": (forge(replace(RECORD, preset="turboquant_k8v4")), "contradicts"),
    "b26-uint8": (forge(replace(RECORD, dtype=torch.uint8)), "contradicts"),
    "b26-no-preset": (forge(replace(RECORD, preset="")), "Unsupported"),
    "b26-opaque": (forge(replace(OPAQUE, preset=RECORD.preset)), "contradicts"),
    "b26-layout": (forge(replace(RECORD, kv_layout="fused")), "kv_layout 'fused'"),
    "b26-latent": (forge(replace(RECORD, kv_layout="latent")), "kv_layout 'latent'"),
    "b26-head-dim": (forge(replace(RECORD, head_dim=0)), "head_dim"),
    "b26-wide-head": (forge(replace(RECORD, head_dim=1032)), "up to 1024"),
    "b26-value": (forge(replace(RECORD, value_head_dim=128)), "contradicts"),
    "b26-start": (forge(replace(RECORD, quant_start=5)), "contradicts"),
    "b26-end": (forge(replace(RECORD, quant_end=5)), "contradicts"),
    "b26-code": (patched(40, b"\x63"), "unknown code 99 of preset"),
    "dimensions": (patched(43, b"\x09"), "9 dimensions"),
    "reserved": (patched(14, b"\x01"), "reserved bytes are not zero"),
    "unused-size": (patched(44 + 4 * 6, b"\x01"), "reserved bytes are not zero"),
    "rope-tiny": (patched(72, b"\x01"), "rope_theta must be 0 or a number from 1"),
    "rope-nan": (patched(74, b"\xc0\x7f"), "rope_theta must be 0 or a number from 1"),
    "rope-minus": (patched(75, b"\x80"), "reserved bytes are not zero"),
    "rope-unused": (forge(replace(RECORD, rope_theta=1e4)), "contradicts"),
    "side-table": (patched(88, b"\x01"), "contradicts"),
}


@pytest.mark.parametrize(("data", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_false_header_is_refused_at_once(data: bytes, message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match=message):
        TurboQuantCodec.from_bytes(data)
    assert time.perf_counter() - start < 1  # milliseconds, where nothing else runs
    tracemalloc.start()
    with pytest.raises(ValueError, match=message):
        TurboQuantCodec.from_bytes(data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 * 2**20


@pytest.mark.parametrize("shape", [(2, HUGE, 0, 128), (2, 0, HUGE, 128)])
def test_b27_tensors_of_no_elements_cost_nothing(shape: tuple[int, ...]) -> None:
    record = replace(
        RECORD, shape=shape, quant_start=0, quant_end=shape[1], payload_bytes=0
    )
    start = time.perf_counter()
    tensor = TurboQuantCodec.from_bytes(forge(record, total_bytes=header_bytes(1)))
    assert tensor.shape == shape
    assert time.perf_counter() - start < 1


@given(length=st.integers(0, len(DATA) - 1))
@settings(max_examples=100)
def test_b25_every_truncation_is_a_value_error(length: int) -> None:
    with pytest.raises(ValueError, match="TurboQuant"):
        TurboQuantCodec.from_bytes(DATA[:length])


@given(position=st.integers(0, 8 * len(DATA) - 1))
@settings(max_examples=300)
def test_b26_every_flipped_bit_is_a_value_error(position: int) -> None:
    changed = bytearray(DATA)
    changed[position // 8] ^= 1 << position % 8
    with pytest.raises(ValueError, match="TurboQuant"):
        TurboQuantCodec.from_bytes(changed)


SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 20, 64, 128, 576, 2**16, 2**31, HUGE])
RECORDS = st.builds(
    TensorRecord,
    preset=st.sampled_from(list(PRESET_CODES)),
    kv_layout=st.sampled_from(list(KV_LAYOUT_CODES)),
    dtype=st.sampled_from(list(DTYPE_CODES)),
    shape=st.lists(SIZES, max_size=7).map(tuple),
    rope_theta=st.sampled_from([0.0, 1.0, 1e4, -1.0, math.nan, math.inf]),
    head_dim=st.sampled_from([0, 1, 8, 64, 512, 1024, 65_535]),
    value_head_dim=st.sampled_from([0, 1, 8, 64, 512, 1024, 65_535]),
    quant_start=SIZES,
    quant_end=SIZES,
    side_table_bytes=st.sampled_from([0, 256, 512, HUGE]),
    payload_bytes=st.sampled_from([0, 1, 108, 2**32, 2**64 - 1]),
)


@given(record=RECORDS, total_bytes=st.none() | st.just(header_bytes(1)))
@settings(max_examples=500)
def test_any_header_is_refused_or_restores_little(
    record: TensorRecord, total_bytes: int | None
) -> None:
    data = forge(record, total_bytes=total_bytes)
    try:
        tensor = TurboQuantCodec.from_bytes(data)
    except ValueError:
        return
    assert tensor.nbytes <= MOST_EXPANSION * len(data)


CASES: dict[str, tuple[tuple[int, ...], dict]] = {
    "split": ((2, 5, 9, 128), {}),
    "fused": ((1, 5, 9, 256), {}),
    "fused-3d": ((5, 9, 256), {"kv_layout": "fused"}),
    "fused_planes": ((1, 5, 9, 256), {}),
    "diff": ((1, 5, 9, 2 * 96), {"value_head_dim": 32}),
    "latent": ((5, 9, 96), {"value_head_dim": 32}),
    "latent-undivided": ((5, 9, 64), {"kv_layout": "latent"}),
    "components": ((1, 10, 9, 128), {}),
    "opaque": ((3, 7), {}),
}


@pytest.mark.parametrize("preset", PRESET_NAMES)
@pytest.mark.parametrize("skips", [(0, 0), (1, 0), (0, 2), (1, 1), (3, 9)])
@pytest.mark.parametrize("name", CASES)
def test_every_layout_describes_itself(
    preset: str, skips: tuple[int, int], name: str
) -> None:
    shape, rule = CASES[name]
    rule = {"kv_layout": name.split("-")[0]} | rule
    first, last = skips
    config = unskipped(
        preset, 64, skip_first_layers=first, skip_last_layers=last, **rule
    )
    tensor = gaussian(*shape).bfloat16()
    framed = replace(config, framed=True)
    expected = decode(encode(tensor, framed), tensor, framed)
    data = TurboQuantCodec(config).to_bytes(tensor)
    assert torch.equal(TurboQuantCodec.from_bytes(data), expected)


def test_slots_expand_by_less_than_the_bound() -> None:
    for preset in PRESET_NAMES:
        for dim in range(8, 1025, 8):
            slot = slot_of(preset, dim)
            assert 2 * dim * 4 < MOST_EXPANSION * slot.slot_bytes
