"""Signal and Cache on a Valkey or Redis server.

Start with `signal.open_signal` and `cache.open_cache`, which open them by URL. Then:

- `signal`: wake-ups by PUBLISH and PSUBSCRIBE.
- `cache`: cached values and shared rate limits.
- `address`: parses the URL of a server.
- `client`: pooled connections with short timeouts.

Main invariants:

- Nothing depends on the server. If it is slow or gone, the cache is empty and listeners poll.
- A deleted cache entry is never returned again, even if the server could not be reached.
- Keys of different stores on one server are separated by a namespace.

This package may import the top-level modules of `backends`, `backends.local`, `_util`, `ids` and
`errors`. redis-py is an optional dependency.
"""
