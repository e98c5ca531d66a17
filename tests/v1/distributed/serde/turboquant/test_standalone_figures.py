# SPDX-License-Identifier: Apache-2.0
"""Size, quality and memory of the standalone codec beside tqai's LMCache plugin.

``b14`` and the like number what that plugin does. Its figures are for Gaussian
bfloat16 tensors ``[2, 32, 256, 1024]``, head_dim 128.
"""

# Standard
import os
import subprocess
import sys

# Third Party
import pytest
import torch

# First Party
from lmcache.v1.distributed.serde.turboquant import TurboQuantCodec
from tests.v1.distributed.serde.turboquant.helpers import (
    PRESET_NAMES,
    gaussian,
    unskipped,
)

KEYS_ONLY = {"kv_layout": "latent"}


def cosine(original: torch.Tensor, restored: torch.Tensor) -> float:
    """Return the cosine of two tensors as vectors, in float64."""
    pair = (original.double().flatten(), restored.double().flatten())
    return float(torch.cosine_similarity(*pair, dim=0))


@pytest.mark.parametrize(
    ("preset", "vector_bytes"),
    [("turboquant_4bit_nc", 66), ("turboquant_3bit_nc", 50), ("turboquant_k8v4", 128)],
)
@pytest.mark.parametrize("num_vectors", [1, 2, 63, 257])
def test_b11_b14_sizes_are_exact(
    preset: str, vector_bytes: int, num_vectors: int
) -> None:
    vectors = gaussian(1, num_vectors, 128).half()
    data = TurboQuantCodec(unskipped(preset, 128, **KEYS_ONLY)).to_bytes(vectors)
    assert len(data) == -(-(128 + num_vectors * vector_bytes) // 64) * 64


@pytest.mark.parametrize(
    ("preset", "slot_bytes", "expected_cosine"),
    [
        ("turboquant_k8v4", 196, 0.99734),
        ("turboquant_4bit_nc", 134, 0.99522),
        ("turboquant_k3v4_nc", 118, 0.98908),
        ("turboquant_3bit_nc", 102, 0.98041),
    ],
)
def test_b31_size_and_cosine_of_keys_and_values(
    preset: str, slot_bytes: int, expected_cosine: float
) -> None:
    tensor = gaussian(2, 32, 256, 1024).bfloat16()
    data = TurboQuantCodec(unskipped(preset)).to_bytes(tensor)
    assert len(data) == 128 + 32 * 256 * 8 * slot_bytes
    restored = TurboQuantCodec.from_bytes(data)
    assert cosine(tensor, restored) == pytest.approx(expected_cosine, abs=1e-4)


@pytest.mark.parametrize(
    ("preset", "plugin_bytes", "plugin_cosine"),
    [
        ("turboquant_4bit_nc", 8_650_831, 0.99541),
        ("turboquant_3bit_nc", 6_553_679, 0.98310),
    ],
)
def test_b31_keys_alone_cost_what_the_plugin_takes_and_a_checksum(
    preset: str, plugin_bytes: int, plugin_cosine: float
) -> None:
    vectors = gaussian(8, 1024, 128).bfloat16()
    config = unskipped(preset, 128, **KEYS_ONLY)
    data = TurboQuantCodec(config).to_bytes(vectors)
    header_bytes, share = 128, 16
    assert header_bytes + share * (len(data) - header_bytes) == plugin_bytes + 49
    restored = TurboQuantCodec.from_bytes(data)
    assert cosine(vectors, restored) == pytest.approx(plugin_cosine, abs=1e-4)


MEMORY_PROBE = """
import sys, torch
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantCodec, TurboQuantSerdeConfig
)
codec = TurboQuantCodec(TurboQuantSerdeConfig(preset=sys.argv[1]))
tensor = torch.zeros(2, 32, 256, 1024, dtype=torch.bfloat16) + 1
TurboQuantCodec.from_bytes(codec.to_bytes(tensor[:, :5]))

def kilobytes(field):
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

open("/proc/self/clear_refs", "w").write("5")
before = kilobytes("VmRSS")
restored = TurboQuantCodec.from_bytes(codec.to_bytes(tensor))
print((kilobytes("VmHWM") - before) * 1024 / tensor.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_b31_memory_stays_near_that_of_input_and_output(preset: str) -> None:
    command = [sys.executable, "-c", MEMORY_PROBE, preset]
    environment = os.environ | {"LMCACHE_TRACK_USAGE": "false"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    growth = float(done.stdout.split()[-1])
    assert 1 <= growth < 4  # the plugin: 22 at 2 bits, 68 at 4
