"""The index in PostgreSQL: what it holds, what it must not take in, a database that goes."""

from __future__ import annotations

import pytest

from ortet.backends.base import Timeline
from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.memory.base import IndexPage
from ortet.memory.lexical.index_file import IndexLost
from ortet.memory.lexical.search import search
from ortet.memory.postgres.index import PostgresWordIndex
from ortet.memory.records import EventSpan, FactEnd, MemoryDocument, Query, TimelinePath

LINE, OTHER = "a" * 32, "b" * 32


def said(seq: int, text: str, key: str = "") -> MemoryDocument:
    return MemoryDocument(seq, "semantic" if key else "working", text, time=seq, key=key)


def take(
    index: PostgresWordIndex, *docs: MemoryDocument, timeline: str = LINE, upto: int = 0
) -> None:
    state = index.index_state([timeline])
    known = state.indexed.get(timeline, 0)
    page = IndexPage(timeline, known, upto or max(doc.seq for doc in docs), docs, [])
    index.add_pages([page], state.mark)


def found(index: PostgresWordIndex, text: str, upto: int) -> list[int]:
    paths = [TimelinePath("", [EventSpan(LINE, 0, upto)])]
    return [one.seq for one in search(index, paths, Query(text)).found]


def test_texts_of_any_size_are_indexed(in_database: PostgresWordIndex) -> None:
    """More distinct words than one tsvector holds; none; many pages at once."""
    words = " ".join(f"w{'x' * 40}{n}" for n in range(40_000))
    take(in_database, said(1, words, "k1"), said(2, "!?", "k2"))
    assert found(in_database, f"w{'x' * 40}39999", 2) == [1]
    assert found(in_database, f"w{'x' * 40}17", 2) == [1]
    assert found(in_database, "nowhere", 2) == []
    pages = [
        IndexPage(f"{n:032x}", a, a + 2, [said(a + 1, f"n{n}"), said(a + 2, f"m{n}")], [])
        for n in range(3000)
        for a in (0, 2)
    ]
    names = [page.timeline for page in pages]
    in_database.add_pages(pages, in_database.index_state(names).mark)
    assert set(in_database.index_state(names).indexed.values()) == {4}


@pytest.mark.parametrize(
    "odd", ["it's", "back\\slash_x", "a&b|c", "'", "f(x):*", "日本語", "ñandú"]
)
def test_special_characters_in_a_word_are_not_query_syntax(
    in_database: PostgresWordIndex, odd: str
) -> None:
    take(in_database, said(1, f"before {odd} behind", "k1"), said(2, "nothing", "k2"))
    assert found(in_database, f"{odd} before", 2) == [1]


def test_keys_that_postgresql_text_cannot_hold_are_stored(in_database: PostgresWordIndex) -> None:
    state = in_database.index_state([])
    docs = [said(1, "zebra one", "k\0\ud800"), said(2, "zebra two", "long" * 5000)]
    in_database.add_pages([IndexPage(LINE, 0, 3, docs, [FactEnd(3, "k\0\ud800", 3)])], state.mark)
    paths = [TimelinePath("", [EventSpan(LINE, 0, 3)])]
    assert [one.key for one in search(in_database, paths, Query("zebra")).found] == ["long" * 5000]
    paths = [TimelinePath("", [EventSpan(LINE, 0, 2)])]
    assert len(search(in_database, paths, Query("zebra")).found) == 2


def test_a_page_read_before_an_erasure_is_refused(in_database: PostgresWordIndex) -> None:
    """Of timelines that were emptied since; others go on."""
    state = in_database.index_state([LINE, OTHER])
    in_database.forget([LINE])
    with pytest.raises(IndexLost):
        in_database.add_pages([IndexPage(LINE, 0, 1, [said(1, "erased")], [])], state.mark)
    in_database.add_pages([IndexPage(OTHER, 0, 1, [said(1, "kept")], [])], state.mark)
    take(in_database, said(1, "as it is now"))
    assert found(in_database, "now", 1) == [1]
    before = in_database.index_state([OTHER])
    in_database.forget(None)
    with pytest.raises(IndexLost):
        in_database.add_pages([IndexPage(OTHER, 1, 2, [said(2, "late")], [])], before.mark)


def test_a_gap_between_indexed_events_is_refused(in_database: PostgresWordIndex) -> None:
    take(in_database, said(1, "one"))
    mark = in_database.index_state([LINE]).mark
    with pytest.raises(IndexLost, match="events 2 to 4"):
        in_database.add_pages([IndexPage(LINE, 4, 5, [said(5, "five")], [])], mark)


def test_a_dropped_timeline_loses_its_index_rows(
    catalog: PostgresCatalog, in_database: PostgresWordIndex
) -> None:
    catalog.move([], verb="test", timelines=[Timeline(LINE), Timeline(OTHER)])
    for name in (LINE, OTHER):
        take(in_database, said(1, "zebra", "fact"), timeline=name)
    state = in_database.index_state([LINE, OTHER])
    assert state.indexed == {LINE: 1, OTHER: 1}
    catalog.drop_timeline(LINE)
    assert in_database.index_state([LINE, OTHER]).indexed == {OTHER: 1}
    assert catalog.client.run("SELECT count(*) FROM memory_terms") == [(1,)]
    with pytest.raises(IndexLost):  # by one who had read it before
        in_database.add_pages([IndexPage(LINE, 1, 2, [said(2, "late")], [])], state.mark)
    catalog.drop_timeline(OTHER)


def test_a_connection_lost_during_a_read_raises_lost_and_is_replaced(
    catalog: PostgresCatalog, in_database: PostgresWordIndex
) -> None:
    take(in_database, said(1, "zebra"))
    with pytest.raises(IndexLost), in_database.open_reader() as lookup:
        ((pid,),) = lookup._query("SELECT pg_backend_pid()")
        catalog.client.run("SELECT pg_terminate_backend(%s, 60000)", (pid,))
        lookup.timeline(LINE)
    assert found(in_database, "zebra", 1) == [1]
