"""HTTP server: every verb of the Python API, live event streams, file transfer, raw store access.

Start with `app.make_app`, which builds the application and its routes. `serve.serve` runs it with
uvicorn. One request passes `middleware/requests.py`, `table.py`, `dispatch.py` and a function in
`operations/`.

- `operations/` has one function per HTTP operation. Its annotations give the route, the checks and
  the OpenAPI text.
- `streaming/` has server-sent events and the terminal WebSocket; `transfers/` has uploads and
  downloads.
- `session_pool/` keeps sessions open between requests and releases their leases when another
  process asks.
- `auth/`, `middleware/` and `observability/` hold tokens, limits, idempotency keys, logs, metrics
  and health.
- `raw_store/` lets a remote hub use the bucket and the catalog of the server.

Invariants:
- Store code blocks, so it runs in a thread of `AppContext.in_thread`, never in the event loop.
- Every error has the same JSON shape (`errors.py`), without secrets and without names of secrets.
- A token sees its own tenant only, and its own agents where it is limited to some.
- Routes and the OpenAPI document are built from the same table, so they cannot differ.

The package may import `config` and every layer below. From the other surfaces it uses three things:
the page routes of `web`, output and time helpers of `cli`, and shared helpers of `integrations`.
"""
