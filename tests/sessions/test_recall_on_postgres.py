"""Recall where hosts share a store in PostgreSQL: what one has taken in all find, and the answers
are those of a store in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread, get_ident
from typing import Any

import psycopg
import pytest
from tests.fixtures.postgres import shared
from tests.fixtures.stores import OpenAs, host_environ
from tests.fixtures.talk import TALK
from tests.fixtures.waiting import eventually
from tests.memory.embedding import Hashing

from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.testing.clock import ManualClock

TABLES = ("memory_docs", "memory_terms", "memory_ends", "memory_lines", "memory_marks")
QUESTIONS = ["grilled sardines", "where summer", "cat Momo", "猫の名前", "parseHTTPResponse", "tea"]


def asked(schema: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    options = f"-csearch_path={schema}"
    with psycopg.connect(shared().url(), autocommit=True, options=options) as connection:
        cursor = connection.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def rows(schema: str, table: str = "memory_docs") -> int:
    return int(asked(schema, f"SELECT count(*) FROM {table}")[0][0])


def live(hub: Hub) -> None:
    """Messages, facts that are given up, a fork, an episode; in two languages."""
    with hub.session("s") as s:
        for role, text in TALK:
            s.say(role, text)
            tick(hub)
        s.say("user", "猫の名前はモモです")
        s.say("user", "the error is in parseHTTPResponse of src/net/http_client.py")
        old = s.learn("the user drinks tea", about="drinks", scope="agent")
        tick(hub)
        s.commit("one")
        s.learn("the user drinks green tea", supersedes=old, scope="agent")
        s.commit("two")
        (kid,) = s.fork(machine=False)
        kid.say("user", "only here: sardines are fish")
        kid.pause()
        tick(hub)
        s.say("user", "Momo is well again")
        s.milestone("Momo the cat was sick in summer", outcome="done")
    tick(hub)
    with hub.session("t") as t:
        t.say("user", "what does Momo eat? Sardines?")


def tick(hub: Hub) -> None:
    if isinstance(hub.clock, ManualClock):
        hub.clock.advance(10**9)


def answers(hub: Hub, questions: list[str] = QUESTIONS) -> list[Any]:
    view = hub.get("s")
    then = view.messages()[3].time
    found = []
    for ask in (hub.recall, view.recall):
        for text in questions:
            for more in ({}, {"at": then}, {"since": then}, {"scope": "agent"}):
                found += [
                    (h.text, h.tier, h.role, h.score, h.scores, h.source.seq, h.source.name)
                    for h in ask(text, explain=True, **more)
                ]
    return found


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All statements that the store asks its database here: its threads tell others of what was
    said before, at any time."""
    seen: list[str] = []
    real, here = psycopg.Connection.execute, get_ident()

    def execute(self: Any, statement: Any, *rest: Any, **more: Any) -> Any:
        if get_ident() == here:
            seen.append(str(statement))
        return real(self, statement, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", execute)
        yield seen


def test_recall_on_postgres_equals_recall_on_a_directory_store(tmp_path: Path, url: str) -> None:
    found = []
    for store in (str(tmp_path / "store"), url):
        clock = ManualClock()
        with open_hub(store, environ=host_environ(tmp_path, "one"), clock=clock) as hub:
            live(hub)
            found.append(answers(hub))
    assert found[0] == found[1]
    assert len(found[0]) > 40


def test_events_indexed_by_one_host_are_not_indexed_again_by_others(
    host: OpenAs, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = host("one")
    live(one)
    first = answers(one)
    many = rows(schema)
    other = host("two")
    with monkeypatch.context() as patch:
        patch.setattr("ortet.sessions.memory.recall.document", None)  # so it makes none
        assert answers(other) == first
    assert rows(schema) == many
    assert not list((other.root / "local" / "memory").glob("*"))
    with other.session("s") as s:
        s.say("user", "and the parrot is called Coco")
    assert one.recall("parrot", 1)[0].text.endswith("Coco")
    assert rows(schema) == many + 1


def test_recall_reads_all_found_events_in_one_query(
    host: OpenAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = host("one")
    with hub.session("s") as s:
        s.say_all([("user", f"sardines, {number}") for number in range(30)])
        for number in range(5):
            s.learn(f"sardine {number} is a fish", scope="agent")
        s.commit("told")
        s.recall("sardines")  # which takes them in
        with counted(monkeypatch) as seen:
            assert len(s.recall("sardines", 30)) == 30
    assert sum("FROM events" in one for one in seen) == 1
    with hub.session("t") as other:
        other.recall("fish")
        with counted(monkeypatch) as seen:
            assert len(other.recall("fish")) == 5  # of what is shared
    assert sum("FROM events" in one for one in seen) == 1


def test_hosts_that_fill_it_at_once_double_nothing(host: OpenAs, schema: str) -> None:
    one = host("one")
    live(one)
    hubs = [host(name) for name in ("two", "three", "four")]
    begin = Barrier(len(hubs))
    found: list[list[str]] = []

    def ask(hub: Hub) -> None:
        begin.wait()
        found.append([hit.text for hit in hub.recall("Momo sardines", 20)])

    threads = [Thread(target=ask, args=(hub,)) for hub in hubs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert found[0] == found[1] == found[2] == [h.text for h in one.recall("Momo sardines", 20)]
    twice = "SELECT line, seq FROM memory_docs GROUP BY 1, 2 HAVING count(*) > 1"
    assert asked(schema, twice) == []
    assert rows(schema, "memory_terms") == rows(schema)


HARM = [
    *(f"DROP TABLE {table}" for table in TABLES),
    "DELETE FROM memory_terms WHERE mod(id, 2) = 0",
    "DELETE FROM memory_docs WHERE seq > 3",
    "DELETE FROM memory_marks",
    "TRUNCATE memory_terms",
    "SELECT memory_empty(NULL)",
]


def test_damaged_recall_rows_are_rebuilt(host: OpenAs, schema: str) -> None:
    hub = host("one")
    live(hub)
    first = [answers(hub, QUESTIONS[:2]), rows(schema), rows(schema, "memory_terms")]
    for harm in HARM:
        asked(schema, harm)
        again = [answers(hub, QUESTIONS[:2]), rows(schema), rows(schema, "memory_terms")]
        assert again == first, harm


def test_a_session_that_is_removed_leaves_nothing(host: OpenAs, schema: str) -> None:
    hub = host("one")
    live(hub)
    with hub.session("gone") as s:
        s.say("user", "the password of the safe is swordfish")
        s.learn("swordfish opens the safe")
    kept = rows(schema)
    assert hub.recall("swordfish", 1)
    assert rows(schema) > kept
    hub.remove("gone")
    assert not [h for h in hub.recall("swordfish") if "swordfish" in h.text]
    words = "SELECT count(*) FROM memory_docs WHERE words LIKE '%%swordfish%%'"
    assert asked(schema, words) == [(0,)]
    terms = "SELECT count(*) FROM memory_terms WHERE words @@ 'swordfish'::tsquery"
    assert asked(schema, terms) == [(0,)]


def test_hub_recall_needs_the_same_number_of_queries_for_any_session_count(
    host: OpenAs, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = host("one")
    numbers = []
    for start, stop in ((0, 3), (3, 30)):
        for number in range(start, stop):
            with hub.session(f"s{number}") as s:
                s.say("user", f"the zebra of session {number} has stripes")
        assert len(hub.recall("zebra stripes", 50)) == stop
        other = host(f"other {stop}")  # which has read nothing yet
        with counted(monkeypatch) as seen:
            assert len(other.recall("zebra stripes of session 2", 1)) == 1
        numbers.append(len(seen))
    assert numbers[0] == numbers[1], seen


def test_stores_in_one_database_stay_apart(tmp_path: Path, host: OpenAs, schema: str) -> None:
    live(host("one"))
    other = f"{shared().url()}&bucket=file://{tmp_path}/other&schema={schema}_b"
    try:
        with open_hub(other, environ=host_environ(tmp_path, "one")) as hub:
            with hub.session("s") as s:
                s.say("user", "nothing about fish")
            assert [h.text for h in hub.recall("sardines fish")] == ["nothing about fish"]
    finally:
        asked(schema, f'DROP SCHEMA IF EXISTS "{schema}_b" CASCADE')


def test_meanings_are_made_once_for_all_hosts(tmp_path: Path, url: str) -> None:
    """The same answers as in a directory; a second host embeds nothing but the question."""
    found = []
    made = []
    for store, name in ((str(tmp_path / "store"), "one"), (url, "one"), (url, "two")):
        embedder = Hashing(size=16)
        given = {"clock": ManualClock(), "embedder": embedder}
        with open_hub(store, environ=host_environ(tmp_path, name), **given) as hub:  # type: ignore[arg-type]
            if name == "one":
                live(hub)

            def answer() -> list[Any] | None:
                """Return the hits once another thread has embedded all texts."""
                told = hub.recall("where is Momo?", explain=True)
                hits = [(h.text, h.score, h.scores) for h in told]
                return hits if told.dense == "all" else None

            found.append(eventually(answer))
        made.append(embedder.texts)
    assert found[0] == found[1] == found[2]
    assert sorted(made[0]) == sorted(made[1])
    assert made[2] == ["where is Momo?"]
