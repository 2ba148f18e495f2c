"""Content-addressed object storage: frames, tails, packs, indexes and garbage collection.

An object is a write-once byte string. Its id (`Oid`) is the hash of its bytes. The store does not
know what the bytes mean: `history` supplies a parser that lists the references inside an object.

Start with `base.py` (the `ObjectStore` contract) and `store.py` (`PackedObjectStore`). The write
path is `writer.py` -> `frame.py` -> `tail.py` -> `seal.py`. The read path is
`pack_set.py` -> `pack.py` and `pack_index.py` -> `source.py`. `blobs.py` stores file contents.
`placement.py` has what depends on where the packs are, and `remote/` has the parts for a remote
bucket. `gc/` deletes and verifies objects.

Invariants:
- Objects are never changed, only added. A sweep is the only code here that deletes packs.
- An object is readable directly after `put` and durable after `flush`.
- One process appends to a tail, under flock. Other processes only read that tail.
- Every frame has checksums. A damaged frame raises `Corrupt` and does not hide other frames.
- Indexes and caches can be rebuilt from packs and tails.

This package imports only `backends`, `_util`, `ids` and `errors`.
"""
