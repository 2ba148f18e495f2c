"""Sessions that alternate between servers: signals in both directions, and fair turns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.fixtures.http_server import Client, Server
from tests.fixtures.rooms import Make, begin, is_held, say
from tests.fixtures.valkey import valkey_server
from tests.fixtures.waiting import WAIT, eventually
from tests.server.server_group import Farm, said, servers, settled

from ortet.server.session_pool import handover
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.writing.lease_handover import received_topic, released_topic, request_topic

pytestmark = [pytest.mark.postgres, pytest.mark.valkey]

_TURNS = 6
_NOBODY_POLLS = """from ortet.sessions.writing import lease_handover

lease_handover.RETRY_SECONDS = lease_handover.FIRST_RETRY_SECONDS = 3600.0
"""


@pytest.fixture(params=["postgres", "valkey"])
def farm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Farm]:
    """Servers that let nothing go by themselves for hours, ask once an hour for what another has,
    and look once an hour who asks them: what is not told by a signal is found by nobody."""
    place = tmp_path / "polls"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_NOBODY_POLLS)
    paths = [str(place), os.environ.get("PYTHONPATH", "")]
    options = ["--no-auth", "--limit", "linger=36000", "--limit", "patience=20"]
    env = {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with ExitStack() as last:
        more = {}
        if request.param == "valkey":
            more["signal"] = last.enter_context(valkey_server()).url
        yield last.enter_context(servers(tmp_path, *options, env=env, **more))


def started(farm: Farm) -> list[Client]:
    made: list[Server] = [farm.start(name) for name in ("one", "two")]
    return [server.client() for server in made]


def write(client: Client, path: str, text: str) -> None:
    body = {"role": "user", "content": text}
    reply = settled(client, f"{path}/messages", body, text)
    assert reply.status == 201, reply


def test_session_alternates_between_two_servers_by_signals(farm: Farm) -> None:
    clients = started(farm)
    path = clients[0].new("s")
    texts = [f"turn {number}" for number in range(_TURNS)]
    for number, text in enumerate(texts):
        write(clients[number % 2], path, text)
    assert said(clients[0], path) == texts


def test_two_servers_that_write_continuously_both_make_progress(farm: Farm) -> None:
    clients = started(farm)
    path = clients[0].new("s")
    done = Event()

    def work(at: int, texts: list[str]) -> int:
        """How many it wrote, until the other has written all of its own."""
        count = 0
        for text in texts:
            if at == 0 and done.is_set():
                break
            write(clients[at], path, text)
            count += 1
        if at == 1:
            done.set()
        return count

    with ThreadPoolExecutor(2) as pool:
        many, few = ([f"{name} {n}" for n in range(most)] for name, most in (("a", 5000), ("b", 5)))
        first, second = pool.submit(work, 0, many), pool.submit(work, 1, few)
        assert second.result() == 5
        count = first.result()
    assert count < len(many)  # it did not have to end for the other to begin
    found = said(clients[0], path)
    assert [text for text in found if text in few] == few
    assert [text for text in found if text not in few] == many[:count]


class TestRooms:
    """In one process, where it is seen who was told what."""

    def test_idle_session_is_handed_over_before_its_turn_ends(self, make: Make) -> None:
        one = make(linger=3600.0, min_hold=3600.0)
        two = make(linger=3600.0, patience=60.0)
        id_ = begin(one)
        say(two, id_, "two")  # nobody is at work in it
        assert not one.open_slots()

    def test_session_is_not_handed_over_while_a_request_is_inside(self, make: Make) -> None:
        one = make(linger=3600.0, min_hold=3600.0)
        two = make(linger=3600.0, patience=60.0)
        id_ = begin(one)
        with ThreadPoolExecutor(1) as pool:
            with one.open_session(one.row(id_)) as session:
                asked = one.signal.token(request_topic(id_))
                other = pool.submit(say, two, id_, "two")
                assert one.signal.wait(request_topic(id_), asked, WAIT)
                session.say("user", "one")
                assert [room.id for room in one.open_slots()] == [id_]
            other.result(WAIT)
        with two.view(id_) as view:
            assert [message.content for message in view.messages()] == ["one", "two"]

    def test_server_that_released_a_session_lets_the_other_take_it_first(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where it asks for it again at once, and the other is slow to hear."""
        monkeypatch.setattr(handover, "_TAKE_TIMEOUT_SECONDS", WAIT)
        one = make(linger=3600.0, min_hold=0.0)
        id_ = begin(one)
        token = one.signal.token(released_topic(id_))
        with one.open_session(one.row(id_)):
            _asked(one, id_)
        assert one.signal.wait(released_topic(id_), token, WAIT)
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(say, one, id_, "again")
            with one.hub() as hub, hub.session("one") as session:
                assert not again.done()
                session.say("user", "first")
            one.signal.notify(received_topic(id_))
            again.result(WAIT)
        with one.view(id_) as view:
            assert [message.content for message in view.messages()] == ["first", "again"]

    def test_server_retakes_a_released_session_if_nobody_takes_it(self, make: Make) -> None:
        one = make(linger=3600.0, min_hold=0.0)
        id_ = begin(one)
        with one.open_session(one.row(id_)):
            _asked(one, id_)
        say(one, id_, "nobody came")
        assert is_held(one, id_)


def _asked(rooms: SessionPool, id_: str) -> None:
    """By one that is not heard of again."""
    room: Any = next(room for room in rooms.open_slots() if room.id == id_)
    rooms.signal.notify(request_topic(id_))
    eventually(lambda: room.is_requested)
