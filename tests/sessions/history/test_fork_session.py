"""Going back to before an event: what was said since is left, what was learned holds on."""

from __future__ import annotations

import pytest

from ortet.errors import NotFound
from ortet.hub.hub import Hub
from ortet.journal.events import Draft
from ortet.sessions.history.fork_session import rewind_before_event
from ortet.sessions.reader import SessionReader


def said(view: SessionReader) -> list[object]:
    return [message.content for message in view.messages()]


def test_go_before_drops_later_messages_and_keeps_facts(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
        s.say("assistant", "two")
        s.learn("the sky is blue")
        s.say("user", "three")
        second = s.messages()[1].seq
        other = {"role": "assistant", "content": "other"}
        rewind_before_event(s, second, lambda: [Draft("message", other, hub.store.author)])
        assert said(s) == ["one", "other"]
        assert [fact.text for fact in s.facts()] == ["the sky is blue"]
        s.say("user", "on")
        (back,) = [
            c
            for c in hub.log(s.internals.row.branch)
            if c.message == "before messages were taken back"
        ]
    with hub.session("s") as s:
        assert said(s) == ["one", "other", "on"]
        s.restore(back.oid)
        assert said(s) == ["one", "two", "three"]
    assert hub.verify().problems == []


def test_go_before_an_unknown_event_is_not_found(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
        for seq in (0, 1, s.messages()[-1].seq + 1):
            with pytest.raises(NotFound, match=f"event {seq}"):
                rewind_before_event(s, seq)
        assert said(s) == ["one"]
