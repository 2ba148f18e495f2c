"""Sessions lent to frameworks: any thread, several processes, and what happens in between."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads

import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT, eventually

import ortet
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.integrations._shared import session_pool
from ortet.integrations._shared.session_pool import AdapterSessionPool, session_name
from ortet.sessions.table import check_session

_OTHER = """
import sys, ortet
from ortet.errors import OrtetError
from ortet.integrations._shared.session_pool import AdapterSessionPool
hub = ortet.open(sys.argv[1])
lent = AdapterSessionPool(hub, lease_timeout=60)  # however late this host's other processes are
print("ready", flush=True)
for line in sys.stdin:
    verb, name, *rest = line.split()
    try:
        if verb == "say":
            with lent.writing(name) as s:
                s.say("user", rest[0])
        elif verb == "hold":
            with lent.writing(name):
                lent.hold(name)
        elif verb == "many":
            for number in range(int(rest[1])):
                with lent.writing(name) as s:
                    s.say("user", f"{rest[0]}-{number}")
        print("done", flush=True)
    except OrtetError as error:
        print(error.kind, flush=True)
"""


class Other:
    """Another process with the same store."""

    def __init__(self, store: Path) -> None:
        self.process = forked.Popen(
            [sys.executable, "-c", _OTHER, str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.hear() == "ready"

    def tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline()).strip()

    def ask(self, *words: str) -> str:
        self.tell(*words)
        return self.hear()


@contextmanager
def another(store: Path) -> Iterator[Other]:
    other = Other(store)
    try:
        yield other
    finally:
        other.process.kill()
        other.process.communicate()


@pytest.fixture
def lent(hub: Hub) -> AdapterSessionPool:
    """One that is waited for, and lets nothing go unasked, however slow the host is."""
    return AdapterSessionPool(hub, lease_timeout=60, idle_timeout=3600, min_hold=0.0)


def contents(lent: AdapterSessionPool, name: str) -> list[str]:
    with lent.reading(name) as view:
        return [message.content for message in view.messages()]


def test_a_lent_session_is_created_once_and_readable_at_once(lent: AdapterSessionPool) -> None:
    with pytest.raises(NotFound):
        contents(lent, "a")
    with pytest.raises(NotFound), lent.writing("a", create=False):
        pass
    with lent.writing("a", goal="be told") as session:
        session.say("user", "one")
        assert session.goal == "be told"
    with lent.writing("a", create=False) as session:
        session.say("user", "two")
    assert contents(lent, "a") == ["one", "two"]
    assert lent.exists("a") and not lent.exists("b")
    assert lent.names() == ["a"]


def test_names_returns_the_sessions_with_a_prefix(lent: AdapterSessionPool, hub: Hub) -> None:
    for name in ("u/a", "u/b", "u", "v/a", "ua"):
        with lent.writing(name):
            pass
    with hub.session("u/c", agent="other"):
        pass
    assert lent.names("u/") == ["u/a", "u/b"]
    assert lent.names("u") == ["u", "u/a", "u/b", "ua"]


def test_writes_of_many_threads_are_not_interleaved(lent: AdapterSessionPool) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            with lent.writing(f"s{number % 3}") as session:
                session.say_all([("user", f"{number}.{turn}"), ("assistant", f"{number}.{turn}")])

    threads = [Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        said = contents(lent, f"s{number}")
        assert len(said) == 60 and said[::2] == said[1::2]


def test_processes_alternate_without_an_event(
    store: Path, lent: AdapterSessionPool, hub: Hub
) -> None:
    with another(store) as other:
        for turn in range(4):
            with lent.writing("a") as session:
                session.say("user", f"here {turn}")
            assert other.ask("say", "a", f"there-{turn}") == "done"
            assert contents(lent, "a")[-1] == f"there-{turn}"
        kinds = [event.kind for event in hub.get("a").events()]
        assert kinds.count("message") == 8
        assert kinds.count("lifecycle") <= 2
        assert hub.get("a").status == "paused"


def test_a_long_one_is_committed_before_it_is_handed_over(
    store: Path, lent: AdapterSessionPool, hub: Hub
) -> None:
    with lent.writing("a") as session:
        session.say_all([("user", f"word {number}") for number in range(1100)])
    with another(store) as other:
        assert other.ask("say", "a", "there") == "done"
        head = hub.get("a").head
        assert head is not None and head.message == "handed over"
        assert len(contents(lent, "a")) == 1101
        with lent.writing("a") as session:
            session.say("user", "here")
        assert other.ask("say", "a", "there-again") == "done"
        assert hub.get("a").head == head
    assert hub.verify()


def test_a_call_of_a_tool_is_handed_on(store: Path, lent: AdapterSessionPool) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look"}]}
    with another(store) as other:
        with lent.writing("a") as session:
            session.say_all([call])
        assert other.ask("say", "a", "found") == "done"
        with lent.reading("a") as view:
            said = [e.data["content"] for e in view.events() if e.kind == "message"]
        assert said == ["", "found"]


def test_a_session_held_by_another_process_is_refused_until_it_dies(store: Path, hub: Hub) -> None:
    impatient = AdapterSessionPool(hub, lease_timeout=0.2, min_hold=0.0)
    with another(store) as other:
        assert other.ask("hold", "a") == "done"
        with pytest.raises(Refused) as refused, impatient.writing("a"):
            pass
        assert refused.value.kind == "lease_held"
        assert contents(impatient, "a") == []
        other.process.kill()
        other.process.wait()
        with impatient.writing("a") as session:  # of a dead process
            session.say("user", "mine")
        assert contents(impatient, "a") == ["mine"]


def test_release_hands_a_held_session_to_the_waiting_process(
    store: Path, lent: AdapterSessionPool
) -> None:
    with lent.writing("a") as session:
        session.say("user", "first")
        lent.hold("a")
    with another(store) as other:
        other.tell("say", "a", "second")
        eventually(lambda: "a" in lent._open_sessions and lent._open_sessions["a"].is_requested)
        assert contents(lent, "a") == ["first"]
        lent.release("a")
        assert other.hear() == "done"
    assert contents(lent, "a") == ["first", "second"]


def test_two_processes_writing_one_session_lose_nothing(
    store: Path, lent: AdapterSessionPool
) -> None:
    with another(store) as other:
        other.tell("many", "a", "there", "40")
        for number in range(40):
            with lent.writing("a") as session:
                session.say("user", f"here-{number}")
        assert other.hear() == "done"
    said = contents(lent, "a")
    for who in ("here", "there"):
        assert [one for one in said if one.startswith(who)] == [f"{who}-{n}" for n in range(40)]
    assert len(said) == 80


def test_a_hub_of_the_same_process_gets_it_too(lent: AdapterSessionPool, hub: Hub) -> None:
    with lent.writing("a") as session:
        session.say("user", "framework")
    with hub.session("a") as mine:
        mine.say("user", "program")
    with lent.writing("a") as session:
        session.say("user", "framework again")
    assert contents(lent, "a") == ["framework", "program", "framework again"]


def test_idle_sessions_release_their_lease(hub: Hub) -> None:
    lent = AdapterSessionPool(hub, idle_timeout=0.05)
    with lent.writing("a") as session:
        id_ = session.id
    eventually(lambda: not hub.is_open(id_))
    with lent.writing("a") as session:
        session.say("user", "again")


def test_only_the_most_recently_used_sessions_stay_open(hub: Hub) -> None:
    lent = AdapterSessionPool(hub, max_open=2, idle_timeout=3600)
    for number in range(5):
        with lent.writing(f"s{number}") as session:
            session.say("user", "word")
    assert list(lent._open_sessions) == ["s3", "s4"]
    assert [contents(lent, f"s{number}") for number in range(5)] == [["word"]] * 5


def test_forks_made_inside_a_block_can_be_opened_by_anyone(
    lent: AdapterSessionPool, hub: Hub
) -> None:
    with lent.writing("a") as session:
        session.say("user", "one")
        (fork,) = session.fork(1, machine=False)
    assert hub.get(fork.id).status == "paused"
    with hub.session("a/1") as mine:
        assert [m.content for m in mine.messages()] == ["one"]


def test_a_lease_lost_between_two_writes_is_taken_again(lent: AdapterSessionPool, hub: Hub) -> None:
    with lent.writing("a") as session:
        session.say("user", "mine")
        held = session.internals.held_lease.lease
    hub.catalog.seize(held)  # as if its time had run out
    taken = hub.catalog.acquire(held.name, "somebody", 10**9)
    hub.catalog.release(taken)
    with lent.writing("a") as session:
        session.say("user", "mine again")
    assert contents(lent, "a") == ["mine", "mine again"]


def test_a_write_with_a_lease_seized_after_the_check_is_refused(
    lent: AdapterSessionPool, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "_LEASE_CHECK_INTERVAL_SECONDS", WAIT)
    for text in ("one", "two"):  # with the second it was looked up
        with lent.writing("a") as session:
            session.say("user", text)
            held = session.internals.held_lease.lease
    hub.catalog.seize(held)
    hub.catalog.release(hub.catalog.acquire(held.name, "somebody", 10**9))
    with pytest.raises(Refused) as refused, lent.writing("a") as session:
        session.say("user", "too late")
    assert refused.value.kind == "lease_lost"
    with lent.writing("a") as session:
        session.say("user", "three")
    assert contents(lent, "a") == ["one", "two", "three"]


def test_a_lease_lost_inside_a_block_is_refused(lent: AdapterSessionPool, hub: Hub) -> None:
    with pytest.raises(Refused) as refused, lent.writing("a") as session:
        session.say("user", "mine")
        held = session.internals.held_lease.lease
        hub.catalog.seize(held)
        hub.catalog.release(hub.catalog.acquire(held.name, "somebody", 10**9))
        session.say("user", "too late")
    assert refused.value.kind == "lease_lost"
    with lent.writing("a") as session:
        session.say("user", "again")
    assert contents(lent, "a") == ["mine", "again"]


def test_a_closed_lender_refuses_every_use(lent: AdapterSessionPool, hub: Hub) -> None:
    with lent.writing("a") as session:
        id_ = session.id
    lent.close()
    assert not hub.is_open(id_)
    for use in (lent.names, lambda: contents(lent, "a"), lambda: lent.exists("a")):
        with pytest.raises(Invalid, match="closed"):
            use()
    lent.close()


def test_a_lender_is_closed_with_its_hub(store: Path) -> None:
    with ortet.open(store) as hub:
        lent = AdapterSessionPool(hub)
        with lent.writing("a") as session:
            session.say("user", "one")
    with pytest.raises(Invalid), lent.writing("a"):
        pass
    with ortet.open(store) as hub, hub.session("a") as mine:
        assert [m.content for m in mine.messages()] == ["one"]


def test_writing_to_a_closed_session_is_refused(lent: AdapterSessionPool, hub: Hub) -> None:
    with lent.writing("a"):
        pass
    with hub.session("a") as mine:
        mine.finish()
    with pytest.raises(Conflict) as closed, lent.writing("a"):
        pass
    assert closed.value.kind == "session_closed"


_FORKED = """
import os, sys, ortet
from ortet.integrations._shared.session_pool import AdapterSessionPool
hub = ortet.open(sys.argv[1])
lent = AdapterSessionPool(hub, lease_timeout=60, min_hold=0.0)
with lent.writing("a") as s:
    s.say("user", "parent")
