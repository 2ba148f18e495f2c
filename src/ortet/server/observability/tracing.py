"""An OpenTelemetry span for each request, if the API is installed and a provider is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Span

Headers = Sequence[tuple[bytes, bytes]]


class RequestTracer:
    """Creates spans. Does nothing without the package or without a provider."""

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
        """Return a context manager with the span of a request.

        Its parent is the caller's `traceparent`.
        """
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
            record_exception=False,  # the message may contain anything
            set_status_on_exception=False,
        ) as span:
            yield span

    def record_response(self, span: Span, fields: dict[str, Any]) -> None:
        """Set the attributes of a finished request."""
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
