"""What events about the world around do to a mind, and how it is told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.journals import Bench

from ortet.history.tree.tree import Maps
from ortet.journal.events import Event
from ortet.journal.kinds.external_state import (
    describe_browser,
    describe_collaboration,
    describe_token,
    describe_window,
)
from ortet.journal.kinds.registry import EVENT_KINDS, fold
from ortet.journal.state.records import (
    BROWSER,
    BrowserState,
    Collaboration,
    RateLimitWindow,
    ServiceToken,
    external_state_events,
)
from ortet.journal.state.state import SessionState


def event(seq: int, kind: str, /, **data: Any) -> Event:
    return Event(seq, kind, seq * 10, "me", data, b"")


@pytest.fixture
def mind(bench: Bench) -> SessionState:
    return SessionState(Maps(bench.objects))


class TestFold:
    def test_fields_missing_in_an_event_keep_their_value(self, mind: SessionState) -> None:
        events = [
            event(1, "collaboration", name="pr", kind="pull_request", text="half"),
            event(2, "collaboration", name="pr", status="done", effect="e1"),
            event(3, "browser", urls=["https://a/"]),
            event(4, "browser", storage="browser/s/1"),
            event(5, "window", service="x", remaining=3, reset=7),
            event(6, "window", service="x", remaining=2, reset=7, limit=9),
            event(7, "token", service="x", vault="one"),
            event(8, "token", service="x", vault="two"),
        ]
        fold(mind, events)
        assert list(mind.collaborations) == [
            Collaboration("pr", "pull_request", "", "done", "half", "e1", 2, 20)
        ]
        assert mind.browsers.get(BROWSER) == BrowserState(["https://a/"], "browser/s/1", 4, 40)
        assert list(mind.windows) == [RateLimitWindow("x", 2, 7, 9, seq=6, time=60)]
        assert list(mind.tokens) == [ServiceToken("x", "two", 8, 80)]

    def test_collaborations_and_browsers_survive_save_and_load(
        self, mind: SessionState, bench: Bench
    ) -> None:
        objects = bench.objects
        fold(mind, [event(1, "collaboration", name="pr"), event(2, "browser", urls=["https://a/"])])
        again = SessionState.load(Maps(objects), objects, mind.save(objects))
        assert again.equals(mind) and list(again.collaborations) == list(mind.collaborations)

    def test_a_session_state_without_such_events_has_no_collaborations(
        self, mind: SessionState
    ) -> None:
        """Its fold is what earlier releases wrote."""
        fold(mind, [event(1, "goal", text="x")])
        assert all(not list(getattr(mind, name)) for name in ("collaborations", "windows"))
        assert {"collaboration", "window", "token", "browser"} <= set(EVENT_KINDS)

    def test_told_events_fold_back_to_the_same_records(self, mind: SessionState) -> None:
        one = Collaboration("pr", "pull_request", "https://h/1", "done", "text", "e1")
        window, token = RateLimitWindow("x", 2, 7, 9), ServiceToken("x", "two")
        events = external_state_events([one], [window], [token])
        fold(mind, [event(0, kind, **data) for kind, data in events])
        assert [list(mind.collaborations), list(mind.windows), list(mind.tokens)] == [
            [one],
            [window],
            [token],
        ]


def test_each_record_is_told_in_one_line_of_text() -> None:
    one = Collaboration("pr", "pull_request", "https://h/1", "done", "the lock\nis never")
    assert describe_collaboration(one)[0] == (
        "[done] pr (pull_request), https://h/1: the lock is never"
    )
    reset = 1_700_000_000 * 10**9
    assert (
        describe_window(RateLimitWindow("x", 2, reset, 9))[0]
        == "x: 2 of 9 left until 2023-11-14T22:13:20Z"
    )
    assert describe_token(ServiceToken("x", "two"))[0] == "x: in the vault as two"
    assert describe_browser(BrowserState(["https://a/"], "browser/s/1")) == (
        "open: https://a/; cookies and storage are kept",
        {"urls": ["https://a/"], "storage": True},
    )
    assert describe_browser(BrowserState())[0] == "nothing open; no cookies are kept"
