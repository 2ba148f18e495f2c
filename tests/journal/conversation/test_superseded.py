"""Messages that are set aside: they are in the journal, and not in the conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.journal.conversation.superseded import apply_superseded, is_superseded, merge_ranges
from ortet.sessions.session import Session

SPANS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1])),
    max_size=5,
)


def numbers(spans: Any) -> set[int]:
    return {seq for first, last in spans for seq in range(first, last + 1)}


@given(SPANS, SPANS, SPANS)
def test_span_operations_agree_with_sets_of_numbers(
    before: list[Any], out: list[Any], back: list[Any]
) -> None:
    known = merge_ranges(before)
    found = apply_superseded(known, {"out": out, "back": back})
    wanted = (numbers(before) - numbers(back)) | numbers(out)
    assert {seq for seq in range(50) if is_superseded(found, seq)} == wanted
    assert found == merge_ranges(found)
    assert apply_superseded(known, None) is known


def aside(session: Session, **data: Any) -> None:
    session.internals.pipeline.add("aside", data)


def texts(found: Any) -> list[Any]:
    return [message.content for message in found]


def test_a_message_set_aside_is_in_no_conversation_until_restored(hub: Hub, tmp_path: Path) -> None:
    with hub.session("s") as s:
        s.say("user", "the river is long")
        left = s.say("assistant", "the river is the Nile")
        also = s.say("user", "the river is old")
        s.say("assistant", "the river is the Rhine")
        aside(s, out=[[left.seq, also.seq]])
        wanted = ["the river is long", "the river is the Rhine"]
        assert texts(s.messages()) == texts(s.messages(last=9)) == texts(s.context()) == wanted
        assert texts(s.messages(last=2)) == wanted
        assert [
            one["content"] for one in s.conversation.export_messages("openai", whole=True)
        ] == wanted
        assert [one["content"] for one in s.memory.working().messages] == wanted
        assert "Nile" not in s.briefing().markdown
        hub.governance.export_jsonl(tmp_path / "all.jsonl")
        assert "Nile" not in (tmp_path / "all.jsonl").read_text()
        assert {hit.text for hit in s.recall("river", k=2, tiers="working")} == set(wanted)
        assert len(s.recall("river", k=1, tiers="working")) == 1
        assert len([one for one in s.events() if one.kind == "message"]) == 4
        lines = [line.what for line in hub.audit(s.id).lines if line.kind == "aside"]
        assert lines == [f"set aside: messages of events {left.seq} to {also.seq}"]
        s.commit("so far")
        aside(s, back=[[left.seq, left.seq]])
        assert texts(s.messages())[1] == "the river is the Nile"
        assert len(s.recall("river", k=9, tiers="working")) == 3
    view = hub.get("s")
    assert texts(view.messages()) == [wanted[0], "the river is the Nile", wanted[1]]
    assert hub.verify()


def test_a_compaction_leaves_out_messages_that_are_set_aside(hub: Hub) -> None:
    with hub.session("s") as s:
        rule = s.say("system", "be brief")
        s.say("user", "one")
        left = s.say("assistant", "never mind")
        s.say("assistant", "two")
        s.say("user", "three")
        aside(s, out=[[left.seq, left.seq]])
        past = s.compact(keep_last=1)
        assert past is not None
        assert "never mind" not in past.summary
        assert texts(s.conversation.dropped()) == ["be brief", "one", "two"]
        assert texts(s.context())[0] == "be brief"
        aside(s, out=[[rule.seq, rule.seq]])
        assert "be brief" not in texts(s.context())
        assert s.milestone()
        assert not [one for one in s.memory.episodes() if "never mind" in one.summary]


def test_tool_calls_that_are_set_aside_wait_for_no_result(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "look")
        call = {"id": "1", "name": "look", "args": {}}
        asked = s.say("assistant", "", tool_calls=[call])
        aside(s, out=[[asked.seq, asked.seq]])
        s.internals.navigation.close_tool_calls()
        assert texts(s.messages()) == ["look"]


def test_invalid_spans_are_refused(hub: Hub) -> None:
    with hub.session("s") as s, pytest.raises(Invalid) as caught:
        aside(s, out=[["a", 1]])
    assert caught.value.kind == "bad_value"
