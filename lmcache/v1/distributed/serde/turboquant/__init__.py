# SPDX-License-Identifier: Apache-2.0
"""TurboQuant serde: KV caches in 2 to 5 times fewer bytes.

Keys are rotated, normalised and quantised to a Lloyd-Max codebook (TurboQuant,
arXiv 2504.19874) or stored as float8; values are quantised uniformly. See
docs/design/v1/distributed/serde/turboquant.md.
"""

# First Party
from lmcache.v1.distributed.serde.turboquant.codec import (
    TurboQuantDeserializer,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.config import TurboQuantSerdeConfig
from lmcache.v1.distributed.serde.turboquant.factory import create_turboquant_serde
from lmcache.v1.distributed.serde.turboquant.standalone import TurboQuantCodec

__all__ = [
    "TurboQuantCodec",
    "TurboQuantDeserializer",
    "TurboQuantSerdeConfig",
    "TurboQuantSerializer",
    "create_turboquant_serde",
]
