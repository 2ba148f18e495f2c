"""Vectors of memories, and the search for the nearest ones.

Entry point: `index.LocalSemanticIndex`. `LocalSemanticIndex.rank` returns the documents nearest to
a query.

- `store`: vectors in a SQLite file, by embedder and hash of text.
- `worker`: texts without vectors, and the thread that embeds them.
- `matrix`: vectors in memory, and the exact search with 8-bit bounds.

Invariants: no text is embedded twice. A search never waits longer than its timeouts. The vector of
an erased text is never stored again: every write checks the mark of the store.

Imports: `memory` modules, `_util`, `ids` and `errors`; numpy.
"""
