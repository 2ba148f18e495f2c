"""Events of several kinds in one write, large ones beside the journal; forks with new names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ortet
from ortet.backends.base import RowChange
from ortet.errors import Conflict, Invalid
from ortet.ids import from_hex
from ortet.integrations._shared.messages import append_messages, load_full_message
from ortet.sessions.history.fork_session import fork_named_session
from ortet.sessions.writing.bulk_import import append_events, commit_if_many_events
from ortet.sessions.writing.large_events import EventInput, full_data


def test_tell_writes_events_and_rows_together_or_not_at_all(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        said = {"role": "user", "content": "hello", "extra": {"app": {"n": 1}}}
        row = RowChange("app", "k", b"1")
        events = append_events(
            s, [EventInput("message", said), EventInput("app.mark", {"n": 2})], rows=[row]
        )
        assert [event.kind for event in events] == ["message", "app.mark"]
        assert s.messages()[0].content == "hello"
        kept = hub.catalog.row("app", "k")
        assert kept is not None
        before = len(list(s.events()))
        for bad in (EventInput("Not a kind.", {}), EventInput("app.mark", {"n": object()})):
            with pytest.raises(Invalid):
                append_events(s, [EventInput("message", said), bad])
        with pytest.raises(Conflict):
            append_events(
                s, [EventInput("message", said)], rows=[RowChange("app", "k", b"2", expect=0)]
            )
        assert len(list(s.events())) == before
        assert append_events(s, []) == []


@pytest.mark.parametrize("large", ["x" * 700_000, "y" * 5_000_000])
def test_event_content_too_large_is_stored_as_a_separate_object(tmp_path: Path, large: str) -> None:
    content = [{"type": "text", "text": "a red fox"}, {"type": "image", "data": large}]
    said: dict[str, Any] = {"role": "user", "content": content, "extra": {"app": 1}}
    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        append_events(s, [EventInput("message", said), EventInput("app.blob", {"data": large})])
        shown = s.messages()[0].content
        assert shown.startswith("a red fox")
        assert len(shown) < 5000
        hub.sweep()  # nothing is committed yet: only the events name it
        assert s.recall("fox")[0].text == shown
        s.commit("with both")
        hub.sweep()
        hub.verify()
    with ortet.open(tmp_path / "store") as hub:
        told = [e for e in hub.get("s").events() if e.kind in ("message", "app.blob")]
        assert [full_data(hub.store, event) for event in told] == [said, {"data": large}]


def test_a_large_message_of_an_adapter_is_had_back_whole_without_its_secrets(
    tmp_path: Path,
) -> None:
    large = "y" * 700_000
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        hub.vault.put("PIN", "hunter2hunter2")
        asked = {"role": "assistant", "content": "", "tool_calls": [call], "blob": large}
        told = {"role": "tool", "content": f"hunter2hunter2 {large}", "tool_call_id": "c1"}
        append_messages(s, [asked, told])
        first, second = s.messages()
        assert (first.extra["tool_calls"], second.extra["tool_call_id"]) == ([call], "c1")
        assert len(second.content) < 5000
        assert load_full_message(s, first).extra == {"tool_calls": [call], "blob": large}
        assert load_full_message(s, second).content == f"[PIN] {large}"
        exported = s.conversation.export_messages("openai")
        assert exported[-1]["content"] == f"[PIN] {large}"


def test_seal_if_long_commits_only_a_long_event_log(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub, hub.session("s") as s:
        append_events(s, [EventInput("app.mark", {"n": n}) for n in range(200)])
        commit_if_many_events(s, "long")
        assert s.head is None
        append_events(s, [EventInput("app.mark", {"n": n}) for n in range(400)])
        commit_if_many_events(s, "long")
        assert s.head is not None
        assert s.head.message == "long"


def test_fork_as_makes_a_fork_with_a_chosen_unused_name(tmp_path: Path) -> None:
    with ortet.open(tmp_path / "store") as hub, hub.session("one") as s:
        s.say("user", "shared")
        point = from_hex(s.commit("here").oid)
        other = fork_named_session(s, "far/away", point)
        other.say("user", "only there")
        assert (other.name, other.internals.row.family) == ("far/away", s.internals.row.family)
        assert [m.content for m in other.messages()] == ["shared", "only there"]
        assert [m.content for m in s.messages()] == ["shared"]
        with pytest.raises(Conflict, match="already"):
            fork_named_session(s, "far/away", point)
        with pytest.raises(Invalid):
            fork_named_session(s, "not a name", point)
        hub.verify()
