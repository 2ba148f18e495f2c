"""SessionPool with real hubs on one store and real threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Barrier, Event

import pytest
from tests.fixtures.rooms import Make, begin, is_held, said, say
from tests.fixtures.waiting import eventually

import ortet
from ortet.errors import NotFound, OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.machine.programs import SessionPrograms


@pytest.fixture
def rooms(make: Make) -> SessionPool:
    return make()


def kinds(rooms: SessionPool, id_: str) -> list[str]:
    with rooms.view(id_) as view:
        return [event.kind for event in view.events()]


class TestBegin:
    def test_first_request_opens_a_new_session_once(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        say(rooms, id_, "hello")
        assert kinds(rooms, id_) == ["lifecycle", "message"]

    def test_concurrent_requests_create_one_session(self, rooms: SessionPool) -> None:
        start = Barrier(8)

        def one(_: int) -> str:
            start.wait()
            return begin(rooms)

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(one, range(8)))) == 1

    def test_two_servers_create_one_session_concurrently(self, make: Make) -> None:
        servers, start = [make(patience=30.0), make(patience=30.0)], Barrier(2)

        def one(rooms: SessionPool) -> str:
            start.wait()
            return begin(rooms)

        with ThreadPoolExecutor(2) as pool:
            assert len(set(pool.map(one, servers))) == 1

    def test_options_given_for_an_open_session_are_applied(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        begin(rooms, goal="be quick")
        with rooms.view(id_) as view:
            assert view.goal == "be quick"

    def test_session_with_bad_options_leaves_no_open_slot(self, rooms: SessionPool) -> None:
        with pytest.raises(OrtetError):
            begin(rooms, engine="nonsense")
        assert rooms.count == 0


class TestEnter:
    def test_session_stays_open_between_requests(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        for number in range(3):
            say(rooms, id_, str(number))
        assert said(rooms, id_) == ["0", "1", "2"]
        assert kinds(rooms, id_).count("lifecycle") == 1
        assert rooms.count == 1

    def test_concurrent_threads_write_to_one_session_in_turn(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: say(rooms, id_, str(n)), range(40)))
        assert sorted(said(rooms, id_), key=int) == [str(n) for n in range(40)]

    def test_busy_session_does_not_block_other_sessions_or_readers(self, make: Make) -> None:
        rooms = make(patience=0.05)
        first, second = begin(rooms), begin(rooms, "two")
        with rooms.open_session(rooms.row(first)) as session, ThreadPoolExecutor(1) as pool:
            session.say("user", "mine")
            with pytest.raises(Unavailable, match="session is busy"):
                pool.submit(say, rooms, first, "other").result()
            pool.submit(say, rooms, second, "other").result()
            # a reader is shown what is stored
            assert pool.submit(said, rooms, first).result() == ["mine"]

    def test_only_a_limited_number_of_requests_wait_for_a_busy_session(self, make: Make) -> None:
        rooms = make(patience=30.0)
        id_ = begin(rooms)
        with ThreadPoolExecutor(40) as pool, rooms.open_session(rooms.row(id_)):
            waiting = [pool.submit(say, rooms, id_, str(n)) for n in range(40)]
            # those are told at once; the others wait for us
            for one in islice(as_completed(waiting), 40 - 16):
                assert isinstance(one.exception(), Unavailable)
        assert len(said(rooms, id_)) == 16

    def test_closed_session_leaves_the_pool(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        with rooms.open_session(rooms.row(id_)) as session:
            session.finish()
        assert rooms.count == 0
        assert not is_held(rooms, id_)
        with pytest.raises(OrtetError, match="closed"):
            say(rooms, id_, "more")

    def test_expected_error_keeps_the_session_open(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        with pytest.raises(NotFound), rooms.open_session(rooms.row(id_)) as session:
            session.answer("nothing", "that was asked")
        say(rooms, id_, "on")
        assert kinds(rooms, id_).count("lifecycle") == 1

    def test_unexpected_error_reopens_the_session_for_the_next_request(
        self, rooms: SessionPool
    ) -> None:
        id_ = begin(rooms)
        with pytest.raises(ZeroDivisionError), rooms.open_session(rooms.row(id_)) as session:
            session.say("user", "before")
            _ = 1 // 0
        assert rooms.count == 0
        say(rooms, id_, "after")
        assert said(rooms, id_) == ["before", "after"]

    def test_failed_hub_open_leaves_no_slot_and_can_be_retried(self, tmp_path: Path) -> None:
        fail = Event()

        def open_hub() -> Hub:
            if fail.is_set():
                raise Unavailable("disk_full", "no room")
            return ortet.open(tmp_path / "store")

        rooms = SessionPool(open_hub)
        try:
            id_ = begin(rooms)
            with rooms.open_session(rooms.row(id_)) as session:
                session.pause()
            row = rooms.row(id_)
            with ExitStack() as busy:
                for _ in range(3):  # none that is open already is free
                    busy.enter_context(rooms.hub())
                fail.set()
                with pytest.raises(Unavailable, match="no room"), rooms.open_session(row):
                    pass
            assert rooms.count == 0
            fail.clear()
            say(rooms, id_, "again")
        finally:
            rooms.close(0.0)

    def test_forks_made_in_a_request_are_released_after_it(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        with rooms.open_session(rooms.row(id_)) as session:
            session.say("user", "shared")
            kids = [kid.id for kid in session.fork(2, machine=False)]
        for kid in kids:
            assert not is_held(rooms, kid)
            say(rooms, kid, "own")
            assert said(rooms, kid) == ["shared", "own"]
        say(rooms, id_, "parent goes on")


class TestLostLease:
    def take(self, rooms: SessionPool, id_: str) -> None:
        """As another process would, after this one had slept."""
        with rooms.hub() as hub:
            held = hub.catalog.lease(f"session:{id_}")
            assert held is not None
            hub.catalog.seize(held)
            with hub.session("one") as other:
                other.say("user", "theirs")

    def test_request_after_a_lost_lease_continues_from_the_newer_events(
        self, rooms: SessionPool
    ) -> None:
        id_ = begin(rooms)
        self.take(rooms, id_)
        say(rooms, id_, "mine")
        assert said(rooms, id_) == ["theirs", "mine"]

    def test_request_that_loses_its_lease_writes_nothing(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        with pytest.raises(Refused) as caught, rooms.open_session(rooms.row(id_)) as session:
            self.take(rooms, id_)
            session.say("user", "lost")
        assert caught.value.kind == "lease_lost"
        say(rooms, id_, "mine")
        assert said(rooms, id_) == ["theirs", "mine"]

    def test_reader_after_a_lost_lease_sees_the_newer_events(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        self.take(rooms, id_)
        assert said(rooms, id_) == ["theirs"]


class TestLeaving:
    def test_idle_session_is_released_after_the_linger_time(self, make: Make) -> None:
        rooms, other = make(linger=0.05), make()
        id_ = begin(rooms)
        eventually(lambda: rooms.count == 0)
        assert not is_held(other, id_)

    def test_session_is_released_when_another_server_asks(self, make: Make) -> None:
        one, two = (make(linger=3600.0, patience=30.0) for _ in range(2))
        id_ = begin(one)
        say(two, id_, "two")
        say(one, id_, "one")
        assert said(two, id_) == ["two", "one"]

    def test_two_busy_servers_take_turns_with_one_session(self, make: Make) -> None:
        servers = [make(linger=3600.0, min_hold=0.01, patience=30.0) for _ in range(2)]
        id_ = begin(servers[0])

        def work(at: int) -> None:
            for number in range(20):
                say(servers[at], id_, f"{at}.{number}")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, range(2)))
        assert len(set(said(servers[0], id_))) == 40

    def test_least_recently_used_session_is_released_first(self, make: Make) -> None:
        rooms = make(max_sessions=2)
        first, second = begin(rooms, "a"), begin(rooms, "b")
        say(rooms, first, "again")
        begin(rooms, "c")
        assert rooms.count == 2
        assert is_held(rooms, first)
        assert not is_held(rooms, second)

    def test_full_pool_refuses_new_sessions_while_all_are_busy(self, make: Make) -> None:
        rooms = make(max_sessions=1)
        first, second = begin(rooms, "a"), begin(rooms, "b")
        with (
            rooms.open_session(rooms.row(first)),
            ThreadPoolExecutor(1) as pool,
            pytest.raises(Unavailable, match="busy here"),
        ):
            pool.submit(say, rooms, second, "no").result()
        say(rooms, second, "yes")

    def test_session_with_a_running_program_is_not_released(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rooms = make(max_sessions=1, linger=0.01)
        monkeypatch.setattr(SessionPrograms, "is_running", lambda self: True)
        id_ = begin(rooms)
        with pytest.raises(Unavailable, match="busy here"):
            begin(rooms, "two")
        with (
            pytest.raises(Unavailable, match="programs run"),
            rooms.with_session_closed(rooms.row(id_)),
        ):
            pass
        assert is_held(rooms, id_)

    def test_with_session_closed_releases_the_session_first(self, make: Make) -> None:
        one, two = make(linger=3600.0), make(linger=3600.0)
        id_ = begin(one)
        with one.with_session_closed(one.row(id_)) as hub:
            hub.archive(id_)
        with two.view(id_) as view:
            assert view.status == "archived"


class TestNames:
    """While a session is open here its name is known without a look at the store."""

    def test_session_name_is_looked_up_once(
        self, rooms: SessionPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        id_ = begin(rooms)
        assert rooms.row("one").id == id_
        monkeypatch.setattr("ortet.sessions.table.SessionTable.resolve_visible", _never)
        assert rooms.row("one").id == rooms.row(id_).id == id_

    def test_name_of_a_removed_session_resolves_to_the_next_one(self, rooms: SessionPool) -> None:
        first = begin(rooms)
        assert rooms.row("one").id == first
        with rooms.with_session_closed(rooms.row("one")) as hub:
            hub.remove(first)
        with pytest.raises(NotFound):
            rooms.row("one")
        second = begin(rooms)
        assert rooms.row("one").id == second != first

    def test_name_resolves_only_to_sessions_the_caller_may_see(self, rooms: SessionPool) -> None:
        id_ = begin(rooms)
        assert rooms.row("one").id == id_
        with pytest.raises(NotFound):
            rooms.row("one", lambda agent: agent == "other")
        with rooms.hub() as hub, hub.session("one", agent="other") as theirs:
            other = theirs.id
        assert rooms.row("one", lambda agent: agent == "other").id == other
        assert rooms.row("one").id == id_


def _never(*_: object) -> None:
    raise AssertionError("it was looked up")


class TestClose:
    def test_close_releases_every_session_and_refuses_new_ones(self, make: Make) -> None:
        rooms, other = make(), make()
        ids = [begin(rooms, name) for name in ("a", "b", "c")]
        assert rooms.close() == 0
        assert not any(is_held(other, id_) for id_ in ids)
        with pytest.raises(Unavailable, match="stopping"):
            begin(rooms, "d")

    def test_close_waits_for_requests_inside(self, make: Make) -> None:
        rooms, other = make(), make()
        id_ = begin(rooms)
        with ThreadPoolExecutor(1) as pool:
            with rooms.open_session(rooms.row(id_)) as session:
                closing = pool.submit(rooms.close)
                eventually(lambda: rooms.count == 0)
                session.say("user", "the last word")
            assert closing.result() == 0
        assert said(other, id_) == ["the last word"]
        assert not is_held(other, id_)

    def test_close_gives_up_waiting_after_its_timeout(self, make: Make) -> None:
        rooms = make()
        id_ = begin(rooms)
        with rooms.open_session(rooms.row(id_)), ThreadPoolExecutor(1) as pool:
            assert pool.submit(rooms.close, 0.05).result() == 1
