# SPDX-License-Identifier: Apache-2.0
"""Tensors with names to payload files and back.

A payload holds no names: a tensor's name, percent-encoded, is that of its file.
"""

# Standard
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

# Third Party
from safetensors import safe_open
import torch

# First Party
from lmcache.cli.commands.tool.turboquant._payloads import (
    PAYLOAD_SUFFIX,
    Payload,
    examine,
    read_frame,
)
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantCodec,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.self_description import (
    described_layout,
    restore,
)


def encode_file(
    tensors: safe_open, directory: Path, config: TurboQuantSerdeConfig
) -> list[Payload]:
    """Write a payload for each tensor of an open safetensors file.

    Args:
        tensors: The file.
        directory: Where payloads go.
        config: What the tensors mean and how they are quantised.

    Returns:
        The payloads as they were written, in the order of the names.

    Raises:
        ValueError: If a tensor is not what the configuration describes; those
            before it have been written.
    """
    codec, payloads = TurboQuantCodec(config), []
    for name in sorted(tensors.keys()):
        try:
            data = codec.to_bytes(tensors.get_tensor(name))
        except ValueError as error:
            raise ValueError(f"tensor {name}: {error}") from error
        path = directory / f"{quote(name, safe='')}{PAYLOAD_SUFFIX}"
        path.write_bytes(data)
        payloads.append(examine(path))
    return payloads


def decode_payloads(paths: Sequence[Path], root: Path) -> dict[str, torch.Tensor]:
    """Restore the tensors of payload files.

    Args:
        paths: The files.
        root: The directory that they were found in, or the one file itself.

    Returns:
        Tensors by name; those of a file that holds several are numbered.

    Raises:
        ValueError: If a file would be refused.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        frame = read_frame(path)
        try:
            restored = restore(frame, described_layout(frame.numpy().data))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        file_name = path.name if path == root else str(path.relative_to(root))
        name = unquote(file_name.removesuffix(PAYLOAD_SUFFIX))
        if len(restored) == 1:
            tensors[name] = restored[0]
        else:
            tensors |= {f"{name}.{i}": tensor for i, tensor in enumerate(restored)}
    return tensors
