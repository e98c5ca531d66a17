# SPDX-License-Identifier: Apache-2.0
"""Times of every codec, under pytest-benchmark; ``__main__`` runs this file."""

# Third Party
from pytest_benchmark.fixture import BenchmarkFixture
import pytest

# First Party
from benchmarks.turboquant.cpu.codecs import CODECS, MISSING, THREADS
from benchmarks.turboquant.cpu.memory import extra_bytes


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("operation", ["encode", "decode"])
@pytest.mark.parametrize("codec", [name for name in CODECS if name not in MISSING])
def test_codec(
    codec: str, operation: str, threads: int, benchmark: BenchmarkFixture
) -> None:
    subject = CODECS[codec](threads)
    subject.check()
    benchmark.extra_info |= {
        "codec": codec,
        "operation": operation,
        "threads": threads,
        "raw_bytes": subject.tensor.nbytes,
        "ratio": subject.ratio,
        "cosine": subject.cosine,
        "extra_bytes": extra_bytes(codec, threads, operation),
    }
    benchmark(getattr(subject, operation))
