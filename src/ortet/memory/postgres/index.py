"""Word index in PostgreSQL, shared by all hosts of a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import psycopg

from ortet.errors import OrtetError
from ortet.memory.base import IndexPage, IndexState
from ortet.memory.lexical.index import TokenizedDocument, tokenize_document
from ortet.memory.lexical.index_file import index_lost
from ortet.memory.lexical.tokenizer import Tokenizer
from ortet.memory.postgres.reader import IndexDamaged, PostgresIndexReader, encode_text
from ortet.memory.records import TIERS, FactEnd

_STANDING = """SELECT mark, name, known, gone FROM memory_marks
    LEFT JOIN memory_lines ON name = ANY (%s::text[])"""
_ADD = """SELECT memory_add(%(mark)s, %(names)s::text[], %(gone)s::bigint[], %(after)s::bigint[],
    %(upto)s::bigint[], %(of)s::int[], %(seqs)s::bigint[], %(tiers)s::int[], %(times)s::bigint[],
    %(importances)s::double precision[], %(sinces)s::bigint[], %(untils)s::bigint[],
    %(keys)b::bytea[], %(scopes)b::bytea[], %(lengths)s::bigint[], %(words)s::text[],
    %(often)b::bytea[], %(hashes)b::bytea[], %(ends_of)s::int[], %(end_keys)b::bytea[],
    %(end_seqs)s::bigint[], %(end_times)s::bigint[])"""
_VACUUM = "VACUUM (FULL) memory_docs, memory_terms, memory_ends"
# Every query has an index. The planner must use it, whatever its statistics say.
_SETTINGS = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off"

_MAX_BATCH_DOCUMENTS = 2000
_MAX_BATCH_BYTES = 8 << 20
"""Limits of one batch. A batch may hold pages of many timelines; it is one transaction."""
_NO_TABLE = "42P01"


class MemoryDatabase(Protocol):
    """Part of a catalog that the index needs: the connection in `backends.postgres`."""

    def run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]: ...

    def read_transaction(self, settings: str = "") -> Any: ...

    def dedicated_connection(self) -> Any: ...


class _IndexMark(NamedTuple):
    mark: UUID
    gone: dict[str, int]


class PostgresWordIndex:
    """`WordIndex` of a store that several hosts share.

    The database belongs to the catalog, which closes it. Missing tables or rows are created again
    from the journals.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self.tokenizer = Tokenizer()
        self._database = database

    def index_state(self, timelines: Iterable[str]) -> IndexState:
        rows = self._run(_STANDING, (list(timelines),))
        if not rows:  # another process deleted the mark row
            self._run("INSERT INTO memory_marks VALUES (gen_random_uuid())")
            self.forget(None)
            raise index_lost("the index of memories had no mark")
        known = {name: known for _, name, known, _ in rows if known}
        gone = {name: gone for _, name, _, gone in rows if gone}
        return IndexState(known, _IndexMark(rows[0][0], gone))

    def add_pages(self, pages: Iterable[IndexPage], mark: object) -> None:
        assert isinstance(mark, _IndexMark)
        batch = _PageBatch(mark)
        for page in pages:
            for part, docs in self._split_page(page):
                batch.add(part, docs)
                if batch.is_full:
                    self._add(batch)
                    batch = _PageBatch(mark)
        self._add(batch)

    def _split_page(self, page: IndexPage) -> Iterator[tuple[IndexPage, list[TokenizedDocument]]]:
        """Split a page that is larger than a batch."""
        after, size, docs = page.after, 0, list[TokenizedDocument]()
        for doc in sorted(page.docs, key=lambda doc: doc.seq):
            docs.append(tokenize_document(self.tokenizer, doc))
            size += len(docs[-1].words)
            if size > _MAX_BATCH_BYTES and doc.seq < page.upto:
                yield page._replace(after=after, upto=doc.seq), docs
                after, size, docs = doc.seq, 0, []
        yield page._replace(after=after), docs

    def _add(self, batch: _PageBatch) -> None:
        if batch.pages:
            ((why,),) = self._run(_ADD, batch.values())
            if why:
                raise index_lost(why)

    @contextmanager
    def open_reader(self) -> Iterator[PostgresIndexReader]:
        try:
            with self._database.read_transaction(_SETTINGS) as connection:
                lookup = PostgresIndexReader(connection)
                try:
                    yield lookup
                except IndexDamaged as error:
                    damaged, why = lookup.mark(), error
                else:
                    return
        except OrtetError as error:
            raise self._recover_from(error) from error
        self._run("SELECT memory_empty(%s)", (damaged,))
        raise index_lost(f"the index of memories lacks rows ({why})")

    def forget(self, timelines: Collection[str] | None) -> None:
        """Delete the documents of timelines, and rewrite the tables.

        A deleted row stays in its page until the table is rewritten.
        """
        if timelines is None:
            self._run("SELECT memory_empty(NULL)")
        elif timelines:
            self._run("SELECT memory_forget(%s::text[])", (sorted(timelines),))
            with self._database.dedicated_connection() as connection:
                connection.execute(_VACUUM)

    def close(self) -> None:
        """Do nothing: the database belongs to the catalog."""

    def _run(self, statement: str, values: Any = ()) -> list[tuple[Any, ...]]:
        try:
            return self._database.run(statement, values)
        except OrtetError as error:
            raise self._recover_from(error) from error

    def _recover_from(self, error: OrtetError) -> OrtetError:
        """Recover from an error, and return the error for the caller."""
        cause = error.__cause__
        if not isinstance(cause, psycopg.Error):
            return error
        if cause.sqlstate == _NO_TABLE:
            self._database.run("SELECT memory_make()")
            return index_lost(f"the index of memories was not there ({cause})")
        if error.kind == "database_gone":  # the connection broke; the next call waits for a new one
            return index_lost(error.message)
        return error


