# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the TurboQuant tests."""

# Standard
from pathlib import Path
import os

os.environ["LMCACHE_TRACK_USAGE"] = "false"

# Third Party
from hypothesis import settings  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# First Party
from lmcache import torch_dev, torch_device_type  # noqa: E402

if not torch_dev.is_available():
    # Kernels run in Triton's interpreter, if nobody imported Triton before.
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("turboquant", deadline=None, derandomize=True)
settings.load_profile("turboquant")

DEVICES = ["cpu"] + [torch_device_type] * torch_dev.is_available()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """The CPU, and the host's accelerator where it has one."""
    return torch.device(request.param)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A master key for encryption."""
    path = tmp_path / "master.key"
    path.write_bytes(b"k" * 32)
    return path
