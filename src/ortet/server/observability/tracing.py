"""A span of OpenTelemetry for each request, where its API is installed and somebody collects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

Headers = Sequence[tuple[bytes, bytes]]


class RequestTracer:
    """Without the package, and without a provider that was set, it costs nothing."""

    def __init__(self) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError:
            self._trace: Any = None
        else:
            self._trace = trace
            self._propagator = TraceContextTextMapPropagator()

    def request_span(self, method: str, headers: Headers) -> AbstractContextManager[Span | None]:
        """Around a request; it goes on from the caller's `traceparent`."""
        trace = self._trace
        if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return nullcontext()
        return self._start_span(method, headers)

    @contextmanager
    def _start_span(self, method: str, headers: Headers) -> Iterator[Span | None]:
        trace = self._trace
        carried = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in headers
            if name in (b"traceparent", b"tracestate")
        }
        tracer = trace.get_tracer("ortet")
        with tracer.start_as_current_span(
            method,
            context=self._propagator.extract(carried),
            kind=trace.SpanKind.SERVER,
            record_exception=False,  # its words may hold anything
            set_status_on_exception=False,
        ) as span:
            yield span

    def record_response(self, span: Span, fields: dict[str, Any]) -> None:
        """What the request came to."""
        route = fields["route"]
        span.update_name(f"{fields['method']} {route}" if route else fields["method"])
        span.set_attribute("http.request.method", fields["method"])
        span.set_attribute("http.response.status_code", fields["status"])
        if route:
            span.set_attribute("http.route", route)
        for name in ("session", "token", "request"):
            if fields.get(name):
                span.set_attribute(f"ortet.{name}", fields[name])
        if fields["status"] >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
