"""Health checks, metrics, logs and traces of a server.

Start with `health.Health`, which serves `/healthz`, `/readyz` and `/metrics` and has the health
checks of the store. `metrics` has the Prometheus text, `logs` the JSON log, and `tracing` the
OpenTelemetry spans.

Invariants:
- The probes and `/metrics` need no token, so they name no tenant, session or token and no path of
  the host.
- A probe is answered within about two seconds, even if the database or the bucket hangs.
- The log never blocks a request. If standard error is not read, lines are dropped.
- Tokens are redacted in every log line.

The package may import `config`, `hub` and layers below, and `context` and `errors` of the server.
"""
