# SPDX-License-Identifier: Apache-2.0
"""What the serde says of its work: metrics and log lines."""

# Standard
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock, patch
import logging

# Third Party
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
import pytest
import torch

# First Party
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.serde.base import Deserializer
from lmcache.v1.distributed.serde.turboquant import (
    TurboQuantDeserializer,
    TurboQuantSerializer,
)
from lmcache.v1.distributed.serde.turboquant.metrics import SerdeMetrics
from lmcache.v1.distributed.serde.turboquant.observed import (
    SECONDS_OF_SILENCE,
    ObservedDeserializer,
    ObservedSerializer,
    Observer,
)
from tests.v1.distributed.serde.turboquant.helpers import (
    encode,
    gaussian,
    memory_obj,
    object_key,
    unskipped,
)

PRESET = "turboquant_4bit_nc"
CONFIG = unskipped(PRESET, 64, framed=True)
TENSOR = gaussian(2, 4, 64, 2 * 64).bfloat16()
KEY = object_key(7, "org/model")
LABELS = {"serde_type": "turboquant", "preset": PRESET, "model_name": "org/model"}
PACKAGE = "lmcache.v1.distributed.serde.turboquant"


class Serde:
    """A serializer and a deserializer, observed, with metrics of their own.

    Args:
        inner: The deserializer that is observed, if not that of ``CONFIG``.
    """

    def __init__(self, inner: Deserializer | None = None) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[self._reader])
        self.observer = Observer(PRESET, SerdeMetrics(provider.get_meter("test")))
        self.serializer = ObservedSerializer(
            TurboQuantSerializer(CONFIG), self.observer
        )
        self.deserializer = ObservedDeserializer(
            inner or TurboQuantDeserializer(CONFIG), self.observer
        )

    def encode(self, tensor: torch.Tensor = TENSOR) -> torch.Tensor:
        """Encode a tensor under ``KEY``."""
        size = self.serializer.estimate_serialized_size(
            MemoryLayoutDesc([tensor.shape], [tensor.dtype])
        )
        payload = torch.empty(size, dtype=torch.uint8)
        self.serializer.serialize(memory_obj(tensor), memory_obj(payload), KEY)
        return payload

    def decode(self, payload: torch.Tensor) -> None:
        """Decode what should be the payload of ``TENSOR`` under ``KEY``."""
        restored = memory_obj(torch.empty_like(TENSOR))
        self.deserializer.deserialize(memory_obj(payload), restored, KEY)

    def samples(self, name: str) -> list:
        """The samples of a metric."""
        data = self._reader.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == f"lmcache_mp.serde_{name}"
        ]
        return [point for metric in found for point in metric.data.data_points]

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """Values by their labels, those left out that are always the same."""
        return {
            tuple(v for k, v in point.attributes.items() if k not in LABELS): (
                point.value
            )
            for point in self.samples(name)
        }


