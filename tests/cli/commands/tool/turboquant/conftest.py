# SPDX-License-Identifier: Apache-2.0
"""What the tests of ``lmcache tool turboquant`` share."""

# Standard
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

# Third Party
import pytest
import torch

# First Party
from lmcache.cli.main import main
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantCodec,
    TurboQuantSerdeConfig,
)
from lmcache.v1.distributed.serde.turboquant.container import container_of
from lmcache.v1.distributed.serde.turboquant.frame import FrameLayout

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def config() -> TurboQuantSerdeConfig:
    """What the payloads are written with."""
    return TurboQuantSerdeConfig(
        preset="turboquant_4bit_nc",
        head_dim=64,
        framed=True,
        skip_first_layers=1,
        skip_last_layers=0,
    )


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; return its exit status, stdout and stderr."""

    def command(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main(["tool", "turboquant", *map(str, arguments)])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture
def directory(tmp_path: Path, config: TurboQuantSerdeConfig) -> Path:
    """An L2 directory: payloads 0, 1 and nested/2, and a file that is none."""
    directory = tmp_path / "l2"
    (directory / "nested").mkdir(parents=True)
    for index, folder in enumerate(("", "", "nested")):
        data = stored(torch.randn(2, 3, 16 + index, 128).bfloat16(), config)
        (directory / folder / f"{index}.data").write_bytes(data)
    (directory / "notes.txt").write_text("not a payload")
    return directory


@pytest.fixture
def fused_directory(tmp_path: Path, config: TurboQuantSerdeConfig) -> Path:
    """An L2 directory with one payload, of fused keys and values."""
    fused = replace(config, kv_layout="fused")
    data = stored(torch.randn(1, 3, 16, 256).bfloat16(), fused)
    (tmp_path / "0.data").write_bytes(data)
    return tmp_path


@pytest.fixture
def damage() -> Callable[[Path, int], None]:
    """Flip a bit of a file, given its path and the byte's offset."""

    def flip(path: Path, offset: int) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    return flip


def stored(tensor: torch.Tensor, config: TurboQuantSerdeConfig) -> bytes:
    """What an L2 adapter stores of a tensor: the codec's frame in whole pages."""
    data = torch.tensor(list(TurboQuantCodec(config).to_bytes(tensor)))
    description = MemoryLayoutDesc([tensor.shape], [tensor.dtype])
    container = container_of(description, config)
    assert isinstance(container, FrameLayout)
    pages = torch.zeros(container.total_bytes, dtype=torch.uint8)
    pages[: data.numel()] = data
    container.seal(pages)
    return bytes(pages.numpy())
