# SPDX-License-Identifier: Apache-2.0
"""Ways in which a payload can differ from what was written."""

# Standard
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
import zlib

# Third Party
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant.checksum import checksum
from lmcache.v1.distributed.serde.turboquant.header import Header, header_bytes
from lmcache.v1.distributed.serde.turboquant.record import (
    DTYPE_CODES,
    KV_LAYOUT_CODES,
    MAX_DIMENSIONS,
    PRESET_CODES,
    TensorRecord,
)
from tests.v1.distributed.serde.turboquant.fuzz.subjects import Subject

Mutation = Callable[[Random, Subject], bytes]

CRC_BYTES = 4


def flipped_bits(random: Random, subject: Subject) -> bytes:
    """One to eight bits flipped anywhere."""
    data = bytearray(subject.own)
    for _ in range(random.randint(1, 8)):
        data[random.randrange(subject.used_bytes)] ^= 1 << random.randrange(8)
    return bytes(data)


def overwritten(random: Random, subject: Subject) -> bytes:
    """A stretch of random or of equal bytes."""
    own, (start, stop) = subject.own, stretch(random, subject)
    length = stop - start
    constant = bytes([random.choice((0, 0xFF, random.randrange(256)))]) * length
    noise = random.choice((constant, random.randbytes(length)))
    return own[:start] + noise + own[stop:]


def truncated(random: Random, subject: Subject) -> bytes:
    """The start only."""
    return subject.own[: random.randrange(len(subject.own))]


def cut(random: Random, subject: Subject) -> bytes:
    """A stretch missing, the end moved up and filled with zeros."""
    own, (start, stop) = subject.own, stretch(random, subject)
    return (own[:start] + own[stop:]).ljust(len(own), b"\0")


def swapped(random: Random, subject: Subject) -> bytes:
    """Two stretches of the same length in each other's place."""
    own, unit = subject.own, random.choice((1, 2, 4, 8, 64, 512))
    places = range(max(2, subject.used_bytes // unit))
    first, second = sorted(random.sample(places, 2))
    a, b = own[first * unit :][:unit], own[second * unit :][:unit]
    between = own[(first + 1) * unit : second * unit]
    return own[: first * unit] + b + between + a + own[(second + 1) * unit :]


def spliced(random: Random, subject: Subject) -> bytes:
    """A stretch of another object's payload, in its place or elsewhere."""
    own, (start, stop) = subject.own, stretch(random, subject)
    source = random.choice((start, random.randrange(subject.used_bytes)))
    piece = subject.other[source : source + stop - start]
    return own[:start] + piece + own[start + len(piece) :]


def foreign(random: Random, subject: Subject) -> bytes:
    """Another object's payload, and perhaps more behind it."""
    return subject.other + random.randbytes(random.choice((0, 1, 4096)))


def other_header(random: Random, subject: Subject) -> bytes:
    """The header of another object's payload, or its first bytes."""
    size = random.choice((8, 32, header_size(subject)))
    return subject.other[:size] + subject.own[size:]


def rewritten_header(random: Random, subject: Subject) -> bytes:
    """Bytes of the header changed, its CRC made right."""
    own, size = bytearray(subject.own), header_size(subject)
    start = random.randrange(size - CRC_BYTES)
    length = min(random.choice((1, 2, 4, 8)), size - CRC_BYTES - start)
    own[start : start + length] = random.choice(
        (bytes(length), b"\xff" * length, random.randbytes(length))
    )
    own[size - CRC_BYTES : size] = zlib.crc32(own[: size - CRC_BYTES]).to_bytes(
        CRC_BYTES, "little"
    )
    return bytes(own)


def rewritten_field(random: Random, subject: Subject) -> bytes:
    """A field of a record with another legal value, the CRC made right."""
    header, size = Header.unpack(subject.own), header_size(subject)
    index = random.randrange(len(header.records))
    records = list(header.records)
    records[index] = with_another_field(random, records[index])
    changed = replace(header, records=tuple(records))
    return changed.pack() + subject.own[size:]


def forged(random: Random, subject: Subject) -> bytes:
    """Payload bytes changed; checksum and CRC made right, as an enemy would."""
    size = header_size(subject)
    body = bytearray(subject.own[size:])
    for _ in range(random.randint(1, 64)):
        position = random.randrange(max(1, subject.used_bytes - size))
        body[position] = random.choice((0, 0xFF, random.getrandbits(8)))
    total = checksum(torch.frombuffer(body, dtype=torch.uint8))
    return replace(Header.unpack(subject.own), checksum=total).pack() + bytes(body)


def longer(random: Random, subject: Subject) -> bytes:
    """More behind the payload, which storage may return."""
    return subject.own + random.randbytes(random.choice((1, 64, 4096)))


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__.replace("_", " "): mutation
    for mutation in (
        flipped_bits,
        overwritten,
        truncated,
        cut,
        swapped,
        spliced,
        foreign,
        other_header,
        rewritten_header,
        rewritten_field,
        forged,
        longer,
    )
}

HARMLESS = (longer,)
"""Mutations that leave the payload itself as it was."""


def header_size(subject: Subject) -> int:
    """Bytes of a subject's header."""
    return header_bytes(len(subject.description.shapes))


def stretch(random: Random, subject: Subject) -> tuple[int, int]:
    """Bounds of a stretch that starts in what is used, short ones more often."""
    start = random.randrange(subject.used_bytes)
    length = random.choice((1, 4, 64, 512, len(subject.own)))
    return start, min(len(subject.own), start + random.randint(1, length))


def with_another_field(random: Random, record: TensorRecord) -> TensorRecord:
    """Change one field of a record to another value that the format has."""
    name = random.choice([field.name for field in fields(record)])
    present = getattr(record, name)
    choices: dict[str, list] = {
        "preset": list(PRESET_CODES),
        "kv_layout": list(KV_LAYOUT_CODES),
        "dtype": list(DTYPE_CODES),
        "shape": [
            present[::-1] if name == "shape" else (),
            (),
            (2**32 - 1,) * MAX_DIMENSIONS,
            tuple(
                random.choices((0, 1, 2, 3, 2**31), k=random.randint(0, MAX_DIMENSIONS))
            ),
        ],
        "rope_theta": [0.0, 1.0, 1e4, -1.0, float("inf")],
        "head_dim": [0, 8, 2**16 - 1, random.getrandbits(16)],
        "value_head_dim": [0, 8, 2**16 - 1, random.getrandbits(16)],
        "payload_bytes": [0, 1, 2**64 - 1, random.getrandbits(64)],
    }
    numbers = [0, 1, 2**32 - 1, random.getrandbits(32)]
    others = [value for value in choices.get(name, numbers) if value != present]
    return replace(record, **{name: random.choice(others)})
