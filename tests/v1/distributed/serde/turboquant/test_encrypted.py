# SPDX-License-Identifier: Apache-2.0
"""Compressed, then encrypted: sizes, refusals, and the way through disk."""

# Standard
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
import gc

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde import AesGcmSerializer, SerdeConfig
from lmcache.v1.distributed.serde.aesgcm import create_aesgcm_codec
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.factory import create_serde_processor
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.encrypted import (
    MAX_PLAINTEXT_BYTES,
    Envelope,
    encrypt_payloads,
)
from lmcache.v1.distributed.serde.turboquant.frame import PAGE_BYTES
from lmcache.v1.distributed.serde.turboquant.header import MAGIC
from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
from tests.v1.distributed.serde.turboquant.helpers import (
    KEY,
    decode,
    encode,
    gaussian,
    object_key,
    unskipped,
)
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    describe,
    files_of,
    load,
    storage_manager,
    store,
    stored_count,
    tensor_of,
)

CONFIG = unskipped("turboquant_4bit_nc", 64, framed=True)
TENSOR = gaussian(2, 3, 40, 256).bfloat16()
OVERHEAD = 29
"""A version, an initialisation vector and a tag."""


def memory_of(tensor: torch.Tensor) -> TensorMemoryObj:
    """A memory object of a copy of ``tensor``."""
    data = tensor.clone().view(-1).view(torch.uint8)
    metadata = MemoryObjMetadata(
        shape=tensor.shape,
        dtype=tensor.dtype,
        address=0,
        phy_size=data.numel(),
        ref_count=0,
        shapes=[tensor.shape],
        dtypes=[tensor.dtype],
    )
    return TensorMemoryObj(data, metadata, parent_allocator=None)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A master key."""
    return write_key(tmp_path / "keys" / "master", b"k" * 32)


def write_key(path: Path, key: bytes) -> Path:
    """Write a master key."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(key)
    return path


def codec_of(
    key_file: Path, config=CONFIG, **settings: object
) -> tuple[Serializer, Deserializer]:
    """The two halves of an encrypting serde."""
    return encrypt_payloads(
        TurboQuantSerializer(config),
        TurboQuantDeserializer(config),
        config,
        {"type": "aesgcm", "master_key_path": str(key_file)} | settings,
    )


def encrypt(
    serializer: Serializer, tensor: torch.Tensor = TENSOR, key: ObjectKey = KEY
) -> torch.Tensor:
    """Serialize into a poisoned buffer that is somewhat too large."""
    size = serializer.estimate_serialized_size(describe(tensor))
    buffer = memory_of(torch.full((size + 100,), 0xA5, dtype=torch.uint8))
    assert serializer.serialize(memory_of(tensor), buffer, key) == size
    assert bool((buffer.raw_data[size:] == 0xA5).all())
    return buffer.raw_data[:size]


def decrypt(
    deserializer: Deserializer,
    payload: torch.Tensor,
    key: ObjectKey = KEY,
    like: torch.Tensor = TENSOR,
) -> torch.Tensor:
    """Deserialize into a new object; what is refused must not touch it."""
    restored = memory_of(torch.full_like(like, 7))
    try:
        deserializer.deserialize(memory_of(payload), restored, key)
    except ValueError:
        assert torch.equal(tensor_of(restored), torch.full_like(like, 7))
        raise
    return tensor_of(restored)


@pytest.mark.parametrize("aes_bits", [128, 256])
def test_an_encrypted_payload_restores_what_a_plain_one_does(
    key_file: Path, aes_bits: int
) -> None:
    serializer, deserializer = codec_of(key_file, aes_bits=aes_bits)
    payload = encrypt(serializer)
    plain = decode(encode(TENSOR, CONFIG), TENSOR, CONFIG)
    assert torch.equal(decrypt(deserializer, payload), plain)
    assert MAGIC not in bytes(payload.numpy())
    assert not torch.equal(encrypt(serializer), payload)