pid = os.fork()
if not pid:
    with lent.writing("a") as s:
        s.say("user", "child")
    lent.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
with lent.writing("a") as s:
    s.say("user", "parent again")
    print([m.content for m in s.messages()])
"""


def test_a_forked_child_has_its_own(store: Path) -> None:
    done = forked.run(
        [sys.executable, "-c", _FORKED, str(store)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "['parent', 'child', 'parent again']", done.stderr


def test_a_process_that_ends_leaves_its_sessions(store: Path) -> None:
    code = "\n".join(_FORKED.splitlines()[:8])
    forked.run([sys.executable, "-c", code, str(store)], check=True)
    with ortet.open(store) as hub:
        assert hub.get("a").status == "paused"
        assert not hub.is_open(hub.get("a").id)


@pytest.mark.parametrize(
    "ids",
    [
        ("1",),
        ("thread-1",),
        ("a/b",),
        ("",),
        ("Grüße, Welt! 你好",),
        ("x" * 5000,),
        ("\udcff\x00",),
        ("app", "user", "1"),
        ("app", "user", "n1"),
        ("a", "b" * 100, "../../etc"),
        (".hidden",),
    ],
)
def test_any_ids_make_a_valid_session_name(ids: tuple[str, ...]) -> None:
    assert check_session(session_name(*ids)) == session_name(*ids)


def test_different_ids_make_different_session_names() -> None:
    odd = [
        "1",
        "n1",
        "nn1",
        "a",
        "A",
        "a b",
        "a-b",
        "a_b",
        "a/b",
        "",
        "-",
        "é",
        "e\u0301",
        "\udcff",
    ]
    odd += [session_name(one) for one in odd]
    assert len({session_name(one) for one in odd}) == len(set(odd))
    assert len({session_name("x", one) for one in odd}) == len(set(odd))
    assert session_name("support", "42") == "support/n42"
    assert session_name("42") == "42"


def test_missing_or_non_text_ids_are_refused() -> None:
    with pytest.raises(Invalid):
        session_name()
    with pytest.raises(Invalid):
        session_name(7)  # type: ignore[arg-type]


def test_a_lender_collected_during_a_write_does_not_deadlock(store: Path, hub: Hub) -> None:
    lent = AdapterSessionPool(hub)
    with lent.writing("left") as session:
        session.say("user", "here")
    rings = [lent]
    rings.append(rings)  # type: ignore[arg-type]  # so that only the collector finds it
    done = Event()

    def write() -> None:
        nonlocal rings, lent, session
        with hub.catalog._handle.writing():  # type: ignore[attr-defined]
            del rings, lent, session
            gc.collect()
        done.set()

    Thread(target=write, daemon=True).start()
    assert done.wait(WAIT)
    with AdapterSessionPool(hub, lease_timeout=60).writing(
        "left"
    ) as again:  # and it was let go all the same
        assert [m.content for m in again.messages()] == ["here"]


def test_a_lender_that_waited_is_collected_without_leaking_its_socket(hub: Hub) -> None:
    first, second = (AdapterSessionPool(hub, lease_timeout=60) for _ in range(2))
    with first.writing("shared") as session:
        session.say("user", "here")
    with second.writing("shared") as session:  # waits for the first, on a socket of its own
        session.say("user", "there")
    keeper = second._maintenance_thread
    assert keeper is not None
    with first.writing("shared") as session:  # takes it back: nothing is open in the second
        session.say("user", "again")
    keeper.join()
    ring = [second]
    ring.append(ring)  # type: ignore[arg-type]  # so that only the collector finds it
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del ring, second, session, keeper
        gc.collect()
        for thread in enumerate_threads():
            if thread.name == "ortet-lent-close":
                thread.join()
    assert [str(one.message) for one in caught] == []
    with first.writing("shared") as session:
        assert [m.content for m in session.messages()] == ["here", "there", "again"]
    first.close()


_DROPPED = """
import gc, sys, threading
import ortet
from ortet.integrations._shared.session_pool import AdapterSessionPool

failed = []
threading.excepthook = failed.append

def use():
    hub = ortet.open(sys.argv[1])
    lent = AdapterSessionPool(hub)
    with lent.writing("left") as session:
        session.say("user", "here")
        session.commit("sealed")
    hub.ring = [hub, lent]

use()
gc.collect()
for thread in threading.enumerate():
    if thread.name == "ortet-lent-close":
        thread.join()
assert not failed, failed
"""


def test_a_lender_collected_with_its_store_does_not_fail(store: Path) -> None:
    forked.run([sys.executable, "-c", _DROPPED, str(store)], check=True)
    with ortet.open(store) as hub, hub.session("left") as session:
        assert [m.content for m in session.messages()] == ["here"]
