# SPDX-License-Identifier: Apache-2.0
"""What is not the encrypted payload of an object is refused, and touches nothing."""

# Standard
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde import SerdeConfig
from lmcache.v1.distributed.serde.aesgcm import create_aesgcm_codec
from lmcache.v1.distributed.serde.factory import create_serde_processor
from lmcache.v1.distributed.serde.turboquant.encrypted import MAX_PLAINTEXT_BYTES
from tests.v1.distributed.serde.turboquant.encryption import (
    CONFIG,
    OVERHEAD,
    TENSOR,
    codec_of,
    decrypt,
    encrypt,
    memory_of,
)
from tests.v1.distributed.serde.turboquant.helpers import KEY, encode, object_key
from tests.v1.distributed.serde.turboquant.storage import describe


def changed(payload: torch.Tensor, at: int) -> torch.Tensor:
    """A copy with one bit flipped."""
    copy = payload.clone()
    copy[at] ^= 1
    return copy


@pytest.mark.parametrize("at", [0, 1, 12, 13, 500, -OVERHEAD, -1])
def test_a_changed_byte_is_refused(key_file: Path, at: int) -> None:
    serializer, deserializer = codec_of(key_file)
    payload = changed(encrypt(serializer), at)
    with pytest.raises(ValueError, match="does not decrypt|malformed frame"):
        decrypt(deserializer, payload)


def plain_payload(key_file: Path) -> torch.Tensor:
    """What was stored before encryption was switched on."""
    return encode(TENSOR, CONFIG)


def uncompressed_payload(key_file: Path) -> torch.Tensor:
    """What LMCache's ``aesgcm`` alone stored."""
    cipher, _ = create_aesgcm_codec({"master_key_path": str(key_file)})
    size = cipher.estimate_serialized_size(describe(TENSOR))
    buffer = memory_of(torch.zeros(size, dtype=torch.uint8))
    cipher.serialize(memory_of(TENSOR), buffer, KEY)
    return buffer.raw_data


def foreign_plaintext(key_file: Path) -> torch.Tensor:
    """Zero bytes of the right number, encrypted with the right key."""
    serializer, _ = codec_of(key_file)
    cipher, _ = create_aesgcm_codec({"master_key_path": str(key_file)})
    size = serializer.estimate_serialized_size(describe(TENSOR))
    buffer = memory_of(torch.zeros(size, dtype=torch.uint8))
    zeros = torch.zeros(size - OVERHEAD, dtype=torch.uint8)
    cipher.serialize(memory_of(zeros), buffer, KEY)
    return buffer.raw_data


@pytest.mark.parametrize(
    "foreign", [plain_payload, uncompressed_payload, foreign_plaintext]
)
def test_payloads_of_other_serdes_are_refused(
    key_file: Path, foreign: Callable[[Path], torch.Tensor]
) -> None:
    _, deserializer = codec_of(key_file)
    with pytest.raises(ValueError, match="malformed|does not decrypt|not a framed"):
        decrypt(deserializer, foreign(key_file))


def test_a_short_payload_is_refused(key_file: Path) -> None:
    serializer, deserializer = codec_of(key_file)
    with pytest.raises(ValueError, match="malformed frame"):
        decrypt(deserializer, encrypt(serializer)[:-1])


def test_other_keys_are_refused(key_file: Path, tmp_path: Path) -> None:
    serializer, deserializer = codec_of(key_file)
    payload = encrypt(serializer)
    other_key = tmp_path / "other.key"
    other_key.write_bytes(b"o" * 32)
    _, other = codec_of(other_key)
    with pytest.raises(ValueError, match="does not decrypt"):
        decrypt(other, payload)
    with pytest.raises(ValueError, match="does not decrypt"):
        decrypt(deserializer, payload, replace(KEY, cache_salt="tenant"))
    with pytest.raises(ValueError, match="belongs to another key"):
        decrypt(deserializer, payload, object_key(1))


def test_another_configuration_is_refused(key_file: Path) -> None:
    serializer, _ = codec_of(key_file)
    config = replace(CONFIG, preset="turboquant_k8v4")
    _, deserializer = codec_of(key_file, config)
    with pytest.raises(ValueError, match="malformed frame|does not decrypt"):
        decrypt(deserializer, encrypt(serializer))


def test_a_destination_without_room_is_refused(key_file: Path) -> None:
    serializer, _ = codec_of(key_file)
    size = serializer.estimate_serialized_size(describe(TENSOR))
    buffer = memory_of(torch.zeros(size - 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match=f"needs {size} bytes, got {size - 1}"):
        serializer.serialize(memory_of(TENSOR), buffer, KEY)
    assert not buffer.raw_data.any()


def test_what_is_too_large_to_encrypt_is_refused_before(key_file: Path) -> None:
    serializer, _ = codec_of(key_file)
    huge = MemoryLayoutDesc([torch.Size((MAX_PLAINTEXT_BYTES,))], [torch.uint8])
    with pytest.raises(ValueError, match="encrypts payloads of up to 2147483647"):
        serializer.estimate_serialized_size(huge)


@pytest.mark.parametrize(
    "settings, message",
    [
        ("aesgcm", "must be an object of type 'aesgcm', got 'aesgcm'"),
        ({}, "must be an object of type 'aesgcm'"),
        ({"type": "rot13"}, "must be an object of type 'aesgcm'"),
        ({"type": "aesgcm"}, "requires 'master_key_path'"),
        ({"type": "aesgcm", "aes_bit": 128}, "did you mean 'aes_bits'"),
        ({"type": "aesgcm", "max_workers": 2}, "Unknown TurboQuant setting"),
        ({"type": "aesgcm", "aes_bits": 192}, "aes_bits must be one of"),
        ({"type": "aesgcm", "key_provider": "keyring"}, "unsupported key_provider"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_at_start(settings: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_serde_processor(SerdeConfig("turboquant", {"encrypt": settings}))


def test_bare_payloads_and_missing_keys_are_refused_at_start(key_file: Path) -> None:
    encryption = {"type": "aesgcm", "master_key_path": str(key_file)}
    kwargs = {"framed": False, "encrypt": encryption}
    with pytest.raises(ValueError, match="needs framed payloads"):
        create_serde_processor(SerdeConfig("turboquant", kwargs))
    key_file.unlink()
    with pytest.raises(OSError, match="No such file"):
        create_serde_processor(SerdeConfig("turboquant", {"encrypt": encryption}))
