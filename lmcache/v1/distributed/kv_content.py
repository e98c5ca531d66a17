# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a memory object hold, as far as LMCache knows it.

Engines hand over tensors of one shape with different contents. Those who look into
them, such as a lossy serde, need to know what the engine and its KV format say.
"""

# Standard
from dataclasses import dataclass
from typing import Literal

ContentKind = Literal["attention", "fused", "fused_planes", "latent", "opaque"]
"""What a token's elements are.

``attention``: keys and values; where either begins is the KV format's business.
``fused``: keys and values, in one plane, the value of each head after its key.
``fused_planes``: keys and values, in one plane, all values after all keys.
``latent``: one vector that stands for all keys and values.
``opaque``: none of these, such as recurrent state, or rows that are not tokens.
"""


@dataclass(frozen=True)
class KVContent:
    """What an engine says of the KV cache of some layers.

    Attributes:
        kind: What the elements are.
        num_kv_heads: Heads of keys and values; 0 where it does not say.
        head_size: Elements of a key of one head; 0 where it does not say.
        value_head_size: Elements of a value of one head, likewise.
    """

    kind: ContentKind
    num_kv_heads: int = 0
    head_size: int = 0
    value_head_size: int = 0


OPAQUE = KVContent("opaque")


@dataclass(frozen=True)
class TensorFormat:
    """What is known of one tensor of a memory object.

    Attributes:
        engine_kv_format: Name of the member of ``EngineKVFormat``.
        num_heads: Heads of the engine's tensor.
        head_size: Elements of one head in one plane: of key and value together
            where a format keeps both in one plane.
        content: What the engine says; None where it does not.
    """

    engine_kv_format: str
    num_heads: int
    head_size: int
    content: KVContent | None = None


TensorFormats = tuple[TensorFormat | None, ...]
"""What is known of each tensor of a memory object, in order."""
