"""Word index of all timelines in a SQLite file, built from the journals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw
from blake3 import blake3

from ortet.memory.base import IndexPage, IndexState
from ortet.memory.lexical.index_file import IndexFile, IndexLost, SharedIndexFile, index_lost
from ortet.memory.lexical.reader import SqliteIndexReader
from ortet.memory.lexical.tokenizer import Tokenizer
from ortet.memory.records import IDS_PER_LINE, LINES_PER_TIMELINE, TIERS, FactEnd, MemoryDocument

__all__ = ["IndexLost", "SqliteWordIndex", "text_hash"]

VERSION = 3
HASH_BYTES = 16

# A timeline has one line of documents for each tier, numbered without gaps. The neighbour of a
# message is the next number, and a count is a difference. `total` is the number of tokens in the
# line so far. `words` are distinct. `counts` says how often each occurs, if any occurs twice.
# `mark` changes whenever the file is emptied.
_SCHEMA = """
CREATE TABLE timelines (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, known INTEGER NOT NULL);
CREATE TABLE docs (
    id INTEGER PRIMARY KEY, line INTEGER NOT NULL, seq INTEGER NOT NULL, time INTEGER NOT NULL,
    importance REAL NOT NULL, since INTEGER NOT NULL, until INTEGER NOT NULL, key TEXT NOT NULL,
    scope TEXT NOT NULL, length INTEGER NOT NULL, total INTEGER NOT NULL, words TEXT NOT NULL,
    counts BLOB, hash BLOB NOT NULL);
CREATE INDEX places ON docs (line, seq, total);
CREATE TABLE ends (
    key TEXT NOT NULL, timeline INTEGER NOT NULL, seq INTEGER NOT NULL, time INTEGER NOT NULL,
    PRIMARY KEY (key, timeline, seq)) WITHOUT ROWID;
CREATE VIRTUAL TABLE terms USING fts5 (
    words, content='', detail=none, columnsize=0, tokenize="ascii tokenchars '_.:/\\@''+#-'");
