# SPDX-License-Identifier: Apache-2.0
"""Registration of the ``turboquant`` serde type."""

# Standard
from dataclasses import replace

# First Party
from lmcache.logging import init_logger
from lmcache.v1.distributed.serde.async_processor import AsyncSerdeProcessor
from lmcache.v1.distributed.serde.base import (
    Deserializer,
    SerdeProcessor,
    Serializer,
)
from lmcache.v1.distributed.serde.factory import register_serde_factory
from lmcache.v1.distributed.serde.turboquant.codec import (
    TurboQuantDeserializer,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.device import available_cores
from lmcache.v1.distributed.serde.turboquant.encrypted import AESGCM, encrypt_payloads
from lmcache.v1.distributed.serde.turboquant.forecast import forecast
from lmcache.v1.distributed.serde.turboquant.metrics import serde_metrics
from lmcache.v1.distributed.serde.turboquant.observed import (
    ObservedDeserializer,
    ObservedSerializer,
    Observer,
)
from lmcache.v1.distributed.serde.turboquant.settings import require_int

logger = init_logger(__name__)

SERDE_TYPE = "turboquant"


def create_turboquant_serde(kwargs: dict[str, object]) -> SerdeProcessor:
    """Build the processor of an adapter's ``"serde"`` JSON.

    Args:
        kwargs: Fields of :class:`TurboQuantSerdeConfig`, of which ``framed`` is
            true unless given, ``max_workers`` (threads that encode and decode,
            default 1), and ``encrypt`` (settings of LMCache's ``aesgcm``, with
            which payloads are encrypted).

    Returns:
        A processor that encodes and decodes on its own threads.

    Raises:
        ValueError: If a key is unknown, a value is invalid or the configured
            device does not exist.
        OSError: If the master key of ``encrypt`` cannot be read.
    """
    settings = {"framed": True} | kwargs
    max_workers = require_int("max_workers", settings.pop("max_workers", 1), minimum=1)
    encryption = settings.pop("encrypt", None)
    cipher = "" if encryption is None else AESGCM
    config = TurboQuantSerdeConfig.from_kwargs(settings)
    if not config.cpu_threads:
        cpu_threads = max(1, available_cores() // max_workers)
        config = replace(config, cpu_threads=cpu_threads)
    serializer: Serializer = TurboQuantSerializer(config)
    deserializer: Deserializer = TurboQuantDeserializer(config)
    if cipher:
        serializer, deserializer = encrypt_payloads(
            serializer, deserializer, config, encryption
        )
    logger.info("TurboQuant serde: %s", forecast(config, cipher))
    logger.debug("TurboQuant serde: %s, max_workers=%d", config, max_workers)
    presets = "+".join({rule.preset: None for rule in config.groups or (config,)})
    observer = Observer(presets, serde_metrics())
    return AsyncSerdeProcessor(
        ObservedSerializer(serializer, observer),
        ObservedDeserializer(deserializer, observer),
        max_workers=max_workers,
    )


register_serde_factory(SERDE_TYPE, create_turboquant_serde)