class _PageBatch:
    """Pages of several timelines. Pages of one timeline are consecutive."""

    def __init__(self, mark: _IndexMark) -> None:
        self._mark = mark
        self.pages: dict[str, IndexPage] = {}
        self._docs: list[tuple[str, TokenizedDocument]] = []
        self._ends: list[tuple[str, FactEnd]] = []
        self._size = 0

    def add(self, page: IndexPage, docs: list[TokenizedDocument]) -> None:
        before = self.pages.get(page.timeline)
        self.pages[page.timeline] = page if before is None else before._replace(upto=page.upto)
        self._docs += [(page.timeline, one) for one in docs]
        self._ends += [(page.timeline, e) for e in page.ends if page.after < e.seq <= page.upto]
        self._size += sum(len(one.words) for one in docs)

    @property
    def is_full(self) -> bool:
        return (
            max(len(self._docs), len(self._ends), len(self.pages)) >= _MAX_BATCH_DOCUMENTS
            or self._size >= _MAX_BATCH_BYTES
        )

    def values(self) -> dict[str, Any]:
        names = sorted(self.pages)
        numbers = {name: number for number, name in enumerate(names, 1)}
        docs = [one.doc for _, one in self._docs]
        return {
            "mark": self._mark.mark,
            "names": names,
            "gone": [self._mark.gone.get(name, 0) for name in names],
            "after": [self.pages[name].after for name in names],
            "upto": [self.pages[name].upto for name in names],
            "of": [numbers[name] for name, _ in self._docs],
            "seqs": [doc.seq for doc in docs],
            "tiers": [TIERS.index(doc.tier) for doc in docs],
            "times": [doc.time for doc in docs],
            "importances": [doc.importance for doc in docs],
            "sinces": [doc.since for doc in docs],
            "untils": [doc.until for doc in docs],
            "keys": [encode_text(doc.key) for doc in docs],
            "scopes": [encode_text(doc.scope) for doc in docs],
            "lengths": [one.length for _, one in self._docs],
            "words": [one.words for _, one in self._docs],
            "often": [one.counts for _, one in self._docs],
            "hashes": [one.hash for _, one in self._docs],
            "ends_of": [numbers[name] for name, _ in self._ends],
            "end_keys": [encode_text(end.key) for _, end in self._ends],
            "end_seqs": [end.seq for _, end in self._ends],
            "end_times": [end.time for _, end in self._ends],
        }
