"""Transcripts of Claude Code in sessions: once, as far as they got, with their branches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integrations.transcripts.written import CONVERSATION, Claude, small, text, thinking, use

from ortet.errors import Conflict
from ortet.hub.hub import Hub
from ortet.integrations.transcripts.importer import ImportResult, import_transcript
from ortet.journal.conversation.text import text_of
from ortet.sessions.reader import SessionReader

NAME = f"claude-code/{CONVERSATION}"


def taken(hub: Hub, claude: Claude, tmp_path: Path) -> list[ImportResult]:
    return import_transcript(hub, "claude-code", claude.write(tmp_path / f"{CONVERSATION}.jsonl"))


def said(view: SessionReader) -> list[str]:
    return [text_of(message.content) for message in view.messages()]


def test_import_records_messages_thoughts_effects_files_and_spend(hub: Hub, tmp_path: Path) -> None:
    (one,) = taken(hub, small(), tmp_path)
    assert (one.name, one.lines, one.added, one.unknown) == (NAME, 15, 15, 0)
    assert (one.messages, one.thoughts, one.deeds, one.files) == (11, 1, 3, ["lexer.py"])
    view = hub.get(NAME)
    assert view.goal == "the lexer drops the last token"
    assert [message.role for message in view.messages()][:4] == [
        *("user", "assistant", "assistant", "user")
    ]
    thought = next(event for event in view.events() if event.kind == "thought")
    assert thought.data["text"] == "Look at the lexer first."
    assert thought.data["part"]["signature"] == "EqQBCkYIBhgC"
    effects = [(one.name, one.state, one.why) for one in view.effects()]
    assert effects == [
        ("Edit", "done", ""),
        ("Bash", "failed", "Run the tests"),
        ("Bash", "done", "Run it again"),
    ]
    assert [(one.name, one.kind, one.link) for one in view.artifacts()] == [
        ("lexer.py", "file", "lexer.py")
    ]
    assert view.artifact_store.lineage("lexer.py").action is not None
    # five answers, of which the first has three lines that say the same cost
    assert view.accounting.spent()["output_tokens"] == 5 * 30
    assert view.accounting.spent() == one.spent
    assert [call.model for call in view.accounting.model_calls()] == ["claude-opus-4-5"] * 5
    assert [(bill.key, bill.spends) for bill in hub.bill(by="day")] == [("2026-03-02", 1)]
    assert [event.kind for event in view.records()][:3] == [
        *("claude-code.file-history-snapshot", "claude-code.queue-operation"),
        "claude-code.context",
    ]
    assert view.messages()[0].extra["at"] == 1772442001250000000
    hub.verify()


def test_every_value_of_a_line_is_kept(hub: Hub, tmp_path: Path) -> None:
    claude = small()
    taken(hub, claude, tmp_path)
    events = json.dumps([event.data for event in hub.get(NAME).events()])
    for line in claude.lines:
        for value in _leaves(line):
            assert json.dumps(value).strip('"') in events, value


def _leaves(value: object) -> list[str]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() if key != "type" for leaf in _leaves(one)]
    if isinstance(value, list):
        return [leaf for one in value for leaf in _leaves(one)]
    return [value] if isinstance(value, str) else []


def test_importing_the_same_transcript_twice_changes_nothing(hub: Hub, tmp_path: Path) -> None:
    (first,) = taken(hub, small(), tmp_path)
    before = [event.hash for event in hub.get(NAME).events()]
    (again,) = taken(hub, small(), tmp_path)
    assert (again.session, again.lines, again.added) == (first.session, 15, 0)
    assert [event.hash for event in hub.get(NAME).events()] == before


def test_a_growing_transcript_is_imported_line_by_line(hub: Hub, tmp_path: Path) -> None:
    whole = small()
    for count in range(1, len(whole.lines) + 1):
        part = Claude()
        part.lines = whole.lines[:count]
        (one,) = taken(hub, part, tmp_path)
        assert (one.lines, one.added) == (count, 1)
    view = hub.get(NAME)
    assert [message.role for message in view.messages()].count("assistant") == 6
    assert [effect.state for effect in view.effects()] == ["done", "failed", "done"]
    assert view.accounting.spent()["output_tokens"] == 5 * 30
    assert len(view.artifacts()) == 1


def test_a_growing_answer_is_billed_once(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("count")
    small_usage = {"input_tokens": 7, "output_tokens": 1}
    claude.answer(text("one"), id_="msg_01", usage=small_usage)
    taken(hub, claude, tmp_path)
    claude.answer(text("two"), id_="msg_01", usage={"input_tokens": 7, "output_tokens": 9})
    taken(hub, claude, tmp_path)
    assert hub.get(NAME).accounting.spent() == {"input_tokens": 7, "output_tokens": 9, "tokens": 16}


def test_a_last_line_that_is_not_whole_waits(hub: Hub, tmp_path: Path) -> None:
    path = small().write(tmp_path / f"{CONVERSATION}.jsonl")
    raw = path.read_bytes()
    path.write_bytes(raw[:-40])
    (one,) = import_transcript(hub, "claude-code", path)
    assert (one.lines, one.rest > 0) == (14, True)
    path.write_bytes(raw)
    (one,) = import_transcript(hub, "claude-code", path)
    assert (one.lines, one.added, one.rest) == (15, 1, 0)


def rewound() -> Claude:
    """Two questions; the second was taken back and another asked in its place."""
    claude = Claude()
    claude.prompt("first")
    behind = claude.answer(text("one"), id_="msg_01")
    claude.prompt("second, a mistake")
    claude.answer(text("two"), id_="msg_02")
    claude.last = behind
    return claude


def test_a_rewind_in_the_transcript_becomes_a_branch(hub: Hub, tmp_path: Path) -> None:
    claude = rewound()
    claude.prompt("second, better")
    claude.answer(text("three"), id_="msg_03")
    main, left = taken(hub, claude, tmp_path)
    assert (main.name, left.parent) == (NAME, NAME)
    assert left.name.startswith(f"{NAME}/left-")
    assert said(hub.get(NAME)) == ["first", "one", "second, better", "three"]
    assert said(hub.get(left.name)) == ["first", "one", "second, a mistake", "two"]
    assert hub.get(left.name).internals.row.parent == main.session
    assert [one.added for one in taken(hub, claude, tmp_path)] == [0, 0]
    assert hub.get(NAME).accounting.spent()["output_tokens"] == 3 * 30


def test_a_rewind_after_the_first_import_becomes_a_branch(hub: Hub, tmp_path: Path) -> None:
    claude = rewound()
    taken(hub, claude, tmp_path)
    assert said(hub.get(NAME))[-1] == "two"
    claude.prompt("second, better")
    main, left = taken(hub, claude, tmp_path)
    assert (main.added, left.added) == (1, 0)
    assert said(hub.get(NAME)) == ["first", "one", "second, better"]
    assert said(hub.get(left.name)) == ["first", "one", "second, a mistake", "two"]
    claude.answer(text("three"), id_="msg_03")
    assert [one.added for one in taken(hub, claude, tmp_path)] == [1, 0]
    assert [one.added for one in taken(hub, claude, tmp_path)] == [0, 0]
    hub.verify()


def test_a_rewind_to_the_first_question_becomes_a_branch(hub: Hub, tmp_path: Path) -> None:
    claude = rewound()
    claude.last = None
    claude.prompt("something else")
    _, left = taken(hub, claude, tmp_path)
    assert said(hub.get(NAME)) == ["something else"]
    assert said(hub.get(left.name))[0] == "first"


def test_nested_rewinds_become_branches_of_branches(hub: Hub, tmp_path: Path) -> None:
    claude = rewound()
    behind = claude.prompt("third")
    claude.answer(text("three"), id_="msg_03")
    claude.last = claude.lines[3]["uuid"]
    claude.prompt("of the branch")
    claude.last = claude.lines[3]["uuid"]
    claude.prompt("of the branch too")
    claude.last = behind
    claude.answer(text("four"), id_="msg_04")
    found = {
        one.name.removeprefix(NAME): said(hub.get(one.name)) for one in taken(hub, claude, tmp_path)
    }
    assert found[""] == ["first", "one", "third", "four"]
    assert sorted(words[-1] for words in found.values()) == [
        *("four", "of the branch", "of the branch too", "three")
    ]


def test_branches_of_lines_with_unusual_keys_are_imported(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    behind = claude.prompt("first", uuid="../x y")
    for number in range(4):
        claude.last = behind
        claude.prompt(f"again {number}", uuid=f"msg-00000001/ü {number}")
    main, *others = taken(hub, claude, tmp_path)
    assert said(hub.get(main.name)) == ["first", "again 3"]
    assert [said(hub.get(one.name))[1] for one in others] == ["again 0", "again 1", "again 2"]


def test_answers_copied_from_another_conversation_are_not_billed_again(
    hub: Hub, tmp_path: Path
) -> None:
    claude = Claude()
    origin = {"sessionId": "another", "messageUuid": "x"}
    claude.prompt("first", forkedFrom=origin)
    claude.answer(text("one"), id_="msg_01", forkedFrom=origin)
    claude.prompt("second")
    claude.answer(text("two"), id_="msg_02")
    taken(hub, claude, tmp_path)
    assert hub.get(NAME).accounting.spent()["output_tokens"] == 30


def test_calls_at_once_are_no_branches(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("both")
    one = claude.answer(use("toolu_01", "Bash", command="a"), id_="msg_01")
    two = claude.answer(use("toolu_02", "Bash", command="b"), id_="msg_01")
    claude.result("toolu_01", "A", parentUuid=one)
    behind = claude.result("toolu_02", "B", parentUuid=two)
    claude.answer(text("done"), id_="msg_02", parentUuid=behind)
    (one_,) = taken(hub, claude, tmp_path)
    assert one_.messages == 6
    assert said(hub.get(NAME))[-1] == "done"


def test_agents_have_sessions_of_their_own(hub: Hub, tmp_path: Path) -> None:
    claude = small()
    main = claude.last
    claude.last = None
    claude.prompt("look around", isSidechain=True, agentId="a1b2c3")
    claude.answer(text("nothing here"), id_="msg_10", isSidechain=True, agentId="a1b2c3")
    claude.last = None
    claude.prompt("without a name", isSidechain=True)
    claude.answer(text("nor here"), id_="msg_11", isSidechain=True)
    claude.last = main
    claude.prompt("thanks")
    found = taken(hub, claude, tmp_path)
    assert [one.parent for one in found] == ["", NAME, NAME]
    assert said(hub.get(NAME))[-1] == "thanks"
    assert said(hub.get(f"{NAME}/agent-a1b2c3")) == ["look around", "nothing here"]
    assert said(hub.get(found[2].name)) == ["without a name", "nor here"]


def test_a_compaction_in_the_transcript_becomes_a_compaction(hub: Hub, tmp_path: Path) -> None:
    claude = small()
    logical = claude.last
    claude.last = None
    metadata = {"trigger": "auto", "preTokens": 167393}
    claude.line(
        "system", subtype="compact_boundary", logicalParentUuid=logical, compactMetadata=metadata
    )
    claude.prompt("The user had a lexer.", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    claude.prompt("go on")
    (one,) = taken(hub, claude, tmp_path)
    view = hub.get(NAME)
    assert said(view) == ["go on"]
    assert [past.summary for past in view.conversation.compactions()] == ["The user had a lexer."]
    assert len(view.conversation.dropped()) == 11
    assert "The user had a lexer." in text_of(view.context().messages[0].content)
    assert one.added == 18
    assert taken(hub, claude, tmp_path)[0].added == 0


def test_commands_and_interruptions_are_not_user_messages(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt(_command("/clear"))
    claude.prompt("<local-command-stdout></local-command-stdout>")
    claude.prompt("write a lexer")
    claude.answer(use("toolu_01", "Bash", command="make"), id_="msg_01")
    claude.result("toolu_01", "stopped", failed=True)
    claude.prompt([text("[Request interrupted by user for tool use]")])
    claude.prompt(_command("/review", "the lexer"))
    claude.prompt("why did it say [Request interrupted by user]?")
    claude.answer(text("you did"), id_="msg_02")
    claude.prompt(_command("/compact"))
    claude.prompt("[Request interrupted by user]")
    taken(hub, claude, tmp_path)
    view = hub.get(NAME)
    asked = [text_of(one.content) for one in view.messages() if one.role == "user"]
    assert asked == [
        "write a lexer",
        "stopped",
        _command("/review", "the lexer"),
        "why did it say [Request interrupted by user]?",
    ]
    assert view.goal == "write a lexer"
    kept = [record.data["said"]["message"] for record in view.records("claude-code.interrupted")]
    assert [text_of(one["content"])[-9:] for one in kept] == ["tool use]", " by user]"]
    commands = [r.data["said"]["message"]["content"] for r in view.records("claude-code.command")]
    assert [text_of(one)[:9] for one in commands] == ["<command-", "<local-co", "<command-"]


def _command(name: str, given: str = "") -> str:
    said = f"<command-message>{name[1:]}</command-message>\n<command-name>{name}</command-name>"
    return f"{said}\n<command-args>{given}</command-args>"


def test_lines_that_are_only_displayed_are_not_messages(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("hello")
    claude.answer(text("API Error: 529 overloaded"), id_="x", isApiErrorMessage=True)
    claude.line("attachment", attachment={"type": "edited_text_file", "filename": "a.py"})
    claude.line("progress", data={"type": "bash_progress", "output": "…"})
    claude.prompt("only for you", isVisibleInTranscriptOnly=True)
    (one,) = taken(hub, claude, tmp_path)
    view = hub.get(NAME)
    assert (said(view), one.unknown) == (["hello"], 0)
    assert [event.kind for event in view.records()[1:]] == [
        *("claude-code.shown", "claude-code.attachment", "claude-code.progress"),
        "claude-code.shown",
    ]


def test_old_lines_with_the_whole_answer_are_imported(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.bare("summary", summary="Lexer fixed", leafUuid="x")
    claude.prompt([text("look"), {"type": "image", "source": {"type": "base64", "data": "AAAA"}}])
    claude.answer(thinking("hm"), text("ok"), use("t", "mcp__db__query", sql="…"), id_="m")
    (one,) = taken(hub, claude, tmp_path)
    view = hub.get(NAME)
    assert (one.thoughts, one.deeds) == (1, 1)
    assert [effect.state for effect in view.effects()] == ["begun"]
    hub.session(NAME).pause()  # whoever goes on is told that nobody knows
    assert [effect.state for effect in hub.get(NAME).effects()] == ["unsettled"]
    claude.result("t", [text("3 rows")])
    taken(hub, claude, tmp_path)
    assert [effect.state for effect in hub.get(NAME).effects()] == ["done"]


def test_import_commits_at_each_question(hub: Hub, tmp_path: Path) -> None:
    claude = rewound()
    (one,) = taken(hub, claude, tmp_path)
    assert [commit.message for commit in hub.log(one.commit)] == ["second, a mistake", "first"]


def test_an_erased_message_is_not_imported_again(hub: Hub, tmp_path: Path) -> None:
    claude = small()
    taken(hub, claude, tmp_path)
    first = hub.get(NAME).messages()[0]
    hub.erase(NAME, seqs=[first.seq])
    claude.prompt("thanks")
    (again,) = taken(hub, claude, tmp_path)
    assert again.added == 1
    assert "the lexer drops" not in "".join(said(hub.get(NAME)))
    hub.erase(NAME)
    with pytest.raises(Conflict, match="erased"):
        taken(hub, claude, tmp_path)
