# SPDX-License-Identifier: Apache-2.0
"""What a serde will do, in words, before it has seen a tensor."""

# First Party
from lmcache.v1.distributed.serde.turboquant.config import (
    TensorRule,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.slot import FP16_BYTES, SlotLayout

EXAMPLE_LAYERS = 32


def forecast(config: TurboQuantSerdeConfig, cipher: str = "") -> str:
    """Say what a serde does with objects and what ratio to expect.

    Args:
        config: The serde's configuration.
        cipher: What encrypts its payloads; empty where nothing does.

    Returns:
        One line; a sentence for each tensor where the configuration has ``groups``.

    Raises:
        ValueError: If the configuration names a preset that does not exist.
    """
    container = "with header and checksum" if config.framed else "without a frame"
    if cipher:
        container += f", encrypted with {cipher}"
    if not config.groups:
        return f"{_of_rule(config)}; stored {container}"
    tensors = (
        f"tensor {index}: {_of_rule(rule)}" for index, rule in enumerate(config.groups)
    )
    return f"{'. '.join(tensors)}. Stored {container}"


def _of_rule(rule: TensorRule) -> str:
    """Say what a rule does with a tensor."""
    if rule.kv_layout == "opaque":
        return "opaque, stored bit for bit, ratio 1.00"
    first, last = rule.skip_first_layers, rule.skip_last_layers
    ratio = _layer_ratio(rule)
    text = (
        f"{rule.preset}, head_dim {_head_dim(rule)}, kv_layout {rule.kv_layout}; "
        f"float16 and bfloat16 KV shrink {ratio:.2f} times"
    )
    if not first + last:
        return text
    raw_layers = min(first + last, EXAMPLE_LAYERS)
    packed = raw_layers + (EXAMPLE_LAYERS - raw_layers) / ratio
    return (
        f"{text} but for the first {first} and last {last} layers of an object, which "
        f"stay raw: {EXAMPLE_LAYERS / packed:.2f} times with {EXAMPLE_LAYERS} layers"
    )


def _layer_ratio(rule: TensorRule) -> float:
    """Return 16-bit bytes over slot bytes of a compressed layer."""
    is_latent = rule.kv_layout == "latent"
    value_dim = rule.value_head_dim or (0 if is_latent else rule.key_dim)
    slot = SlotLayout.for_preset(
        rule.preset_bits, rule.key_dim, value_dim, keys_only=is_latent
    )
    return (rule.key_dim + value_dim) * FP16_BYTES / slot.slot_bytes


def _head_dim(rule: TensorRule) -> str:
    """Say what head_dim is, or will be."""
    if rule.head_dim is None:
        return f"{rule.key_dim} unless LMCache declares another"
    return str(rule.head_dim)
