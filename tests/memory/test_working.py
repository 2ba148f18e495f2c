"""Working memory is the same through a cache, without one, and through one that lies."""

from __future__ import annotations

import pytest

from ortet.backends.base import Cache
from ortet.backends.local.memory import NoCache, ProcessCache
from ortet.memory.working import (
    CACHE_TTL_NS,
    WorkingMemory,
    WorkingNote,
    cache_key,
    clear_working_memory,
    read_through,
)
from ortet.testing.clock import ManualClock

SECOND = 1_000_000_000
T = "0193" + "0" * 28


class Journal:
    """Stands for the fold of a session: says how often it was read."""

    def __init__(self, clock: ManualClock) -> None:
        self.seq = 7
        self.read = 0
        self.said = ["the login test fails", "it is the lexer: 記号 dropped 🙂"]
        self._soon = clock.now_ns() + 10 * SECOND

    def make(self) -> WorkingMemory:
        self.read += 1
        return WorkingMemory(
            timeline=T,
            seq=self.seq,
            goal="make the suite green",
            status="open",
            plan=["reproduce", "fix", "verify"],
            step=1,
            notes=[
                WorkingNote("branch", {"name": "fix/lexer", "ahead": 2}, self._soon),
                WorkingNote("editor", ["vim", None, 1.5]),
            ],
            questions=[{"id": "q1", "text": "may I touch the grammar?"}],
            effects=[{"id": "e1", "name": "push", "state": "begun"}],
            messages=[
                {"role": "user", "content": self.said[0]},
                {"role": "assistant", "content": [{"type": "text", "text": self.said[1]}]},
            ],
        )


@pytest.fixture
def journal(clock: ManualClock) -> Journal:
    return Journal(clock)


def test_a_cached_working_memory_is_not_read_from_the_journal_again(
    clock: ManualClock, journal: Journal
) -> None:
    cache = ProcessCache(clock)
    key = cache_key(T, 7, 20)
    first = read_through(cache, key, journal.make, now=clock.now_ns())
    second = read_through(cache, key, journal.make, now=clock.now_ns())
    assert first == second == journal.make().without_expired_notes(clock.now_ns())
    assert journal.read == 2  # once by us
    assert first.current == "fix"


def test_the_next_event_changes_the_cache_key(clock: ManualClock, journal: Journal) -> None:
    cache = ProcessCache(clock)
    read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    journal.seq, journal.said = 8, ["new", "newer"]
    after = read_through(cache, cache_key(T, 8, 20), journal.make, now=0)
    assert after.messages[0]["content"] == "new"
    before = read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    assert before.messages[0]["content"] == "the login test fails"


@pytest.mark.parametrize("cached", [True, False])
def test_a_note_expires_when_it_is_read_not_when_it_is_cached(
    clock: ManualClock, journal: Journal, cached: bool
) -> None:
    cache: Cache = ProcessCache(clock) if cached else NoCache()
    key = cache_key(T, 7, 20)

    def keys() -> list[str]:
        working = read_through(cache, key, journal.make, now=clock.now_ns())
        return [note.key for note in working.notes]

    assert keys() == ["branch", "editor"]
    clock.advance(10 * SECOND)
    assert keys() == ["editor"]
    clock.advance(-SECOND)  # a clock that was set back, as a replay's
    assert keys() == ["branch", "editor"]


@pytest.mark.parametrize("bytes_there", [b"", b"\xc1", b"\x93\x01\x02\x03", b"not ours"])
def test_malformed_cached_bytes_are_ignored(
    clock: ManualClock, journal: Journal, bytes_there: bytes
) -> None:
    cache = ProcessCache(clock)
    key = cache_key(T, 7, 20)
    cache.put(key, bytes_there)
    assert read_through(cache, key, journal.make, now=0).goal == "make the suite green"
    read_through(cache, key, journal.make, now=0)
    assert journal.read == 1


def test_a_cached_working_memory_of_another_event_is_ignored(
    clock: ManualClock, journal: Journal
) -> None:
    cache = ProcessCache(clock)
    read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    other = cache.get(cache_key(T, 7, 20))
    assert other is not None
    cache.put(cache_key(T, 71, 20), other)
    journal.seq = 71
    assert read_through(cache, cache_key(T, 71, 20), journal.make, now=0).seq == 71


def test_let_go_drops_cached_working_memory_after_an_erasure(
    clock: ManualClock, journal: Journal
) -> None:
    cache = ProcessCache(clock)
    cache.put("another's", b"value")
    read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    clear_working_memory(cache)
    journal.said = ["(erased)", "(erased)"]
    told = read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    assert told.messages[0]["content"] == "(erased)"
    assert cache.get("another's") == b"value"


def test_a_cached_working_memory_expires(clock: ManualClock, journal: Journal) -> None:
    cache = ProcessCache(clock)
    read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    clock.advance(CACHE_TTL_NS)
    read_through(cache, cache_key(T, 7, 20), journal.make, now=0)
    assert journal.read == 2


def test_a_failed_read_is_not_cached(clock: ManualClock) -> None:
    cache = ProcessCache(clock)

    def make() -> WorkingMemory:
        raise OSError("no journal")

    with pytest.raises(OSError, match="no journal"):
        read_through(cache, cache_key(T, 7, 20), make, now=0)
    assert cache.size == 0


def test_current_is_empty_without_a_plan_or_after_its_last_step() -> None:
    assert WorkingMemory(T, 1).current == ""
    assert WorkingMemory(T, 1, plan=["a"], step=1).current == ""
