# SPDX-License-Identifier: Apache-2.0
"""Exchange payloads with the pristine LMCache: all cases in one process."""

# Standard
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
import json
import os
import subprocess
import sys

# Third Party
from safetensors.torch import load_file, save_file
import torch

# First Party
from lmcache import torch_dev, torch_device_type
from tests.v1.distributed.serde.turboquant import helpers
from tests.v1.distributed.serde.turboquant.interchange.cases import Case

UPSTREAM = Path(__file__).with_name("upstream.py")
DEVICE = torch_device_type if torch_dev.is_available() else "cpu"
"""Where both sides work."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What both sides made of one case; every tensor is on the CPU.

    Attributes:
        case: The case.
        source: Its KV tensor.
        our_payload: The source, encoded by us.
        ours_by_upstream: Our payload, decoded by upstream.
        upstream_payload: The source, encoded by upstream.
        upstream_by_upstream: Upstream's payload, decoded by upstream.
        upstream_centroids: Upstream's codebook; None for float8 keys.
        upstream_boundaries: Upstream's boundaries; None for float8 keys.
    """

    case: Case
    source: torch.Tensor
    our_payload: torch.Tensor
    ours_by_upstream: torch.Tensor
    upstream_payload: torch.Tensor
    upstream_by_upstream: torch.Tensor
    upstream_centroids: torch.Tensor | None
    upstream_boundaries: torch.Tensor | None


def exchange_all(
    cases: Sequence[Case], pristine: Path, folder: Path
) -> dict[str, Exchange]:
    """Encode every case on both sides and let upstream decode both payloads.

    Args:
        cases: The cases.
        pristine: Folder that holds ``lmcache/`` of the pinned wheel.
        folder: An empty folder for the files that are exchanged.

    Returns:
        The exchanges, by the names of their cases.

    Raises:
        RuntimeError: If upstream's process fails; the message ends with what
            it printed.
    """
    tensors = {}
    for case in cases:
        tensors[f"{case.name}/source"] = case.source()
        tensors[f"{case.name}/payload"] = encode(case, case.source())
    settings = {case.name: case.settings for case in cases}
    (folder / "request.json").write_text(json.dumps(settings), "utf-8")
    save_file(tensors, folder / "request.safetensors")
    _run_upstream(pristine, folder)
    answers = load_file(folder / "response.safetensors")
    return {
        case.name: Exchange(
            case=case,
            source=tensors[f"{case.name}/source"],
            our_payload=tensors[f"{case.name}/payload"],
            ours_by_upstream=answers[f"{case.name}/foreign"],
            upstream_payload=answers[f"{case.name}/payload"],
            upstream_by_upstream=answers[f"{case.name}/restored"],
            upstream_centroids=answers.get(f"{case.name}/centroids"),
            upstream_boundaries=answers.get(f"{case.name}/boundaries"),
        )
        for case in cases
    }


def encode(case: Case, source: torch.Tensor) -> torch.Tensor:
    """Encode a KV tensor with our serializer.

    Args:
        case: The settings.
        source: The KV tensor.

    Returns:
        The payload, on the CPU.
    """
    return helpers.encode(source.to(DEVICE), case.config).cpu()


def decode(case: Case, payload: torch.Tensor) -> torch.Tensor:
    """Decode a payload with our deserializer.

    Args:
        case: The settings.
        payload: The payload.

    Returns:
        The KV tensor, on the CPU.
    """
    return helpers.decode(payload.to(DEVICE), case.source(), case.config).cpu()


def _run_upstream(pristine: Path, folder: Path) -> None:
    """Start ``upstream.py`` with the pristine LMCache before any other."""
    search_path = [str(pristine), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(search_path),
        "LMCACHE_TRACK_USAGE": "false",
        "TRITON_INTERPRET": "1" if DEVICE == "cpu" else "0",
    }
    command = [sys.executable, str(UPSTREAM), str(folder), str(pristine)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stdout}\n{done.stderr}")
