# SPDX-License-Identifier: Apache-2.0
"""When the CPU kernels are compiled, where the code is kept, what is said."""

# Standard
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import importlib.util
import os
import subprocess
import sys
import tempfile

# Third Party
import numba
import numpy as np
import pytest

# First Party
from lmcache.v1.distributed.serde.turboquant.kernels import cpu_compile
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import Kernel

KERNEL_MODULE = """
from lmcache.v1.distributed.serde.turboquant.kernels.cpu_compile import Kernel
import os

@Kernel
def double(numbers, revision=int(os.environ.get("REVISION", 0))):
    for i in range(numbers.size):
        numbers[i] *= 2
"""

CALL_KERNEL = "from some_kernel import double; double(numpy.ones(3))"

COUNT_COMPILED = """
from numba.core import event
import numpy, sys

sys.path.insert(0, "FOLDER")
with event.install_recorder("numba:compile") as recorder:
    STATEMENTS
print("compiled", len(recorder.buffer))
"""


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the module logs."""
    messages: list[str] = []

    def record(message: str, *args: object) -> None:
        messages.append(message % args)

    monkeypatch.setattr(cpu_compile.logger, "info", record)
    monkeypatch.setattr(cpu_compile.logger, "warning", record)
    return messages


def load_kernel(folder: Path) -> Kernel:
    """Import a kernel, which is then yet to be compiled, from a file in a folder."""
    path = folder / "some_kernel.py"
    path.write_text(KERNEL_MODULE)
    spec = importlib.util.spec_from_file_location("some_kernel", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.double


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A kernel that was never compiled, whose code is kept in ``tmp_path``."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    return load_kernel(tmp_path)


def assert_doubles(kernel: Kernel) -> None:
    """Run the kernel."""
    numbers = np.arange(4.0)
    kernel(numbers)
    assert numbers.tolist() == [0, 2, 4, 6]


def compiles(statements: str, folder: Path, revision: int = 0) -> bool:
    """Whether numba compiles anything when a new process runs statements."""
    program = COUNT_COMPILED.replace("FOLDER", str(folder))
    settings = {"NUMBA_CACHE_DIR": str(folder / "cache"), "REVISION": str(revision)}
    done = subprocess.run(
        [sys.executable, "-c", program.replace("STATEMENTS", statements)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1] != "compiled 0"


def test_importing_compiles_nothing(tmp_path: Path) -> None:
    package = cpu_compile.__name__.rpartition(".")[0]
    assert not compiles(f"import {package}.cpu", tmp_path)


def test_other_processes_load_the_code(kernel: Kernel, tmp_path: Path) -> None:
    assert compiles(CALL_KERNEL, tmp_path)
    assert not compiles(CALL_KERNEL, tmp_path)


def test_code_of_another_revision_is_not_loaded(kernel: Kernel, tmp_path: Path) -> None:
    assert compiles(CALL_KERNEL, tmp_path, revision=1)
    assert compiles(CALL_KERNEL, tmp_path, revision=2)
    assert not compiles(CALL_KERNEL, tmp_path, revision=1)


def test_a_quick_first_call_says_nothing(
    kernel: Kernel, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_compile, "ANNOUNCE_AFTER_SECONDS", 60.0)
    assert_doubles(kernel)
    assert log == []


def test_a_slow_first_call_says_once_what_it_waits_for(
    kernel: Kernel, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_compile, "ANNOUNCE_AFTER_SECONDS", 0.0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(assert_doubles, [kernel] * 8))
    (message,) = log
    assert message.startswith("Compiling the TurboQuant CPU kernel double")


def test_nowhere_to_keep_the_code(
    kernel: Kernel, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """numba looks for a folder by making a temporary file in it."""

    def refuse(*args: object, **settings: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    for _ in range(2):
        assert_doubles(kernel)
    (message,) = log
    assert "compiled anew in every process" in message
    assert "NUMBA_CACHE_DIR" in message


def test_a_damaged_cache(kernel: Kernel, log: list[str], tmp_path: Path) -> None:
    assert_doubles(kernel)
    (index,) = tmp_path.rglob("*.nbi")
    index.write_bytes(b"\x80")
    assert_doubles(load_kernel(tmp_path))
    assert "numba's cache is unusable" in "".join(log)
