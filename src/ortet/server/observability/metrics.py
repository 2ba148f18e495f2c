"""Request metrics, counted and served with `prometheus_client`.

They name no tenant, session or token. `docs/decisions/0026-libraries.md` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

MEDIA_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTERS = {
    "ortet_replays_total": "Writes that were answered from their idempotency key.",
    "ortet_bugs_total": "Requests that met a fault of the server.",
}


class _LabelledCounter(Collector):
    """A counter with one label whose values another object holds."""

    def __init__(
        self, name: str, text: str, label: str, values: Callable[[], dict[str, int]]
    ) -> None:
        self._name = name
        self._text = text
        self._label = label
        self._values = values

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counter with its present values."""
        family = CounterMetricFamily(self._name, self._text, labels=[self._label])
        for key, value in self._values().items():
            family.add_metric([key], value)
        yield family


class Metrics:
    """Counters and histograms of requests. Gauges are evaluated when the metrics are read."""

    def __init__(self) -> None:
        # Otherwise each series has a second one with the time of its creation.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "ortet_requests_total",
            "Requests, by route and status.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "ortet_request_seconds",
            "Time that requests took.",
            ("method", "route"),
            buckets=_BOUNDS,
            registry=self._registry,
        )
        self._counters = {
            name: Counter(name, text, registry=self._registry) for name, text in _COUNTERS.items()
        }
        # A look-up of a series by its labels takes eight times as long as counting.
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a gauge. `value` is called when the metrics are read."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def family(
        self, name: str, text: str, label: str, values: Callable[[], dict[str, int]]
    ) -> None:
        """Register a counter with one label whose values another object holds."""
        self._registry.register(_LabelledCounter(name, text, label, values))

    def count(self, name: str) -> None:
        """Add one to a counter."""
        self._counters[name].inc()

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request and record its duration."""
        series = self._series.get((method, route, status))
        if series is None:
            series = self._series[method, route, status] = (
                self._requests.labels(method, route, status),
                self._seconds.labels(method, route),
            )
        requests, times = series
        requests.inc()
        times.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
