"""Which documents have a term: the same, however it is found out."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.memory.base import IndexPage, WordIndex
from ortet.memory.lexical import postings
from ortet.memory.lexical.index import SqliteWordIndex
from ortet.memory.lexical.postings import SqlitePostings
from ortet.memory.lexical.search import SearchEffort, search
from ortet.memory.lexical.visibility import visible_documents
from ortet.memory.postgres import reader
from ortet.memory.postgres.index import PostgresWordIndex
from ortet.memory.records import EventSpan, MemoryDocument, Query, Tier, TimelinePath

WORDS = [f"term{letter}" for letter in "abcdefghijklmnop"]
EVERY = 60
"""Events of each timeline."""
WAYS = {
    "asked one by one": {"MAX_RANGES_QUERIED": 10**6},
    "picked": {"MAX_RANGES_QUERIED": 0, "MAX_IDS_FILTERED": 10**6},
    "read": {"MAX_RANGES_QUERIED": 0, "MAX_IDS_FILTERED": 0, "MAX_RANGE_READ": 10**6},
    "asked": {"MAX_RANGES_QUERIED": 0, "MAX_IDS_FILTERED": 0, "MAX_RANGE_READ": 0},
    "read and asked": {"MAX_RANGES_QUERIED": 0, "MAX_IDS_FILTERED": 0, "MAX_RANGE_READ": 35},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteWordIndex]:
    made = SqliteWordIndex(tmp_path_factory.mktemp("postings") / "index.db")
    fill(made)
    yield made
    made.close()


def fill(index: WordIndex) -> None:
    """Twelve timelines, each a fork of the one before, with words of very different frequency."""
    chance = random.Random(11)
    tiers: list[Tier] = ["working", "working", "working", "semantic", "episodic"]
    for line in range(12):
        docs = []
        for seq in range(line * EVERY + 1, (line + 1) * EVERY + 1):
            words = [word for number, word in enumerate(WORDS) if chance.random() < 0.7**number]
            docs.append(MemoryDocument(seq, chance.choice(tiers), " ".join(words), time=seq))
        page = IndexPage(f"line{line}", 0, (line + 1) * EVERY, docs, [])
        index.add_pages([page], index.index_state([]).mark)


def chain(*lines: int) -> TimelinePath:
    return TimelinePath(
        "", [EventSpan(f"line{line}", line * EVERY, (line + 1) * EVERY) for line in lines]
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lines", [(3,), (1, 2), (0, 4, 5, 9), tuple(range(12))])
def test_every_lookup_method_counts_and_finds_the_same(
    index: SqliteWordIndex, monkeypatch: pytest.MonkeyPatch, way: str, lines: tuple[int, ...]
) -> None:
    with index.open_reader() as lookup:
        visible = visible_documents(lookup, [chain(*lines)], Query(""))
        wanted = {}
        for word in WORDS:
            found = [
                [
                    id_
                    for id_, words in lookup.terms.document_words(one.low, one.high)
                    if word in words.split()
                ]
                for one in visible.ranges
            ]
            wanted[word] = [id_ for ids in found for id_ in reversed(ids)]
        for name, value in WAYS[way].items():
            monkeypatch.setattr(postings, name, value)
        exact = SqlitePostings(lookup.terms, visible, limit=10**6)
        assert exact.count([*WORDS, "nowhere"]) == {
            **{word: len(ids) for word, ids in wanted.items()},
            "nowhere": 0,
        }
        assert {word: exact.ids_with_term(word) for word in WORDS} == wanted
        assert exact.nearest(WORDS[0], 7) == wanted[WORDS[0]][:7]


def test_every_lookup_method_estimates_the_same_counts(
    index: SqliteWordIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    inferred = []
    for settings in WAYS.values():
        with monkeypatch.context() as patch, index.open_reader() as lookup:
            for name, value in settings.items():
                patch.setattr(postings, name, value)
            visible = visible_documents(lookup, [chain(*range(12))], Query(""))
            inferred.append(SqlitePostings(lookup.terms, visible, limit=40).count(WORDS))
    assert inferred == [inferred[0]] * len(WAYS)
    assert inferred[0][WORDS[0]] == visible.total  # in every one of those looked at
    assert inferred[0][WORDS[1]] == pytest.approx(0.7 * visible.total, rel=0.25)


def test_every_lookup_method_gives_the_same_search_answers(
    index: SqliteWordIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        chain(*range(12)),
        chain(*range(6)),
        TimelinePath("agent", [EventSpan("line7", 0, 8 * EVERY)]),
    ]
    effort = SearchEffort(postings=150, documents=30, counted=40)
    answers = []
    for settings in WAYS.values():
        with monkeypatch.context() as patch:
            for name, value in settings.items():
                patch.setattr(postings, name, value)
            answers.append(search(index, paths, Query(" ".join(WORDS), k=25), effort=effort))
    assert answers == [answers[0]] * len(WAYS)
    assert len(answers[0].found) == 25


def test_postings_without_visible_documents_are_empty(index: SqliteWordIndex) -> None:
    with index.open_reader() as lookup:
        empty = SqlitePostings(lookup.terms, visible_documents(lookup, [], Query("")), limit=5)
        assert empty.count(["terma"]) == {"terma": 0}
        assert empty.ids_with_term("terma") == empty.nearest("terma", 3) == []


DATABASE_WAYS = {
    "looked at": {},
    "looked at in parts": {"SCAN_ALL_LIMIT": 0, "SAMPLE_SIZE": 7},
    "looked at in many parts": {"SCAN_ALL_LIMIT": 0, "SAMPLE_SIZE": 7, "SAMPLE_MARGIN": 0},
    "by the index of terms": {"SCAN_ALL_LIMIT": 0, "SAMPLE_SIZE": 1},
    "too many": {
        "SCAN_ALL_LIMIT": 0,
        "SAMPLE_SIZE": 1,
        "MAX_INDEX_IDS": 5,
        "INDEX_IDS_PER_VISIBLE": 0,
    },
}


@pytest.mark.parametrize("way", DATABASE_WAYS)
def test_a_database_counts_and_finds_alike(
    index: SqliteWordIndex,
    in_database: PostgresWordIndex,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    for name, value in DATABASE_WAYS[way].items():
        monkeypatch.setattr(reader, name, value)
    fill(in_database)
    answers_alike(index, in_database)


def answers_alike(index: SqliteWordIndex, in_database: PostgresWordIndex) -> None:
    for lines in ((3,), (0, 4, 5, 9), tuple(range(12))):
        for limit in (40, 10**6):
            with index.open_reader() as lookup, in_database.open_reader() as other:
                wanted, found = (
                    one.postings(visible_documents(one, [chain(*lines)], Query("")), limit=limit)
                    for one in (lookup, other)
                )
                assert found.count([*WORDS, "nowhere"]) == wanted.count([*WORDS, "nowhere"])
                for word in (WORDS[0], WORDS[3], WORDS[9]):
                    assert other_ids(found.nearest(word, 7)) == other_ids(wanted.nearest(word, 7))
                    assert other_ids(found.ids_with_term(word)) == other_ids(
                        wanted.ids_with_term(word)
                    )
                    assert other_ids(found.nearest(word, 9)) == other_ids(wanted.nearest(word, 9))
        paths = [
            chain(*lines),
            chain(*range(6)),
            TimelinePath("agent", [EventSpan("line7", 0, 8 * EVERY)]),
        ]
        effort = SearchEffort(postings=150, documents=30, counted=40)
        query = Query(" ".join(WORDS), k=25)
        expected = search(index, paths, query, effort=effort)
        assert search(in_database, paths, query, effort=effort) == expected


@pytest.mark.parametrize("way", ["looked at", "by the index of terms"])
def test_the_row_order_in_the_database_does_not_change_the_answers(
    index: SqliteWordIndex,
    catalog: PostgresCatalog,
    in_database: PostgresWordIndex,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """As after rows were removed and others took their place; and few terms to a walk."""
    for name, value in DATABASE_WAYS[way].items():
        monkeypatch.setattr(reader, name, value)
    monkeypatch.setattr(reader, "_COLUMNS", 3)
    fill(in_database)
    for third in (2, 1):
        catalog.client.run("UPDATE memory_terms SET part = part WHERE id %% 3 = %s", (third,))
    rows = catalog.client.run("SELECT id FROM memory_terms ORDER BY ctid")
    assert rows != sorted(rows)
    answers_alike(index, in_database)


def other_ids(ids: list[int]) -> list[int]:
    """Both number the timelines in the order in which they were taken in; from which number on is
    the database's own."""
    return [id_ - ids[0] for id_ in ids]
