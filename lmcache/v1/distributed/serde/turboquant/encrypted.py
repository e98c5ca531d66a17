# SPDX-License-Identifier: Apache-2.0
"""Payloads encrypted at rest: compressed by this serde, then encrypted by LMCache's.

The plaintext is a frame and zero bytes behind it, so many that the ciphertext and
what LMCache's ``aesgcm`` puts around it are whole pages.
"""

# Standard
from collections.abc import Callable
from dataclasses import dataclass

# Third Party
from cryptography.exceptions import InvalidTag
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.serde.aesgcm import create_aesgcm_codec
from lmcache.v1.distributed.serde.base import Deserializer, Serializer
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.container import require_size
from lmcache.v1.distributed.serde.turboquant.failures import CorruptPayloadError
from lmcache.v1.distributed.serde.turboquant.frame import PAGE_BYTES, round_up
from lmcache.v1.distributed.serde.turboquant.memory import byte_buffer, describe
from lmcache.v1.distributed.serde.turboquant.settings import reject_unknown_keys
from lmcache.v1.memory_management import (
    MemoryObj,
    MemoryObjMetadata,
    TensorMemoryObj,
)

AESGCM = "aesgcm"
CIPHER_SETTINGS = ["type", "key_provider", "aes_bits", "master_key_path"]
"""Those of LMCache's serde; ``max_workers`` is the outer one."""

MAX_PLAINTEXT_BYTES = 2**31 - 1
"""What the ``cryptography`` package encrypts in one operation."""


