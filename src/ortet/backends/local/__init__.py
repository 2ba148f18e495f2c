"""Bucket, signal and cache on the local host: in files, sockets and memory.

Start with `bucket.FileBucket`, the bucket of an embedded store. Then:

- `signal`: wake-ups between threads (ProcessSignal) and between processes (HostSignal).
- `memory`: a cache in the process (ProcessCache), an empty one (NoCache), and a bucket in a
  dictionary for tests.

Main invariants:

- An object file is synced before it gets its name, and its directory after that.
- A key is never overwritten, even by processes that put it at the same time.
- A lost notification only delays a listener.

This package may import the top-level modules of `backends`, `_util`, `ids` and `errors`.
"""
