"""The index of memories by their words: made from the journal, for all timelines and forks."""

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
from ortet.memory.lexical.index_file import IndexFile, IndexLost, index_lost
from ortet.memory.lexical.reader import IDS_PER_LINE, LINES_PER_TIMELINE, SqliteIndexReader
from ortet.memory.lexical.sharedfile import SharedIndexFile
from ortet.memory.lexical.tokenizer import Tokenizer
from ortet.memory.records import TIERS, FactEnd, MemoryDocument

__all__ = ["IndexLost", "SqliteWordIndex", "text_hash"]

VERSION = 3
HASH_BYTES = 16

# A timeline has a line of documents for each tier, in which they are numbered without gaps: what
# stands beside a message is its number's neighbour, and how many there are is a difference.
# `total` is the number of tokens in the line so far. `words` are distinct; `counts` says how often
# each one occurs, where any occurs twice. `mark` is another one whenever the file was emptied.
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
    """What the same text has everywhere: vectors are kept by it."""
    return blake3(text.encode("utf-8", "surrogatepass")).digest(HASH_BYTES)


class _LineEnd(NamedTuple):
    """The end of a line: the id of its last document, and all tokens up to it."""

    id: int
    total: int


class SqliteWordIndex:
    """Any thread and process may use it. Opened at first use; see IndexFile for what can go wrong.

    To ask it: for each timeline of the spans, `add` what is behind `known`; then search. Both may
    raise Lost, when another process has emptied it or the file was damaged: then do both again.
    """

    def __init__(self, path: Path, *, busy_ms: int = 5000, shared: bool = False) -> None:
        """`shared`: with all others of this process that say so."""
        opened = partial(IndexFile, path, schema=_SCHEMA, version=VERSION, busy_ms=busy_ms)
        self.tokenizer = Tokenizer()
        self._file: IndexFile | SharedIndexFile = (
            SharedIndexFile(path, opened) if shared else opened()
        )

    @property
    def in_memory(self) -> bool:
        """Whether nothing could be written: then it lasts as long as this object."""
        return self._file.in_memory

    def indexed_seq(self, timeline: str) -> int:
        """The last event taken in; 0: none."""
        with self._file.transaction() as connection:
            row = connection.execute(_KNOWN, (timeline,)).get
            return int(row[1]) if row else 0

    def indexed_seqs(self, timelines: Iterable[str]) -> dict[str, int]:
        """The same of many; those of which nothing was taken in are left out."""
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
        """To be asked for before events are read: see `add`."""
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
        """Takes in all there is in events after < seq <= upto, in one transaction; `after` is
        what `known` said. What another process was faster with is passed over. Raises Lost when
        less is known than `after`, or it was emptied since `mark`: what was read before that may
        have been erased."""
        made = [tokenize_document(self.tokenizer, doc) for doc in docs]  # before the file is locked
        with self._file.transaction(write=True) as connection:
            if mark and connection.execute(_MARK).get != mark:
                raise index_lost("the index of memories was emptied while events were read")
            row = connection.execute(_KNOWN, (timeline,)).get
            no, known = row or (connection.execute(_BEGIN, (timeline,)).get, 0)
            if known < after:
                raise index_lost(f"events {known + 1} to {after} are not in the index of memories")
            if upto <= known:
                return
            _insert(connection, no, [row for row in made if known < row.doc.seq <= upto])
            connection.executemany(
                _END, [(end.key, no, end.seq, end.time) for end in ends if known < end.seq <= upto]
            )
            connection.execute(_MOVE, (upto, no))

    @contextmanager
    def open_reader(self) -> Iterator[SqliteIndexReader]:
        """All that is read in the block is of one moment."""
        with self._file.transaction() as connection:
            yield SqliteIndexReader(connection)

    def forget(self, timelines: Collection[str] | None) -> None:  # noqa: ARG002
        """All of it: a page of the file that was freed keeps what it held."""
        self.drop()

    def drop(self) -> None:
        """Empties it: nothing of what it held stays in the directory. Raises Unavailable."""
        self._file.empty()

    def close(self) -> None:
        self._file.close()


class TokenizedDocument(NamedTuple):
    doc: MemoryDocument
    length: int
    words: str
    counts: bytes | None
    hash: bytes


def tokenize_document(tokenizer: Tokenizer, doc: MemoryDocument) -> TokenizedDocument:
    """A document as it is kept: its distinct words, and how often each occurs if any does twice."""
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


def _insert(connection: apsw.Connection, no: int, made: list[TokenizedDocument]) -> None:
    tails: dict[int, _LineEnd] = {}
    rows = []
    for doc, length, words, counts, digest in sorted(made, key=lambda row: row.doc.seq):
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
