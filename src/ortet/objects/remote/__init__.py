"""Object storage whose packs are in a remote bucket: S3, or an Ortet server.

Start with `placement.py`: `open_remote_objects` opens a `PackedObjectStore` with the parts of this
package. `pack_set.py` lists the packs of the bucket and uploads tails. `pack.py` reads packs
through `pack_cache.py`.

Invariants:
- With durability "remote", flushed objects are in the bucket when `flush` returns.
- With durability "local", flushed objects are on this host and are uploaded in the background.
- Local files are a cache, except the upload queue. Damaged or missing files are fetched again.
- Writers are not locked out during a sweep. A write with an old sweep epoch is refused instead.
- A pack with a deletion mark may be read, but a writer must not rely on it.

This package imports the rest of `objects`, `backends`, `_util`, `ids` and `errors`.
"""
