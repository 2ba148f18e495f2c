"""Live streams: server-sent events of journals, command output and swarms, and terminals.

Start with `streams.Streams`, which all streams of a server share, and `sse.EventStream`, the
response. A stream is a `sse.StreamSource` that returns pages of events after a cursor. The sources
are in `journal`, `output` and `swarm`. `terminal` is a WebSocket.

- `wakeups`: one thread per store waits for signals and wakes the streams that they concern.
- `output_fanout`: one thread per followed program reads its output for all its readers.

Invariants:
- Nothing is queued for a client. A stream reads the next page after the client took the last one.
- The id of the last event is a cursor. A client that reconnects with it misses nothing.
- A signal is only a hint, so every stream also reads its source periodically.
- The token is checked again during a stream. A revoked token ends it.

Sources and `Streams` run in the event loop and read the store in threads. The package may import
`session_pool`, `context`, `errors` and `wire` of the server, and `sessions` and layers below.
"""
