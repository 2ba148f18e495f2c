"""Bucket, Catalog and Signal of a store behind `ortet serve`, over HTTP.

Start with `client.RemoteClient`, which sends requests and retries them. Then:

- `protocol`: the messages between client and server, in msgpack.
- `catalog`, `bucket`, `signal`: the three contracts on top of the client.

Main invariants:

- A write is applied at most once, whatever breaks. The server recognises a retry by its request id.
- Errors arrive as the server raised them, with class, kind and details.
- Lease expiry times are converted to the clock of this host.

This package may import the top-level modules of `backends`, `_util`, `ids` and `errors`.
"""
