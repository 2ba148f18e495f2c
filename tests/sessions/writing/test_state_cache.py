"""The mind of a hot session in Valkey: found by the next server, believed only when it is of this
very chain, and missed by nobody when Valkey is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.fixtures.valkey import Server
from tests.fixtures.valkey_hub import opened
from tests.fixtures.waiting import WAIT

from ortet.backends.valkey.cache import ValkeyCache
from ortet.hub.hub import Hub
from ortet.journal.events import Event
from ortet.journal.kinds.registry import fold
from ortet.journal.state.state import SessionState
from ortet.sessions.history import load
from ortet.sessions.writing.state_cache import MIN_EVENTS, TTL_NS

pytestmark = pytest.mark.valkey

MANY = MIN_EVENTS + 20
Opens = Callable[[], AbstractContextManager[Hub]]


@pytest.fixture
def opens(tmp_path: Path, valkey: Server) -> Opens:
    return lambda: opened(tmp_path / "store", valkey)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of events that are folded when a session is opened or read."""
    seqs: list[int] = []

    def counting_fold(state: SessionState, events: list[Event]) -> None:
        seqs.extend(event.seq for event in events)
        fold(state, events)

    monkeypatch.setattr(load, "fold", counting_fold)
    return seqs


def write(hub: Hub, words: str = "word") -> None:
    with hub.session("s", goal="the goal") as s:
        s.learn("doors are green", about="doors")
        for number in range(MANY):
            s.say("user", f"{words} {number}")
        s.note("where", "here")


def kept(valkey: Server) -> list[bytes]:
    found: list[bytes] = valkey.ask("KEYS", "*:fold/*")
    return found


def same_minds(*hubs: Hub) -> None:
    first, *others = (hub.get("s") for hub in hubs)
    assert all(first.internals.state.equals(other.internals.state) for other in others)


def test_second_server_reads_the_cached_state_instead_of_folding_events(
    opens: Opens, folded: list[int]
) -> None:
    with opens() as one, opens() as two:
        write(one)
        folded.clear()
        with two.session("s") as s:
            assert folded == []
            assert s.goal == "the goal"
            assert [fact.text for fact in s.facts()] == ["doors are green"]
            s.say("user", "and on")
        assert len(one.get("s").messages()) == MANY + 1
        assert len(folded) < MIN_EVENTS
        same_minds(one, two)
        one.verify()


def test_commit_from_cached_state_contains_all_facts(opens: Opens, tmp_path: Path) -> None:
    with opens() as one, opens() as two:
        write(one)
        with two.session("s") as s:
            s.learn("windows are blue", about="windows")
            s.commit("of what was found in the cache")
        one.verify()
    with opens() as three:
        assert {f.text for f in three.get("s").facts()} == {"doors are green", "windows are blue"}
        assert three.get("s").goal == "the goal"


def test_state_folded_by_a_reader_is_cached_for_others(
    opens: Opens, valkey: Server, folded: list[int]
) -> None:
    with opens() as one:
        write(one)
    valkey.ask("FLUSHALL")
    with opens() as two, opens() as three:
        two.get("s")
        assert len(folded) >= MANY
        folded.clear()
        three.get("s")
        assert folded == []


def test_state_of_a_short_event_log_is_not_cached(opens: Opens, valkey: Server) -> None:
    with opens() as one:
        with one.session("s") as s:
            s.say("user", "hello")
        assert kept(valkey) == []


@pytest.mark.parametrize("trouble", ["foreign", "cut", "of another chain"])
def test_cached_state_of_another_chain_or_damaged_is_ignored(
    opens: Opens, valkey: Server, folded: list[int], trouble: str
) -> None:
    with opens() as one, opens() as two:
        write(one)
        (key,) = kept(valkey)
        value = valkey.ask("GET", key)
        if trouble == "foreign":
            valkey.ask("SET", key, b"something else")
        elif trouble == "cut":
            valkey.ask("SET", key, value[:-1])
        else:
            with one.session("t", goal="another goal") as s:
                for number in range(MANY + 5):
                    s.say("user", str(number))
            (other,) = set(kept(valkey)) - {key}
            valkey.ask("SET", key, valkey.ask("GET", other))
        folded.clear()
        assert two.get("s").goal == "the goal"
        assert len(folded) >= MANY


def test_older_cached_state_is_used_and_only_newer_events_are_folded(
    opens: Opens, valkey: Server, folded: list[int]
) -> None:
    with opens() as one, opens() as two:
        write(one)
        (key,) = kept(valkey)
        value = valkey.ask("GET", key)
        with one.session("s") as s:
            s.say("user", "later")
            last = s.say("user", "last").seq
        valkey.ask("SET", key, value)
        folded.clear()
        assert two.get("s").messages()[-1].content == "last"
        assert folded[-1] > last - 1
        assert len(folded) < 10
        same_minds(one, two)


def test_state_after_a_commit_is_read_from_the_commit(opens: Opens, folded: list[int]) -> None:
    with opens() as one, opens() as two:
        write(one)
        with two.session("s") as s:
            s.commit("sealed")
        folded.clear()
        assert one.get("s").goal == "the goal"
        assert len(folded) < MIN_EVENTS
        same_minds(one, two)


@pytest.mark.parametrize("reached", [True, False])
def test_erased_fact_does_not_come_back_from_the_cache(
    opens: Opens, valkey: Server, reached: bool
) -> None:
    with opens() as one, opens() as two:
        write(one)
        with one.session("s") as s:
            s.learn("pigeon 4711 is secret")
            seq = next(event.seq for event in s.events() if "4711" in str(event.data))
        assert "4711" in str(list(two.get("s").facts()))
        assert isinstance(one.cache, ValkeyCache)
        if not reached:
            one.cache._client._retry_at = time.monotonic() + WAIT
        one.erase("s", seqs=[seq])
        for hub in (one, two):
            assert "4711" not in str(list(hub.get("s").facts()))
        if reached:
            assert not any(b"4711" in valkey.ask("GET", key) for key in kept(valkey))


def test_removing_a_session_deletes_its_cache_entries(opens: Opens, valkey: Server) -> None:
    with opens() as one, opens() as two:
        write(one)
        two.get("s").memory.working()
        (key,) = kept(valkey)
        assert 0 < valkey.ask("PTTL", key) <= TTL_NS // 1_000_000
        assert valkey.ask("KEYS", "*:working/*")
        two.remove(two.get("s").id)
        assert kept(valkey) == []
        assert valkey.ask("KEYS", "*:working/*") == []


def test_killed_or_flushed_valkey_loses_no_message(opens: Opens, valkey: Server) -> None:
    said = []
    with opens() as one, opens() as two:
        for turn in range(8):
            if turn == 2:
                valkey.kill()
            elif turn == 4:
                valkey.start()
            elif turn == 6:
                valkey.ask("FLUSHALL")
            hub, other = (one, two) if turn % 2 else (two, one)
            with hub.session("s", goal="g") as s:
                texts = [f"{turn}.{number}" for number in range(MIN_EVENTS)]
                s.say_all([{"role": "user", "content": text} for text in texts])
            said += texts
            assert [m.content for m in other.get("s").messages()] == said
        same_minds(one, two)
        one.verify()
