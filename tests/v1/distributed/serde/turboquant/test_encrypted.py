# SPDX-License-Identifier: Apache-2.0
"""Compressed, then encrypted: sizes, memory, and the way through disk."""

# Standard
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
import gc

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde import AesGcmSerializer
from lmcache.v1.distributed.serde.aesgcm import create_aesgcm_codec
from lmcache.v1.distributed.serde.turboquant.encrypted import Envelope
from lmcache.v1.distributed.serde.turboquant.frame import PAGE_BYTES
from lmcache.v1.distributed.serde.turboquant.header import MAGIC
from lmcache.v1.memory_management import TensorMemoryObj
from tests.v1.distributed.serde.turboquant.encryption import (
    CONFIG,
    OVERHEAD,
    TENSOR,
    codec_of,
    decrypt,
    encrypt,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    encode,
    gaussian,
    object_key,
    restored_alone,
)
from tests.v1.distributed.serde.turboquant.storage import (
    ADAPTERS,
    files_of,
    load,
    storage_manager,
    store,
    stored_count,
)


@pytest.mark.parametrize("aes_bits", [128, 256])
def test_an_encrypted_payload_restores_what_a_plain_one_does(
    key_file: Path, aes_bits: int
) -> None:
    serializer, deserializer = codec_of(key_file, aes_bits=aes_bits)
    payload = encrypt(serializer)
    plain = restored_alone(TENSOR, CONFIG)
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
    restored = decrypt(deserializer, payload, like=tensor)
    assert torch.equal(restored, restored_alone(tensor, CONFIG))


def test_every_byte_between_payload_and_ciphertext_is_accounted_for() -> None:
    for payload_bytes in range(0, 3 * PAGE_BYTES, 64):
        envelope = Envelope(payload_bytes, OVERHEAD)
        assert envelope.plaintext_bytes >= payload_bytes
        assert envelope.plaintext_bytes + OVERHEAD == envelope.total_bytes
        assert envelope.total_bytes % PAGE_BYTES == 0


def objects_of_their_own() -> set[int]:
    """Addresses of the memory objects that there are without an allocator."""
    gc.collect()
    held = [x for x in gc.get_objects() if type(x) is TensorMemoryObj]
    return {id(x) for x in held if x.parent_allocator is None}


def test_nothing_of_a_payload_stays_in_memory(key_file: Path) -> None:
    serializer, deserializer = codec_of(key_file)
    before = objects_of_their_own()
    payload = encrypt(serializer)
    decrypt(deserializer, payload)
    payload[100] ^= 1
    with pytest.raises(ValueError, match="does not decrypt"):
        decrypt(deserializer, payload)
    assert objects_of_their_own() <= before


def test_workers_share_a_serde(key_file: Path) -> None:
    serializer, deserializer = codec_of(key_file)
    expected = restored_alone(TENSOR, CONFIG)

    def round_trip(index: int) -> torch.Tensor:
        key = object_key(index)
        return decrypt(deserializer, encrypt(serializer, key=key), key)

    with ThreadPoolExecutor(4) as pool:
        assert all(
            torch.equal(restored, expected)
            for restored in pool.map(round_trip, range(16))
        )


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
        plain = restored_alone(tensor, CONFIG, key)
        assert torch.equal(restored[key], plain)
    with manager_of(None) as manager:
        assert load(manager, keys, TENSOR) == {}
    key_file.write_bytes(b"x" * 32)
    with manager_of(encryption) as manager:
        assert load(manager, keys, TENSOR) == {}


def test_the_ciphers_are_lmcaches(key_file: Path) -> None:
    encryptor, _ = create_aesgcm_codec({"master_key_path": str(key_file)})
    assert type(encryptor) is AesGcmSerializer
    as_bytes = MemoryLayoutDesc([torch.Size((5,))], [torch.uint8])
    assert encryptor.estimate_serialized_size(as_bytes) == 5 + OVERHEAD
