"""Transcripts of the Codex CLI in sessions."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.transcripts.written import CONVERSATION, Codex, rollout

from ortet.hub.hub import Hub
from ortet.integrations.transcripts.importer import import_transcript
from ortet.journal.conversation.text import text_of

NAME = f"codex/{CONVERSATION}"


def test_import_records_messages_thoughts_effects_files_and_spend(hub: Hub, tmp_path: Path) -> None:
    path = rollout().write(tmp_path / "rollout-2025-11-20T10-00-00-x.jsonl")
    (one,) = import_transcript(hub, "codex", path)
    assert (one.name, one.lines, one.added, one.unknown) == (NAME, 17, 17, 0)
    assert (one.messages, one.thoughts, one.deeds, one.files) == (9, 1, 3, ["lexer.py"])
    view = hub.get(NAME)
    assert view.goal == "the lexer drops the last token"
    states = [(effect.name, effect.state) for effect in view.effects()]
    assert states == [("shell", "done"), ("apply_patch", "done"), ("local_shell", "failed")]
    assert view.accounting.spent()["tokens"] == 1500  # told twice, spent once
    assert {call.model for call in view.accounting.model_calls()} == {"gpt-5-codex"}
    thought = next(event for event in view.events() if event.kind == "thought")
    assert thought.data["text"] == "**Looking at the lexer**"
    assert thought.data["part"]["encrypted_content"] == "gAAAAABo"
    assert [
        event.data["said"]["action"]["query"] for event in view.records("codex.web_search_call")
    ]
    assert import_transcript(hub, "codex", path)[0].added == 0
    hub.verify()


def test_turns_that_were_rolled_back_are_a_branch(hub: Hub, tmp_path: Path) -> None:
    codex = rollout()
    path = tmp_path / "rollout-x.jsonl"
    codex.said("user", "now the parser")
    codex.said("assistant", "done")
    import_transcript(hub, "codex", codex.write(path))
    codex.event("thread_rolled_back", num_turns=1)
    codex.said("user", "now the printer")
    main, left = import_transcript(hub, "codex", codex.write(path))
    said = [text_of(message.content) for message in hub.get(NAME).messages()]
    assert said[-2:] == ["The last token is kept now.", "now the printer"]
    said = [text_of(message.content) for message in hub.get(left.name).messages()]
    assert said[-3:] == ["The last token is kept now.", "now the parser", "done"]
    assert (main.added, left.added, left.parent) == (2, 0, NAME)


def test_a_compaction_in_the_transcript_becomes_a_compaction(hub: Hub, tmp_path: Path) -> None:
    codex = rollout()
    codex.line("compacted", {"message": "A lexer was mended.", "replacement_history": []})
    codex.said("user", "go on")
    import_transcript(hub, "codex", codex.write(tmp_path / "rollout-x.jsonl"))
    view = hub.get(NAME)
    assert [text_of(message.content) for message in view.messages()] == ["go on"]
    assert view.conversation.compactions()[0].summary == "A lexer was mended."


def test_transcripts_of_the_first_format_are_imported(hub: Hub, tmp_path: Path) -> None:
    old = Codex(bare=True)
    old.lines.append(
        {"id": CONVERSATION, "timestamp": "2025-06-01T10:00:00Z", "instructions": None}
    )
    old.lines.append({"record_type": "state"})
    old.said("user", "hello")
    old.item("reasoning", summary=[{"type": "summary_text", "text": "greet"}])
    old.item("function_call", name="shell", arguments='{"command": ["ls"]}', call_id="call_1")
    old.item("function_call_output", call_id="call_1", output={"content": "a", "success": False})
    (one,) = import_transcript(hub, "codex", old.write(tmp_path / "rollout-x.jsonl"))
    view = hub.get(NAME)
    assert (one.lines, one.unknown, one.messages, one.thoughts) == (6, 0, 3, 1)
    assert [effect.state for effect in view.effects()] == ["failed"]
    assert [text_of(message.content) for message in view.messages()][-1] == "a"


def test_pictures_and_unknown_lines_are_kept(hub: Hub, tmp_path: Path) -> None:
    codex = Codex()
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    codex.item("message", role="user", content=[{"type": "input_text", "text": "see"}, picture])
    codex.item("tool_search_call", call_id="x", arguments="{}")
    codex.line("something_new", {"a": 1})
    (one,) = import_transcript(hub, "codex", codex.write(tmp_path / "rollout-abc.jsonl"))
    assert (one.name, one.unknown) == ("codex/rollout-abc", 2)
    view = hub.get(one.name)
    parts = view.messages()[0].content
    assert [part["type"] for part in parts] == ["text", "image_url"]
    kinds = [event.kind for event in view.records()]
    assert kinds == ["codex.tool_search_call", "codex.something_new"]
