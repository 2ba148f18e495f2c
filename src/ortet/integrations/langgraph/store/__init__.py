"""LangGraph's long-term store (`BaseStore`) on an Ortet hub.

Start with `store.OrtetStore`; its module docstring gives the design decisions.

- `journal`: reads and appends the events of items, from any process.
- `items`: events and catalog rows of items, the events that a put or delete writes, how an event
  changes rows, and a cache of item values.
- `view`: an in-memory view of all items, for search.
- `search`, `vectors`: search by filter, words and vectors.

Invariants:

- All items of a store are in the journal of one session.
- Catalog rows are derived from events by `items.changes_of` and can be rebuilt.
- Writers hold no lease: each append is a compare-and-set on the event number.

This package may import `integrations._shared`, `config`, `hub`, `sessions` and the layers below.
"""
