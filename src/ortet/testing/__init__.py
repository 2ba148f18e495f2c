"""Conformance suites for authors of backends and engines.

To test an implementation, subclass its suite, supply the fixture and run pytest. Each module
docstring has an example.

- `bucket.BucketTests`, `bucket.SharedBucketTests`: object storage.
- `catalog.CatalogTests`: rows, heads, leases and events, composed of the `catalog_*` modules.
- `signal.SignalTests`, `signal.SharedSignalTests`: wake-ups.
- `cache.CacheTests`, `cache.AbsentCacheTests`: caches.
- `engine.EngineTests`, `engine_forks.InPlaceTests`: engines and machines.
- `processes`, `clock`: helpers for threads, processes and time.

Invariants:

- A suite uses the tested object only through its contract in `backends/base.py` or
  `machines/base.py`.
- `processes` imports no test framework, so that child processes start fast.

This package may import pytest, `machines`, `history`, `objects`, `backends` and the layers below.
No other package imports it.
"""