CREATE TABLE marks (no INTEGER PRIMARY KEY CHECK (no = 1), mark BLOB NOT NULL);
INSERT INTO marks VALUES (1, randomblob(16));
"""
_MARK = "SELECT mark FROM marks"
_KNOWN = "SELECT no, known FROM timelines WHERE name = ?"
_BEGIN = "INSERT INTO timelines (name, known) VALUES (?, 0) RETURNING no"
_MOVE = "UPDATE timelines SET known = ? WHERE no = ?"
_LAST = "SELECT id, total FROM docs WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1"
_DOC = "INSERT INTO docs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_TERMS = "INSERT INTO terms (rowid, words) VALUES (?, ?)"
_END = "INSERT OR IGNORE INTO ends VALUES (?, ?, ?, ?)"


def text_hash(text: str) -> bytes:
    """Return the hash of a text. It is the key of its vector."""
    return blake3(text.encode("utf-8", "surrogatepass")).digest(HASH_BYTES)


class _LineEnd(NamedTuple):
    """End of a line: the id of its last document, and the number of tokens up to it."""

    id: int
    total: int


class SqliteWordIndex:
    """`WordIndex` in a SQLite file, for several threads and processes. Opened at first use.

    To search, add missing events of all timelines, then read. Both may raise IndexLost, if another
    process emptied the file or it was damaged. Then repeat both. See `IndexFile` for errors.
    """

    def __init__(self, path: Path, *, busy_ms: int = 5000, shared: bool = False) -> None:
        """Create an index. `shared` uses connections of the whole process."""
        opened = partial(IndexFile, path, schema=_SCHEMA, version=VERSION, busy_ms=busy_ms)
        self.tokenizer = Tokenizer()
        self._file: IndexFile | SharedIndexFile = (
            SharedIndexFile(path, opened) if shared else opened()
        )

    @property
    def in_memory(self) -> bool:
        """True if the file cannot be written. The index then lives as long as this object."""
        return self._file.in_memory

    def indexed_seq(self, timeline: str) -> int:
        """Return the last indexed event of a timeline, or 0."""
        with self._file.transaction() as connection:
            row = connection.execute(_KNOWN, (timeline,)).get
            return int(row[1]) if row else 0

    def indexed_seqs(self, timelines: Iterable[str]) -> dict[str, int]:
        """Return the last indexed event of many timelines. Unknown ones are left out."""
        with self.open_reader() as lookup:
            return {name: known for name, (_, known) in lookup.timelines(timelines).items()}

    def index_state(self, timelines: Iterable[str]) -> IndexState:
        with self._file.transaction() as connection:
            rows = SqliteIndexReader(connection).timelines(timelines)
            known = {name: known for name, (_, known) in rows.items()}
            return IndexState(known, bytes(connection.execute(_MARK).get))

    def add_pages(self, pages: Iterable[IndexPage], mark: object) -> None:
        assert isinstance(mark, bytes)
        for page in pages:
            self.add(*page, mark=mark)

    def mark(self) -> bytes:
        """Return the mark. Read it before the events that are passed to `add`."""
        with self._file.transaction() as connection:
            return bytes(connection.execute(_MARK).get)

    def add(
        self,
        timeline: str,
        after: int,
        upto: int,
        docs: Iterable[MemoryDocument],
        ends: Iterable[FactEnd],
        *,
        mark: bytes = b"",
    ) -> None:
        """Add everything in events after < seq <= upto, in one transaction.

        Args:
            timeline: Name of the timeline.
            after: Result of `indexed_seq`. Events that another process added first are skipped.
            upto: Last event.
            docs: Documents in these events.
            ends: Fact ends in these events.
            mark: Result of `mark`, read before the events.

        Raises:
            IndexLost: If events before `after` are missing, or the index was emptied since `mark`.
                The documents may have been erased meanwhile.
        """
        tokenized = [
            tokenize_document(self.tokenizer, doc) for doc in docs
        ]  # before the file is locked
        with self._file.transaction(write=True) as connection:
            if mark and connection.execute(_MARK).get != mark:
                raise index_lost("the index of memories was emptied while events were read")
            row = connection.execute(_KNOWN, (timeline,)).get
            no, known = row or (connection.execute(_BEGIN, (timeline,)).get, 0)
            if known < after:
                raise index_lost(f"events {known + 1} to {after} are not in the index of memories")
            if upto <= known:
                return
            _insert(connection, no, [row for row in tokenized if known < row.doc.seq <= upto])
            connection.executemany(
                _END, [(end.key, no, end.seq, end.time) for end in ends if known < end.seq <= upto]
            )
            connection.execute(_MOVE, (upto, no))

    @contextmanager
    def open_reader(self) -> Iterator[SqliteIndexReader]:
        """Open a reader. All reads in the block see the same moment."""
        with self._file.transaction() as connection:
            yield SqliteIndexReader(connection)

    def forget(self, timelines: Collection[str] | None) -> None:  # noqa: ARG002
        """Empty the whole index: freed pages of the file still contain deleted text."""
        self.drop()

    def drop(self) -> None:
        """Empty the index. Nothing of its content stays in the directory.

        Raises:
            Unavailable: If another process locks the file.
        """
        self._file.empty()

    def close(self) -> None:
        self._file.close()


class TokenizedDocument(NamedTuple):
    """A document with its tokens, as the index stores it."""

    doc: MemoryDocument
    length: int
    words: str
    counts: bytes | None
    hash: bytes


def tokenize_document(tokenizer: Tokenizer, doc: MemoryDocument) -> TokenizedDocument:
    """Return a document as it is stored: distinct words, and counts if any occurs twice."""
    tokens = tokenizer.tokens(f"{doc.speaker} {doc.about} {doc.text}")
    counted = Counter(tokens)
    repeated = len(counted) < len(tokens)
    return TokenizedDocument(
        doc,
        len(tokens),
        " ".join(counted),
        bytes(min(count, 255) for count in counted.values()) if repeated else None,
        text_hash(doc.text),
    )


def _insert(connection: apsw.Connection, no: int, documents: list[TokenizedDocument]) -> None:
    tails: dict[int, _LineEnd] = {}
    rows = []
    for doc, length, words, counts, digest in sorted(documents, key=lambda row: row.doc.seq):
        line = no * LINES_PER_TIMELINE + TIERS.index(doc.tier)
        id_, total = tails[line] if line in tails else _last(connection, line)
        id_, total = tails[line] = _LineEnd(id_ + 1, total + length)
        when = (doc.time, doc.importance, doc.since, doc.until)
        named = (doc.key, doc.scope)
        rows.append((id_, line, doc.seq, *when, *named, length, total, words, counts, digest))
    connection.executemany(_DOC, rows)
    connection.executemany(_TERMS, [(row[0], row[11]) for row in rows])


def _last(connection: apsw.Connection, line: int) -> _LineEnd:
    first = line * IDS_PER_LINE
    row = connection.execute(_LAST, (first, first + IDS_PER_LINE - 1)).get
    return _LineEnd(*row) if row else _LineEnd(first, 0)
