"""Memory of agents: an index of messages, episodes and facts, searched by words and by meaning.

Entry point: `library.Library`. `Library.search` adds missing documents to the index and searches
it. The protocols in `base` separate the search from its storage, which is a SQLite file or
PostgreSQL.

- `records`: documents, queries and results; rows and document ids of the word index.
- `working`: cached working memory of a session.
- `lexical`: word index, BM25 search and visibility rules.
- `vectors`: vectors by hash of text, and the thread that computes them.
- `embedders`: models that turn text into vectors.
- `postgres`: index and vectors in a database that several hosts share.
- `extraction`: summaries, facts and contradictions by rules.

Invariants:

- The index is derived from the journals. It can be deleted at any time and is rebuilt.
- A search sees every event that was appended before the call.
- A search returns only events on the given timelines. Forks do not see each other's events.
- An erased text is removed from the index and from the vectors.
- A search without vectors still works; the result says why they are missing.

Imports: `history`, `objects`, `backends`, `_util`, `ids` and `errors`. The siblings `machines` and
`journal` and all higher layers are not imported.
"""
