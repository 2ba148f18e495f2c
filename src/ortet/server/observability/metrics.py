"""Request metrics in the text format of Prometheus. They name no tenant, session or token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from threading import Lock

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTERS = {
    "ortet_replays_total": "Writes that were answered from their idempotency key.",
    "ortet_bugs_total": "Requests that met a fault of the server.",
}


class _LatencyHistogram:
    def __init__(self) -> None:
        self.buckets = [0] * (len(_BOUNDS) + 1)
        self.sum = 0.0


class Metrics:
    """Counters and histograms of requests. Gauges are evaluated when the metrics are read."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = {}
        self._times: dict[tuple[str, str], _LatencyHistogram] = {}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._gauges: list[tuple[str, str, Callable[[], float]]] = []
        self._families: list[tuple[str, str, str, Callable[[], dict[str, int]]]] = []
        self._lock = Lock()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a gauge. `value` is called when the metrics are read."""
        self._gauges.append((name, text, value))

    def family(
        self, name: str, text: str, label: str, values: Callable[[], dict[str, int]]
    ) -> None:
        """Register a counter with one label whose values another object holds."""
        self._families.append((name, text, label, values))

    def count(self, name: str) -> None:
        """Add one to a counter."""
        with self._lock:
            self._counts[name] += 1

    def record_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request and record its duration."""
        with self._lock:
            key = (method, route, status)
            self._requests[key] = self._requests.get(key, 0) + 1
            times = self._times.get((method, route))
            if times is None:
                times = self._times[method, route] = _LatencyHistogram()
            times.buckets[bisect_left(_BOUNDS, seconds)] += 1
            times.sum += seconds

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        with self._lock:
            lines = [*self._request_lines()]
        for name, text, value in self._gauges:
            lines += [*_head(name, text, "gauge"), f"{name} {value():g}"]
        for name, text, label, values in self._families:
            lines += _head(name, text, "counter")
            lines += [f'{name}{{{label}="{_safe(key)}"}} {n}' for key, n in values().items()]
        return "\n".join(lines) + "\n"

    def _request_lines(self) -> Iterator[str]:
        name = "ortet_requests_total"
        yield from _head(name, "Requests, by route and status.", "counter")
        for (method, route, status), count in sorted(self._requests.items()):
            labels = f'method="{_safe(method)}",route="{_safe(route)}",status="{status}"'
            yield f"{name}{{{labels}}} {count}"
        name = "ortet_request_seconds"
        yield from _head(name, "Time that requests took.", "histogram")
        for (method, route), times in sorted(self._times.items()):
            labels, total = f'method="{_safe(method)}",route="{_safe(route)}"', 0
            for bound, count in zip((*map(str, _BOUNDS), "+Inf"), times.buckets, strict=True):
                total += count
                yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
            yield f"{name}_sum{{{labels}}} {times.sum:.6f}"
            yield f"{name}_count{{{labels}}} {total}"
        for name, count in self._counts.items():
            yield from _head(name, _COUNTERS[name], "counter")
            yield f"{name} {count}"


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _safe(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
