# SPDX-License-Identifier: Apache-2.0
"""Counts of what the serde did, on LMCache's own metrics endpoint.

Sums are kept here and read when somebody scrapes, so that an operation costs
microseconds. Names and units are those of LMCache's other metrics: OpenTelemetry
instruments named ``lmcache_mp.*``, which its exporter makes ``lmcache_mp_*``.
"""

# Standard
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Literal
import threading

# Third Party
from opentelemetry import metrics

OperationName = Literal["encode", "decode"]

_METER = "lmcache_mp.serde"
_SECONDS = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2),
    *(2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
"""Boundaries of the histograms of durations."""


@dataclass(frozen=True)
class Series:
    """What the samples of one time series have in common.

    Attributes:
        operation: What was done.
        preset: Preset of the serde.
        model_name: Model of the object.
    """

    operation: OperationName
    preset: str
    model_name: str

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the series, but for the operation."""
        return {
            "serde_type": "turboquant",
            "preset": self.preset,
            "model_name": self.model_name,
        }


class SerdeMetrics:
    """Counts of all serdes that share it. Thread-safe.

    Args:
        meter: What makes the instruments.
    """

    def __init__(self, meter: metrics.Meter) -> None:
        self._lock = threading.Lock()
        self._input_bytes: Counter[Series] = Counter()
        self._output_bytes: Counter[Series] = Counter()
        self._failures: Counter[tuple[Series, str]] = Counter()
        self._durations = {
            operation: meter.create_histogram(
                f"lmcache_mp.serde_{operation}_duration",
                unit="s",
                description=f"Seconds to {operation} one object",
                explicit_bucket_boundaries_advisory=_SECONDS,
            )
            for operation in ("encode", "decode")
        }
        meter.create_observable_counter(
            "lmcache_mp.serde_input_bytes",
            callbacks=[lambda _: self._byte_samples(self._input_bytes)],
            unit="By",
            description="Bytes that the serde read: KV to encode, payloads to decode",
        )
        meter.create_observable_counter(
            "lmcache_mp.serde_output_bytes",
            callbacks=[lambda _: self._byte_samples(self._output_bytes)],
            unit="By",
            description="Bytes that the serde wrote: payloads encoded, KV decoded",
        )
        meter.create_observable_counter(
            "lmcache_mp.serde_failures",
            callbacks=[lambda _: self._failure_samples()],
            description="Objects that the serde could not encode or decode, by reason",
        )
        meter.create_observable_gauge(
            "lmcache_mp.serde_compression_ratio",
            callbacks=[lambda _: self._ratio_samples()],
            description="Bytes of KV over bytes of payloads, of all objects encoded",
        )

    def completed(
        self, series: Series, input_bytes: int, output_bytes: int, seconds: float
    ) -> None:
        """Count an operation that succeeded.

        Args:
            series: What was done, to what.
            input_bytes: Bytes read.
            output_bytes: Bytes written.
            seconds: What it took.
        """
        self._durations[series.operation].record(seconds, series.labels)
        with self._lock:
            self._input_bytes[series] += input_bytes
            self._output_bytes[series] += output_bytes

    def failed(self, series: Series, reason: str) -> None:
        """Count an operation that failed.

        Args:
            series: What was to be done.
            reason: Why it was not, one of few.
        """
        with self._lock:
            self._failures[series, reason] += 1

    def _byte_samples(self, totals: Counter[Series]) -> list[metrics.Observation]:
        """Samples of a sum."""
        with self._lock:
            pairs = list(totals.items())
        return [
            metrics.Observation(total, series.labels | {"operation": series.operation})
            for series, total in pairs
        ]

    def _failure_samples(self) -> list[metrics.Observation]:
        """Samples of the failures."""
        with self._lock:
            pairs = list(self._failures.items())
        return [
            metrics.Observation(
                count, series.labels | {"operation": series.operation, "reason": reason}
            )
            for (series, reason), count in pairs
        ]

    def _ratio_samples(self) -> list[metrics.Observation]:
        """Samples of the ratio of what was encoded."""
        with self._lock:
            pairs = [
                (series, raw_bytes / self._output_bytes[series])
                for series, raw_bytes in self._input_bytes.items()
                if series.operation == "encode" and self._output_bytes[series]
            ]
        return [metrics.Observation(ratio, series.labels) for series, ratio in pairs]


@cache
def serde_metrics() -> SerdeMetrics:
    """Return the counts of this process, which every serde of it shares."""
    return SerdeMetrics(metrics.get_meter(_METER))
