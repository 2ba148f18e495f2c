"""Sessions as messages of model APIs, checked by their own types and by what they refuse."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from tests.integrations.transcripts.checking import check_anthropic, check_openai, check_responses
from tests.integrations.transcripts.written import (
    CONVERSATION,
    Claude,
    rollout,
    small,
    text,
    thinking,
    use,
)

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.transcripts.importer import import_transcript
from ortet.sessions.reader import SessionReader
from ortet.sessions.writing.bulk_import import append_events
from ortet.sessions.writing.large_events import EventInput


def taken(hub: Hub, claude: Claude, tmp_path: Path) -> SessionReader:
    path = claude.write(tmp_path / f"{CONVERSATION}.jsonl")
    return hub.get(import_transcript(hub, "claude-code", path)[0].session)


def check(view: SessionReader) -> None:
    for whole in (False, True):
        check_anthropic(view.conversation.export_messages("anthropic", whole=whole))
        check_openai(view.conversation.export_messages("openai", whole=whole))
        check_responses(view.conversation.export_messages("openai-responses", whole=whole))


def test_a_claude_transcript_exports_its_messages_unchanged(hub: Hub, tmp_path: Path) -> None:
    view = taken(hub, small(), tmp_path)
    check(view)
    told = view.conversation.export_messages("anthropic")["messages"]
    assert len(told) == 10
    assert told[1]["content"] == [
        thinking("Look at the lexer first."),
        text("I read the lexer."),
        use("toolu_01", "Read", file_path="/home/ada/parser/lexer.py"),
    ]
    assert told[6]["content"][0]["is_error"] is True


def test_a_codex_transcript_exports_its_encrypted_reasoning(hub: Hub, tmp_path: Path) -> None:
    path = rollout().write(tmp_path / "rollout-x.jsonl")
    view = hub.get(import_transcript(hub, "codex", path)[0].session)
    check(view)
    items = view.conversation.export_messages("openai-responses")
    (reasoning,) = [item for item in items if item["type"] == "reasoning"]
    assert reasoning["encrypted_content"] == "gAAAAABo"
    assert not any("reasoning" in str(one) for one in view.conversation.export_messages("openai"))


def test_calls_at_once_stay_in_one_answer(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("both")
    one = claude.answer(thinking("both at once"), id_="msg_01")
    one = claude.answer(use("toolu_01", "Bash", command="a"), id_="msg_01")
    claude.result("toolu_01", "A")
    two = claude.answer(use("toolu_02", "Bash", command="b"), id_="msg_01", parentUuid=one)
    claude.result("toolu_02", "B", parentUuid=two)
    view = taken(hub, claude, tmp_path)
    check(view)
    told = view.conversation.export_messages("anthropic")["messages"]
    kinds = [[part["type"] for part in one["content"]] for one in told]
    assert kinds == [["text"], ["thinking", "tool_use", "tool_use"], ["tool_result"] * 2]


def test_calls_without_a_result_are_closed(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("both")
    claude.answer(use("toolu_01", "Bash", command="a"), id_="msg_01")
    claude.answer(use("toolu_02", "Bash", command="b"), id_="msg_01")
    claude.result("toolu_02", "B")
    claude.prompt("[Request interrupted by user]")
    view = taken(hub, claude, tmp_path)
    check(view)
    told = view.conversation.export_messages("anthropic")["messages"]
    assert told[2]["content"][1]["is_error"] is True


def test_unsigned_thoughts_are_not_exported(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("hm")
    claude.answer({"type": "thinking", "thinking": "unsigned"}, text("yes"), id_="msg_01")
    claude.answer({"type": "redacted_thinking", "data": "sealed"}, text("no"), id_="msg_02")
    view = taken(hub, claude, tmp_path)
    check(view)
    told = str(view.conversation.export_messages("anthropic"))
    assert "unsigned" not in told and "sealed" in told


def test_pictures_and_long_results_come_back_whole(hub: Hub, tmp_path: Path) -> None:
    data = base64.b64encode(os.urandom(900_000)).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    long = os.urandom(700_000).hex()
    claude = Claude()
    claude.prompt([text("see"), {"type": "image", "source": source}])
    claude.answer(use("toolu_01", "Bash", command="cat"), id_="msg_01")
    claude.result("toolu_01", long)
    view = taken(hub, claude, tmp_path)
    check(view)
    told = view.conversation.export_messages("anthropic")["messages"]
    assert told[0]["content"][1]["source"] == source
    assert told[2]["content"][0]["content"] == long
    chat = view.conversation.export_messages("openai")
    assert chat[0]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{data}"
    # what a model is given without it is short, and no half of a picture
    assert "image" not in [part["type"] for part in view.messages()[0].content]
    hub.sweep(expire_ns=0)
    assert view.conversation.export_messages("anthropic")["messages"] == told
    hub.verify()


def test_compacted_messages_are_exported_as_their_summary(hub: Hub, tmp_path: Path) -> None:
    claude = small()
    claude.prompt("A lexer was mended.", isCompactSummary=True)
    claude.prompt("go on")
    view = taken(hub, claude, tmp_path)
    check(view)
    short = view.conversation.export_messages("anthropic")["messages"]
    assert [len(one["content"]) for one in short] == [2]
    assert len(view.conversation.export_messages("openai", whole=True)) == 11


def test_an_ortet_session_exports_valid_messages_for_every_api(hub: Hub) -> None:
    with hub.session("own") as session:
        session.say("system", "be kind")
        session.say("assistant", "hello")
        session.say("reviewer", "who are you?")
        call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        session.say("assistant", None, tool_calls=[call])
        session.say("user", [{"type": "text", "text": "wait"}])
        session.say("tool", "3", tool_call_id="c1")
        session.say("tool", "4", tool_call_id="c1")
        session.think("no API has signed this")
        session.say("assistant", [{"type": "thinking", "thinking": "nor this"}])
        check(session)
        assert session.conversation.export_messages("anthropic")["system"] == "be kind"
        with pytest.raises(Invalid, match="openai-responses"):
            session.conversation.export_messages("xml")  # type: ignore[arg-type]


def test_an_empty_session_exports_no_messages(hub: Hub) -> None:
    with hub.session("empty") as session:
        assert session.conversation.export_messages("openai") == []
        assert session.conversation.export_messages("openai-responses") == []
        assert session.conversation.export_messages("anthropic") == {"system": "", "messages": []}


def test_messages_stored_apart_by_an_adapter_are_exported(hub: Hub) -> None:
    long = "a long story " * 100_000
    with hub.session("long") as session:
        append_events(session, [EventInput("message", {"role": "user", "content": long})])
        assert session.conversation.export_messages("openai") == [{"role": "user", "content": long}]
        session.say("user", "short", stored={"oid": "no such thing", "size": 3})
        assert session.conversation.export_messages("openai")[1]["content"] == "short"
