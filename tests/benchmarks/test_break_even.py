# SPDX-License-Identifier: Apache-2.0
"""The table in the operators' guide is what the measurements give."""

# Standard
from pathlib import Path
import csv

# Third Party
import pytest

# First Party
from benchmarks.turboquant.break_even import (
    BANDWIDTHS,
    MEASURED,
    TABLE,
    Codec,
    measured,
    measured_codecs,
    measured_gpu_codecs,
    table,
)


def test_at_the_break_even_nothing_is_gained_or_lost() -> None:
    codec = Codec("codec", ratio=4, rate=2)
    assert codec.break_even == 1.5
    assert codec.gain(1.5) == pytest.approx(1)
    assert codec.gain(1) > 1 > codec.gain(2)
    # A store that is slow enough leaves the ratio alone.
    assert codec.gain(1e-9) == pytest.approx(4)


def test_every_decoder_that_was_measured_is_listed() -> None:
    with open(MEASURED, newline="") as file:
        decoders = [
            row
            for row in csv.DictReader(file)
            if row["operation"] == "decode" and row["codec"] != "memcpy"
        ]
    codecs = list(measured_codecs(MEASURED))
    assert [codec.rate for codec in codecs] == [
        float(row["gigabytes_per_second"]) for row in decoders
    ]
    assert len({codec.name for codec in codecs}) == len(codecs) > 0


def test_gpu_rates_are_those_of_host_memory(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    path.write_text(
        "codec,preset,shape,place,operation,raw_bytes,payload_bytes,median_us\n"
        "ours,turboquant_4bit_nc,2x80x256x1024,pinned,encode,8000,2000,1\n"
        "ours,turboquant_4bit_nc,2x80x256x1024,pinned,decode,8000,2000,2\n"
        "ours,turboquant_4bit_nc,2x80x256x1024,resident,decode,8000,2000,1\n"
    )
    name = "ours turboquant_4bit_nc, GPU, 2x80x256x1024"
    assert list(measured_gpu_codecs(path)) == [Codec(name, ratio=4, rate=4)]


def test_the_guide_has_the_table_of_the_measurements() -> None:
    with open(TABLE, newline="") as file:
        written = list(csv.reader(file))
    assert written == table(measured())
    assert len(written[0]) == 4 + len(BANDWIDTHS)
