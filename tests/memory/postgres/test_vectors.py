"""Vectors in PostgreSQL: compared there or on the host, with the answers of a file; made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.fixtures.postgres import Shared, shared
from tests.fixtures.waiting import WAIT
from tests.memory.embedding import Corpus, Failing, Hashing

from ortet.backends.postgres.catalog import PostgresCatalog
from ortet.errors import Invalid
from ortet.ids import SystemClock
from ortet.memory.base import IndexPage, SemanticIndex, SemanticMatches
from ortet.memory.lexical.index import text_hash
from ortet.memory.postgres import vectors as postgres_meanings
from ortet.memory.postgres.index import PostgresWordIndex
from ortet.memory.postgres.index_factory import PostgresIndexFactory
from ortet.memory.postgres.vectors import PostgresSemanticIndex, PostgresVectorStore
from ortet.memory.records import TIERS, EventSpan
from ortet.memory.vectors.index import LocalSemanticIndex

SPANS = [EventSpan("a", 3, 20), EventSpan("b", 0, 250)]


@pytest.fixture(scope="module")
def plain(postgres: Shared) -> Iterator[PostgresCatalog]:
    """In a database without pgvector, for one who may not create it."""
    name = f"plain_{uuid4().hex[:8]}"
    with psycopg.connect(shared().url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN")
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        connection.execute(f"GRANT CREATE ON DATABASE {name} TO {name}")
        made = PostgresCatalog(shared().url(name).replace("postgres@", f"{name}@"))
        connection.execute(f"REVOKE CREATE ON DATABASE {name} FROM {name}")
    yield made
    made.close()
    with psycopg.connect(shared().url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        connection.execute(f"DROP ROLE {name}")


class World:
    """The same documents in a file and in a database, asked by meaning."""

    def __init__(self, directory: Path, catalog: PostgresCatalog) -> None:
        self.catalog = catalog
        self.told = Corpus(directory)
        self.told.tell("a", *(f"text {n}" for n in range(1, 31)))
        self.told.tell("b", *(f"other {n % 100}" for n in range(300)))
        self.index = PostgresWordIndex(catalog.client)
        self.index.forget(None)
        PostgresVectorStore(catalog.client, "").empty()
        mark = self.index.index_state([]).mark
        pages = [IndexPage(name, 0, len(docs), docs, []) for name, docs in self.told.docs.items()]
        self.index.add_pages(pages, mark)

    def in_file(
        self, embedder: Hashing, text: str, limit: int, *spans: EventSpan
    ) -> SemanticMatches:
        path = self.told.directory / "vectors.db"
        vectors = LocalSemanticIndex(path, embedder, fill_timeout=WAIT, query_timeout=WAIT)
        found = self.told.ask(vectors, text, *spans, limit=limit)
        vectors.close()
        return found

    def in_database(
        self, embedder: Hashing, text: str, limit: int, *spans: EventSpan
    ) -> SemanticMatches:
        meanings = self.meanings(embedder)
        asked = meanings.ranker(self.index, self.told.news)
        found = asked.rank(spans, TIERS, text, limit)
        meanings.close()
        return found

    def meanings(self, embedder: Hashing) -> SemanticIndex:
        store = PostgresVectorStore(self.catalog.client, embedder.name)
        options: dict[str, Any] = {"fill_timeout": WAIT, "query_timeout": WAIT}
        if store.has_pgvector:
            return PostgresSemanticIndex(store, embedder, SystemClock(), **options)
        return LocalSemanticIndex(store, embedder, **options)


@pytest.fixture(params=["compared there", "compared here"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, catalog: PostgresCatalog
) -> Iterator[World]:
    here = request.param == "compared here"
    made = World(tmp_path, request.getfixturevalue("plain") if here else catalog)
    yield made
    made.told.index.close()


def test_vectors_in_postgres_rank_like_vectors_in_a_file(world: World) -> None:
    for size in (8, 64):
        embedder = Hashing(f"hashing {size}", size)
        for text in ("text 17", "a question"):
            for limit in (1, 25, 1000):
                there = world.in_database(embedder, text, limit, *SPANS)
                assert there == world.in_file(embedder, text, limit, *SPANS)
                assert there.status == "all"


@pytest.mark.parametrize("way", ["walked", "walked in vain"])
def test_vectors_in_postgres_rank_alike_when_all_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    walked = []
    walk = PostgresVectorStore.walk

    def told(store: PostgresVectorStore, statement: str, values: Any) -> list[tuple[Any, ...]]:
        walked.append(walk(store, statement if way == "walked" else "SELECT 1 / 0", values))
        return walked[-1]

    monkeypatch.setattr(PostgresVectorStore, "walk", told)
    monkeypatch.setattr(postgres_meanings, "SCAN_MIN_EVENTS", 0)
    monkeypatch.setattr(postgres_meanings, "SCAN_MAX_RATIO", 10**6)
    embedder = Hashing()
    for limit in (1, 25, 1000):
        there = world.in_database(embedder, "text 17", limit, *SPANS)
        assert there == world.in_file(embedder, "text 17", limit, *SPANS)
    spans = [*SPANS, EventSpan("a", 10, 25)]  # some of it twice
    twice = world.in_database(embedder, "text 17", 1000, *spans)
    compared = PostgresVectorStore(world.catalog.client, embedder.name).has_pgvector
    assert bool(walked) == (compared and way == "walked")
    monkeypatch.setattr(postgres_meanings, "SCAN_MIN_EVENTS", 10**9)
    assert world.in_database(embedder, "text 17", 1000, *spans) == twice


def test_vectors_are_compared_in_the_database_only_with_pgvector(
    catalog: PostgresCatalog, plain: PostgresCatalog
) -> None:
    for made, kind in ((catalog, PostgresSemanticIndex), (plain, LocalSemanticIndex)):
        meanings = PostgresIndexFactory(made.client).semantic_index(Hashing(), SystemClock())
        assert isinstance(meanings, kind)
        meanings.close()
    assert PostgresVectorStore(plain.client, "any").column_type == "bytea"


def test_a_text_embedded_by_one_host_is_not_embedded_by_another(world: World) -> None:
    one, two = Hashing(), Hashing()
    first = world.in_database(one, "which?", 5, *SPANS)
    assert len(one.texts) == len(set(one.texts)) == 17 + 100 + 1
    assert world.in_database(two, "which?", 5, *SPANS) == first
    assert two.texts == ["which?"]


def test_a_text_indexed_later_is_embedded_and_found(world: World) -> None:
    embedder = Hashing()
    meanings = world.meanings(embedder)
    asked = meanings.ranker(world.index, world.told.news)
    asked.rank(SPANS, TIERS, "q", 3)
    world.told.tell("a", "a late one")
    state = world.index.index_state(["a"])
    world.index.add_pages([IndexPage("a", 30, 31, world.told.docs["a"][30:], [])], state.mark)
    near = asked.rank([EventSpan("a", 0, 31)], TIERS, "a late one", 1)
    assert near.status == "all"
    assert near.places[0][:2] == ("a", 31)
    assert embedder.texts.count("a late one") == 2  # it, and the question
    meanings.close()


def test_a_failing_embedder_is_reported_in_the_status(world: World) -> None:
    near = world.in_database(Failing(), "text 9", 5, *SPANS)
    assert near.places == []
    assert near.status.startswith("failed: OSError: no such host")


def test_vectors_of_erased_texts_go_and_lost_tables_are_rebuilt(world: World) -> None:
    embedder = Hashing()
    first = world.in_database(embedder, "text 9", 5, *SPANS)
    store = PostgresVectorStore(world.catalog.client, "")
    known = PostgresVectorStore(world.catalog.client, embedder.name)
    assert store.forget([text_hash("text 9"), text_hash("nobody said this")]) == 1
    assert known.get([text_hash("text 9")]) == {}
    assert len(known.get([text_hash("text 10")])) == 1
    assert world.in_database(embedder, "text 9", 5, *SPANS) == first
    world.catalog.client.run("DROP TABLE memory_vectors")
    assert known.get([text_hash("text 10")]) == {}
    assert world.in_database(embedder, "text 9", 5, *SPANS) == first


def test_a_vector_computed_before_an_erasure_is_not_stored(world: World) -> None:
    store = PostgresVectorStore(world.catalog.client, "m")
    mark, size = store.state()
    assert size == 0
    store.forget([])
    rows = [(b"h" * 16, b"\0\x3c\0\0")]
    assert not store.put(mark, 2, rows)
    assert store.put(store.state()[0], 2, rows)
    assert store.get([b"h" * 16]) == dict(rows)
    with pytest.raises(Invalid) as caught:
        store.put(store.state()[0], 3, [(b"i" * 16, b"\0\x3c\0\0\0\0")])
    assert caught.value.kind == "vector_size"
    assert PostgresVectorStore(world.catalog.client, "other").prune() == 1