@pytest.mark.parametrize(
    "shape", [(2, 3, 0, 256), (2, 1, 1, 64), (2, 3, 40, 256), (2, 4, 256, 512)], ids=str
)
def test_sizes_are_whole_pages_and_little_more(
    key_file: Path, shape: tuple[int, ...]
) -> None:
    serializer, deserializer = codec_of(key_file)
    tensor = gaussian(*shape).half()
    payload = encrypt(serializer, tensor)
    plain = encode(tensor, CONFIG)
    assert payload.numel() % PAGE_BYTES == 0
    assert payload.numel() == plain.numel() + PAGE_BYTES
    assert torch.equal(
        decrypt(deserializer, payload, like=tensor), decode(plain, tensor, CONFIG)
    )


def test_every_byte_between_payload_and_ciphertext_is_accounted_for() -> None:
    for payload_bytes in range(0, 3 * PAGE_BYTES, 64):
        envelope = Envelope(payload_bytes, OVERHEAD)
        assert envelope.plaintext_bytes >= payload_bytes
        assert envelope.plaintext_bytes + OVERHEAD == envelope.total_bytes
        assert envelope.total_bytes % PAGE_BYTES == 0


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
    _, other = codec_of(write_key(tmp_path / "keys" / "other", b"o" * 32))
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


def test_nothing_of_a_payload_stays_in_memory(key_file: Path) -> None:
    serializer, deserializer = codec_of(key_file)
    payload = encrypt(serializer)
    decrypt(deserializer, payload)
    with pytest.raises(ValueError):
        decrypt(deserializer, changed(payload, 100))
    gc.collect()
    held = [x for x in gc.get_objects() if type(x) is TensorMemoryObj]
    assert [x for x in held if x.parent_allocator is None] == []


def test_workers_share_a_serde(key_file: Path) -> None:
    serializer, deserializer = codec_of(key_file)
    expected = decode(encode(TENSOR, CONFIG), TENSOR, CONFIG)

    def round_trip(index: int) -> torch.Tensor:
        key = object_key(index)
        return decrypt(deserializer, encrypt(serializer, key=key), key)

    with ThreadPoolExecutor(4) as pool:
        assert all(
            torch.equal(restored, expected)
            for restored in pool.map(round_trip, range(16))
        )


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


@pytest.mark.parametrize("adapter", ["fs", "fs_native"])
def test_through_storage_manager_and_disk(
    tmp_path: Path, key_file: Path, adapter: str
) -> None:
    directory = tmp_path / "l2"
    directory.mkdir()
    settings = {
        "preset": "turboquant_4bit_nc",
        "head_dim": 64,
        "skip_first_layers": 0,
        "skip_last_layers": 0,
        "max_workers": 2,
    }
    encryption = {"type": "aesgcm", "master_key_path": str(key_file)}
    keys = [replace(object_key(at), cache_salt=salt) for at, salt in enumerate("abb")]
    tensors = [gaussian(*TENSOR.shape, seed=at).bfloat16() for at in range(len(keys))]
    objects = dict(zip(keys, tensors, strict=True))

    def manager_of(encrypt: object | None):
        extra = {} if encrypt is None else {"encrypt": encrypt}
        return storage_manager(ADAPTERS[adapter](directory), **settings, **extra)

    with manager_of(encryption) as manager:
        store(manager, objects, stored_count(manager, directory))
    sizes = {path.stat().st_size for path in files_of(directory).values()}
    assert sizes == {encode(TENSOR, CONFIG).numel() + PAGE_BYTES}
    for path in files_of(directory).values():
        assert MAGIC not in path.read_bytes()
    with manager_of(encryption) as manager:
        restored = load(manager, keys, TENSOR)
    assert list(restored) == keys
    for key, tensor in objects.items():
        plain = decode(encode(tensor, CONFIG, key=key), tensor, CONFIG, key)
        assert torch.equal(restored[key], plain)
    with manager_of(None) as manager:
        assert load(manager, keys, TENSOR) == {}
    write_key(key_file, b"x" * 32)
    with manager_of(encryption) as manager:
        assert load(manager, keys, TENSOR) == {}


def test_the_ciphers_are_lmcaches(key_file: Path) -> None:
    encryptor, _ = create_aesgcm_codec({"master_key_path": str(key_file)})
    assert type(encryptor) is AesGcmSerializer
    as_bytes = MemoryLayoutDesc([torch.Size((5,))], [torch.uint8])
    assert encryptor.estimate_serialized_size(as_bytes) == 5 + OVERHEAD