@contextmanager
def captured(module: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Capture what a module of the package logs, from DEBUG on."""
    logger = logging.getLogger(f"{PACKAGE}.{module}")
    level = logger.level
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(level)


@pytest.fixture
def serde(caplog: pytest.LogCaptureFixture) -> Iterator[Serde]:
    """A serde whose log is captured."""
    with captured("observed", caplog):
        yield Serde()


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What was logged at a level."""
    records = {id(record): record for record in caplog.records}.values()
    return [record.getMessage() for record in records if record.levelno == level]


def test_bytes_ratio_and_seconds_are_counted(serde: Serde) -> None:
    payload = serde.encode()
    for _ in range(2):
        serde.decode(payload)
    raw, stored = TENSOR.nbytes, payload.nbytes
    inputs, outputs = serde.samples("input_bytes"), serde.samples("output_bytes")
    assert serde.values("input_bytes") == {("encode",): raw, ("decode",): 2 * stored}
    assert serde.values("output_bytes") == {("encode",): stored, ("decode",): 2 * raw}
    assert all(LABELS.items() <= p.attributes.items() for p in inputs + outputs)
    (ratio,) = serde.samples("compression_ratio")
    assert (ratio.value, ratio.attributes) == (raw / stored, LABELS)
    for operation, count in (("encode", 1), ("decode", 2)):
        (durations,) = serde.samples(f"{operation}_duration")
        assert (durations.count, durations.attributes) == (count, LABELS)
        assert 0 < durations.min <= durations.max
    assert serde.samples("failures") == []


def test_an_operation_says_at_debug_what_it_did(
    serde: Serde, caplog: pytest.LogCaptureFixture
) -> None:
    payload = serde.encode()
    serde.decode(payload)
    encoded, decoded = lines(caplog, logging.DEBUG)
    sizes = f"{TENSOR.nbytes} bytes of KV, {payload.nbytes} stored, ratio 3.56, "
    name = f"org/model@00000000@0@{KEY.chunk_hash.hex()}"
    assert encoded.startswith(f"TurboQuant encoded {name}: {sizes}")
    assert decoded.startswith(f"TurboQuant decoded {name}: {sizes}")
    assert encoded.endswith(" ms")


def changed(payload: torch.Tensor, position: int) -> torch.Tensor:
    """A payload with one bit changed."""
    result = payload.clone()
    result[position] ^= 1
    return result


BAD_PAYLOADS = {
    "not_framed": lambda good: torch.zeros_like(good),
    "changed_settings": lambda good: encode(
        TENSOR, unskipped("turboquant_3bit_nc", 64, framed=True), key=KEY
    ),
    "wrong_key": lambda good: encode(TENSOR, CONFIG, key=object_key(8)),
    "corrupt": lambda good: changed(good, 5000),
    "truncated": lambda good: good[:5000],
}
"""What is found in place of a payload, by the reason that is given."""


@pytest.mark.parametrize("reason", BAD_PAYLOADS)
def test_a_refused_payload_is_counted_and_explained(
    serde: Serde, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = BAD_PAYLOADS[reason](serde.encode())
    for _ in range(3):
        with pytest.raises(ValueError):
            serde.decode(bad)
    assert serde.values("failures") == {("decode", reason): 3}
    assert serde.samples("decode_duration") == []
    (line,) = lines(caplog, logging.WARNING)
    assert KEY.chunk_hash.hex() in line
    assert f"({reason}; its whole batch counts as a miss)" in line
    assert "What to do: " in line


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (torch.OutOfMemoryError("no room"), "out_of_memory", "lower the serde's max"),
        (MemoryError(), "out_of_memory", "lower the serde's max_workers"),
        (KeyError("x"), "defect", "please report it"),
    ],
)
def test_other_errors_pass_and_are_counted(
    serde: Serde,
    error: Exception,
    reason: str,
    advice: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Serde(Mock(spec=Deserializer, **{"deserialize.side_effect": error}))
    with pytest.raises(type(error)):
        broken.decode(torch.empty(0, dtype=torch.uint8))
    assert broken.values("failures") == {("decode", reason): 1}
    (line,) = lines(caplog, logging.WARNING)
    assert advice in line


def test_a_refused_tensor_is_counted_before_it_is_stored(
    serde: Serde, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="must be divisible by head_dim=64"):
        serde.encode(TENSOR[..., :96])
    assert serde.values("failures") == {("encode", "misfit"): 1}
    (line,) = lines(caplog, logging.WARNING)
    assert line.startswith("TurboQuant cannot encode an object of [(2, 4, 64, 96)] (")
    assert "compare head_dim, kv_layout and groups" in line


def test_warnings_of_a_kind_are_rare(
    serde: Serde, caplog: pytest.LogCaptureFixture
) -> None:
    payload = serde.encode()
    with patch(f"{PACKAGE}.observed.time.monotonic", return_value=1000.0) as clock:
        for _ in range(5):
            with pytest.raises(ValueError):
                serde.decode(changed(payload, 5000))
        assert len(lines(caplog, logging.WARNING)) == 1
        with pytest.raises(ValueError):
            serde.decode(payload[:5000])
        assert len(lines(caplog, logging.WARNING)) == 2
        clock.return_value += SECONDS_OF_SILENCE
        with pytest.raises(ValueError):
            serde.decode(changed(payload, 5000))
    assert lines(caplog, logging.WARNING)[2].endswith(
        "(4 more like it since the last such line)"
    )
    assert serde.values("failures")["decode", "corrupt"] == 6
