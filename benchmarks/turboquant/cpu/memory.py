# SPDX-License-Identifier: Apache-2.0
"""The memory that one operation takes beyond its input and output.

Run as a program, in a process whose earlier work cannot hide the peak::

    python -m benchmarks.turboquant.cpu.memory CODEC THREADS encode|decode
"""

# Standard
from pathlib import Path
import subprocess
import sys

# First Party
from benchmarks.turboquant.cpu.codecs import CODECS

_SMALL_SHAPE = (2, 4, 16, 1024)


def extra_bytes(codec: str, threads: int, operation: str) -> int:
    """Measure the peak of an operation in a process of its own.

    Args:
        codec: Name in ``CODECS``.
        threads: Threads to work with.
        operation: ``"encode"`` or ``"decode"``.

    Returns:
        Bytes of resident memory at the peak, less those before.
    """
    command = [sys.executable, "-m", __spec__.name, codec, str(threads), operation]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.splitlines()[-1])


def _measure(codec: str, threads: int, operation: str) -> int:
    """Measure the peak of the first large operation in this process."""
    make = CODECS[codec]
    small = make(threads, _SMALL_SHAPE)
    small.encode()
    small.decode()
    subject = make(threads)
    if operation == "decode":
        subject.encode()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    getattr(subject, operation)()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    """Read a field, given in KiB, of what Linux says of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    print(_measure(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
