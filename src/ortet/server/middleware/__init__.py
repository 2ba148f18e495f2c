"""Rules that apply to every request, for all operations.

Start with `requests.RequestMiddleware`, the outermost ASGI application. It checks the Host header,
applies `rate_limit.RateLimiter`, finds the operation, and adds security headers, a log line,
metrics and a span.

- `thread_pool` runs blocking store code. Calls that take long do not use up the threads of quick
  ones.
- `idempotency` runs a write with an Idempotency-Key once, and repeats its stored answer.
- `rate_limit` limits requests per second and concurrent requests, per token and per address.

Invariants:
- A request that was admitted is released exactly once; streams are released when they begin.
- The idempotency key is stored before the operation runs, so a crash cannot cause a second run.

`rate_limit` and `thread_pool` import neither `context` nor `dispatch`, which use them.
`idempotency` may import `hub` and `backends`.
"""
