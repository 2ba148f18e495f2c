"""What a session was told had failed, and the store has written after all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.postgres import Server
from tests.fixtures.stores import host_environ
from tests.fixtures.waiting import eventually

from ortet._util.lock_timeout import lock_timeout
from ortet.config.environment import open_hub
from ortet.errors import Unavailable
from ortet.hub.hub import Hub
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

pytestmark = pytest.mark.postgres


def said(session: SessionReader) -> list[str]:
    return [message.content for message in session.messages()]


def say_unheard(hub: Hub, session: Session, text: str, patch: pytest.MonkeyPatch) -> None:
    """It is written, and the answer is lost for good."""
    append = hub.catalog.append

    def lost(*args: Any, **given: Any) -> None:
        append(*args, **given)
        raise Unavailable("database_gone", "no answer")

    with patch.context() as broken:
        broken.setattr(hub.catalog, "append", lost)
        with pytest.raises(Unavailable):
            session.say("user", text)


def test_retry_of_a_message_that_was_written_after_an_error_adds_no_copy(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub.session("a") as a:
        a.say("user", "one")
        say_unheard(hub, a, "two", monkeypatch)
        event = a.say("user", "two")
        a.say("user", "three")
        assert said(a) == said(hub.get("a")) == ["one", "two", "three"]
        assert [one.hash for one in a.events() if one.seq == event.seq] == [event.hash]
        a.commit("all")
    hub.verify()


def test_other_message_after_a_late_write_is_refused_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub.session("a") as a:
        say_unheard(hub, a, "one", monkeypatch)
        with pytest.raises(Unavailable) as caught:
            a.say("user", "two")
        assert caught.value.kind == "written_late"
        assert said(a) == ["one"]
        a.say("user", "two")
        assert said(a) == said(hub.get("a")) == ["one", "two"]


def test_message_that_was_never_written_is_not_assumed_written(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise Unavailable("database_gone", "no answer")

    with hub.session("a") as a:
        with monkeypatch.context() as broken:
            broken.setattr(hub.catalog, "append", refused)
            with pytest.raises(Unavailable):
                a.say("user", "one")
        a.say("user", "two")
        assert said(a) == said(hub.get("a")) == ["two"]


def test_retry_of_a_commit_writes_the_queued_events_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, left = hub.catalog.append, [1]

    def lost(*args: Any, **given: Any) -> None:
        append(*args, **given)
        if left and left.pop():
            raise Unavailable("database_gone", "no answer")

    with hub.session("a", durability="commit") as a:
        a.say("user", "one")
        a.say("user", "two")
        monkeypatch.setattr(hub.catalog, "append", lost)
        with pytest.raises(Unavailable):
            a.commit("all")
        a.commit("all")
        assert not left
        assert said(a) == said(hub.get("a")) == ["one", "two"]


@pytest.mark.slow
def test_message_sent_during_a_database_pause_is_recorded_once(tmp_path: Path) -> None:
    server = Server()
    url = f"{server.url()}&connect_timeout=5&bucket=file://{tmp_path}/bucket"
    try:
        with open_hub(url, environ=host_environ(tmp_path, "one")) as hub, hub.session("a") as a:
            a.say("user", "one")
            server.pause()
            try:
                with pytest.raises(Unavailable) as caught, lock_timeout(0.5):
                    a.say("user", "meanwhile")
            finally:
                server.resume()
            assert caught.value.kind == "database_gone"
            at_last(a, "meanwhile")
            a.commit("all")
            a.say("user", "after")
            assert said(a) == said(hub.get("a")) == ["one", "meanwhile", "after"]
            hub.verify()
    finally:
        server.end()


def at_last(session: Session, text: str) -> None:
    def is_said() -> bool:
        try:
            session.say("user", text)
        except Unavailable:
            return False
        return True

    eventually(is_said)
