"""Full-text index and search of memories.

Entry point: `search.search`, which ranks documents by BM25 and fuses the ranking with vectors.
`index.SqliteWordIndex` is the index in a SQLite file.

- `tokenizer`: tokens of texts in any script.
- `index`, `index_file`: the index, its file, and its connections in a process.
- `reader`, `postings`: reads of the index at one moment, and selection of documents.
- `visibility`: the ranges of documents that a query may see.
- `scoring`: scores of documents.

Terms: a *line* holds the documents of one tier of one timeline, numbered without gaps. A *range* is
a run of visible documents in a line.

Invariants: documents that a query may not see influence neither results nor scores. Equal documents
give equal results, whatever else the file holds. A damaged file is emptied and filled again.

Imports: `memory` modules, `backends.sqlite.write_queue`, `_util` and `errors`; apsw.
"""