@dataclass(frozen=True)
class Envelope:
    """Sizes of an encrypted payload.

    Attributes:
        payload_bytes: Bytes of the payload inside.
        overhead_bytes: Bytes that encryption adds.
    """

    payload_bytes: int
    overhead_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes that are stored: whole pages."""
        return round_up(self.payload_bytes + self.overhead_bytes, PAGE_BYTES)

    @property
    def plaintext_bytes(self) -> int:
        """Bytes that are encrypted: the payload, and zeros."""
        return self.total_bytes - self.overhead_bytes


class EncryptingSerializer(Serializer):
    """Compress, then encrypt.

    Thread-safe where ``payloads`` and ``cipher`` are. A call holds the plaintext,
    and the cipher a copy of it and the ciphertext, until it returns.

    Args:
        payloads: What makes the payloads.
        cipher: What encrypts them; its size estimate is exact.
    """

    def __init__(self, payloads: Serializer, cipher: Serializer) -> None:
        self._payloads = payloads
        self._cipher = cipher

    def envelope_of(self, layout_desc: MemoryLayoutDesc) -> Envelope:
        """Return the sizes of an object's encrypted payload.

        Args:
            layout_desc: Shapes and dtypes of the object's tensors.

        Returns:
            The sizes.

        Raises:
            ValueError: If the object cannot be stored, or is too large to encrypt.
        """
        payload_bytes = self._payloads.estimate_serialized_size(layout_desc)
        as_bytes = MemoryLayoutDesc([torch.Size((payload_bytes,))], [torch.uint8])
        encrypted_bytes = self._cipher.estimate_serialized_size(as_bytes)
        envelope = Envelope(payload_bytes, encrypted_bytes - payload_bytes)
        if envelope.plaintext_bytes > MAX_PLAINTEXT_BYTES:
            raise ValueError(
                f"TurboQuant encrypts payloads of up to {MAX_PLAINTEXT_BYTES} bytes, "
                f"got {envelope.plaintext_bytes}"
            )
        return envelope

    def estimate_serialized_size(
        self,
        layout_desc: MemoryLayoutDesc,
    ) -> int:
        """Return the exact size of the encrypted payload; raises as ``envelope_of``."""
        return self.envelope_of(layout_desc).total_bytes

    def serialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> int:
        """Write the encrypted payload of ``src`` to the start of ``dst``.

        Args:
            src: Object holding the KV tensors.
            dst: Object holding a uint8 buffer in host memory of at least
                ``estimate_serialized_size`` bytes.
            key: Key of the object; its cache salt selects the encryption key.

        Returns:
            Bytes written: exactly the estimate.

        Raises:
            ValueError: If ``src`` cannot be stored, or ``dst`` is too small.
        """
        envelope = self.envelope_of(describe(src, "source"))
        require_size(
            byte_buffer(dst, "destination"), envelope.total_bytes, "destination"
        )
        plaintext = _byte_object(envelope.plaintext_bytes)
        written = self._payloads.serialize(src, plaintext, key)
        plaintext.raw_data[written:] = 0
        return self._cipher.serialize(plaintext, dst, key)


class DecryptingDeserializer(Deserializer):
    """Decrypt, then decode.

    Thread-safe where ``payloads`` and ``cipher`` are.

    Args:
        payloads: What decodes the payloads.
        cipher: What decrypts them.
        envelope_of: Returns the sizes of an object's encrypted payload.
    """

    def __init__(
        self,
        payloads: Deserializer,
        cipher: Deserializer,
        envelope_of: Callable[[MemoryLayoutDesc], Envelope],
    ) -> None:
        self._payloads = payloads
        self._cipher = cipher
        self._envelope_of = envelope_of

    def deserialize(
        self,
        src: MemoryObj,
        dst: MemoryObj,
        key: ObjectKey,
    ) -> None:
        """Restore the encrypted payload at the start of ``src`` into ``dst``.

        Nothing is written to ``dst`` unless every byte of ``src`` is authentic.

        Args:
            src: Object holding a uint8 buffer in host memory.
            dst: Object holding the KV tensors that were stored.
            key: Key of the object; its cache salt selects the encryption key.

        Raises:
            ValueError: If ``src`` is not the encrypted payload of this object: not
                encrypted, under another key, changed, or of another configuration.
        """
        envelope = self._envelope_of(describe(dst, "destination"))
        plaintext = _byte_object(envelope.plaintext_bytes)
        try:
            self._cipher.deserialize(src, plaintext, key)
        except InvalidTag as error:
            raise CorruptPayloadError(
                "TurboQuant payload does not decrypt: it was encrypted with another "
                "key or other settings, or has changed"
            ) from error
        self._payloads.deserialize(plaintext, dst, key)


def encrypt_payloads(
    serializer: Serializer,
    deserializer: Deserializer,
    config: TurboQuantSerdeConfig,
    settings: object,
) -> tuple[Serializer, Deserializer]:
    """Put encryption around a serde.

    Args:
        serializer: What makes the payloads.
        deserializer: What decodes them.
        config: Their configuration.
        settings: The setting ``encrypt``: ``{"type": "aesgcm", ...}`` with the
            settings of LMCache's ``aesgcm``.

    Returns:
        The serializer and the deserializer of encrypted payloads.

    Raises:
        ValueError: If a setting is unknown or invalid, or payloads have no frame.
        OSError: If the master key cannot be read.
    """
    if not isinstance(settings, dict) or settings.get("type") != AESGCM:
        raise ValueError(
            f"TurboQuant encrypt must be an object of type {AESGCM!r}, got {settings!r}"
        )
    reject_unknown_keys(settings, CIPHER_SETTINGS)
    if not config.framed:
        raise ValueError("TurboQuant encrypt needs framed payloads, got framed false")
    encryptor, decryptor = create_aesgcm_codec(settings)
    encrypting = EncryptingSerializer(serializer, encryptor)
    return encrypting, DecryptingDeserializer(
        deserializer, decryptor, encrypting.envelope_of
    )


def _byte_object(num_bytes: int) -> TensorMemoryObj:
    """Return a memory object of bytes of its own, freed with the last reference."""
    data = torch.empty(num_bytes, dtype=torch.uint8)
    metadata = MemoryObjMetadata(
        shape=data.shape,
        dtype=data.dtype,
        address=0,
        phy_size=num_bytes,
        ref_count=0,
        shapes=[data.shape],
        dtypes=[data.dtype],
    )
    return TensorMemoryObj(data, metadata, parent_allocator=None)
