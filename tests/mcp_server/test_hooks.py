"""`ortet hook` with the JSON that a coding agent gives its hooks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.mcp_project import Project


class Claude:
    """A conversation in a project: its transcript, and what its hooks are given."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.transcript = project.home / "transcript.jsonl"
        self.transcript.write_text("")
        project.ortet("init")

    def entry(self, role: str, *content: dict[str, Any]) -> None:
        line = {
            "parentUuid": None,
            "isSidechain": False,
            "userType": "external",
            "cwd": str(self.project.path),
            "sessionId": "f3b1",
            "version": "2.1.0",
            "type": role,
            "message": {"role": role, "content": list(content)},
            "uuid": "0a1b",
            "timestamp": "2026-11-16T12:00:00.000Z",
        }
        with self.transcript.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def tell(self, event: str, /, **more: Any) -> str:
        given = {
            "session_id": "f3b1",
            "transcript_path": str(self.transcript),
            "cwd": str(self.project.path),
            "permission_mode": "default",
            "hook_event_name": event,
            **more,
        }
        return self.project.ortet("hook", stdin=json.dumps(given))

    def events(self) -> list[dict[str, Any]]:
        listed = json.loads(self.project.ortet("--json", "journal", "proj"))
        return [event for event in listed if event["kind"] != "lifecycle"]

    def messages(self) -> list[str]:
        listed = json.loads(self.project.ortet("--json", "log"))
        return [commit["message"] for commit in listed]


@pytest.fixture
def claude(project: Project) -> Claude:
    return Claude(project)


def test_hooks_record_a_turn_with_thoughts_tool_call_and_commits(claude: Claude) -> None:
    project = claude.project
    file = project.write("src/lexer.py", "old\n")
    assert claude.tell("UserPromptSubmit", prompt="the login test fails\nsee below") == ""
    claude.entry("user", {"type": "text", "text": "the login test fails\nsee below"})
    claude.entry("assistant", {"type": "thinking", "thinking": "the lexer drops a token"})
    claude.entry("assistant", {"type": "text", "text": "I mend the lexer."})
    edit = {"file_path": str(file), "old_string": "old", "new_string": "new"}
    claude.entry("assistant", {"type": "tool_use", "id": "toolu_01", "name": "Edit", "input": edit})
    project.write("src/lexer.py", "new\n")
    response = {"filePath": str(file), "oldString": "old", "newString": "new", "success": True}
    told = claude.tell(
        "PostToolUse",
        tool_name="Edit",
        tool_input=edit,
        tool_response=response,
        tool_use_id="toolu_01",
    )
    assert told == ""
    claude.entry("user", {"type": "tool_result", "tool_use_id": "toolu_01", "content": "ok"})
    claude.entry("assistant", {"type": "text", "text": "It is mended."})
    assert claude.tell("Stop", stop_hook_active=False) == ""
    kinds = [event["kind"] for event in claude.events()]
    assert kinds == ["message", "thought", "thought", "message", "message", "message"]
    thoughts = [event["data"]["text"] for event in claude.events() if event["kind"] == "thought"]
    assert thoughts == ["the lexer drops a token", "I mend the lexer."]
    call, result, answer = (event["data"] for event in claude.events()[-3:])
    assert call["content"][0] == {
        "type": "tool_use",
        "id": "toolu_01",
        "name": "Edit",
        "input": edit,
    }
    assert result["content"][0]["tool_use_id"] == "toolu_01"
    assert (answer["role"], answer["content"]) == ("assistant", "It is mended.")
    assert claude.messages() == [
        "turn: It is mended.",
        "Edit: src/lexer.py",
        "prompt: the login test fails",
    ]
    project.ortet("rewind", "2")
    assert file.read_text() == "old\n" and len(claude.events()) == 1


def test_parallel_tool_calls_record_a_thought_once(claude: Claude) -> None:
    claude.entry("assistant", {"type": "text", "text": "Both at once."})
    for number in (1, 2):
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {}}
        claude.entry("assistant", use)
    for number in (1, 2):
        claude.tell(
            "PostToolUse",
            tool_name="Bash",
            tool_input={"command": f"echo {number}", "description": f"Say {number}"},
            tool_response={"stdout": str(number), "stderr": "", "interrupted": False},
            tool_use_id=f"toolu_{number}",
        )
    assert [event["kind"] for event in claude.events()].count("thought") == 1
    assert claude.messages() == ["Bash: Say 2", "Bash: Say 1"]


def test_failed_tool_call_is_recorded_as_an_error_result(claude: Claude) -> None:
    claude.tell(
        "PostToolUseFailure",
        tool_name="Bash",
        tool_input={"command": "make test"},
        tool_use_id="toolu_9",
        error="Command failed with exit code 2",
    )
    (result,) = claude.events()[-1]["data"]["content"]
    assert result["is_error"] and "exit code 2" in result["content"]


def test_stop_hook_records_the_last_message_of_its_input(claude: Claude) -> None:
    for _ in range(2):  # a hook that keeps the agent going is asked again
        claude.tell("Stop", stop_hook_active=True, last_assistant_message="All is done.")
    (said,) = claude.events()
    assert said["data"]["content"] == "All is done."


def test_session_start_hook_prints_the_briefing(claude: Claude) -> None:
    assert claude.tell("SessionStart", source="startup", model="claude") == ""
    claude.tell("UserPromptSubmit", prompt="the login test fails \x1b[31m")
    claude.project.ortet("learn", "-s", "proj", "tests need PYTHONPATH=src")
    for source in ("startup", "resume", "clear", "compact"):
        told = claude.tell("SessionStart", source=source)
        assert "the login test fails" in told and "PYTHONPATH=src" in told
        assert "no instructions" in told and "\x1b" not in told


def test_compaction_hook_records_an_episode(claude: Claude) -> None:
    claude.tell("UserPromptSubmit", prompt="the login test fails")
    claude.tell("PreCompact", trigger="auto", custom_instructions="")
    assert claude.messages()[0] == "before compaction: auto"
    assert claude.events()[-1]["kind"] == "episode"
    claude.tell("SessionEnd", reason="exit")


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '"x"', "{}", '{"hook_event_name": 5}', "\0"])
def test_bad_hook_input_reports_an_error_and_exits_zero(claude: Claude, text: str) -> None:
    assert "ortet hook: " in claude.project.ortet("hook", stdin=text)
    assert "no session" in claude.project.ortet("journal", code=4)


def test_odd_hook_payloads_are_recorded_or_reported_without_traceback(claude: Claude) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for given in (
        {"tool_name": None, "tool_input": None, "tool_response": None},
        {"tool_name": "Bash", "tool_input": {"command": "x" * 100_000}},
        {"tool_name": "Write", "tool_input": {"content": "y" * (3 << 20)}, "tool_response": "ok"},
        {"tool_name": "mcp__x__y", "tool_input": [1, 2], "tool_response": [{"type": "text"}]},
        {"tool_name": "Odd", "tool_input": {"a": "\x1b[2J\u202e"}, "transcript_path": "/dev/zero"},
        {"tool_name": "Gone", "transcript_path": "/no/such/file", "cwd": "/no/such/place"},
    ):
        assert claude.tell("PostToolUse", **given) == ""
    assert "ortet hook: " in claude.tell("PostToolUse", tool_name="Deep", tool_input=deep)
    assert "Traceback" not in claude.tell("PostToolUse", tool_name="Deep", tool_input={"a": deep})
    assert claude.tell("Notification", message="waiting") == ""
    assert claude.tell("SomethingNew", tool_name="x") == ""
    assert "sound" in claude.project.ortet("audit", "proj")
    assert len(claude.messages()) == 6


def test_hook_outside_of_a_workspace_does_nothing(project: Project) -> None:
    given = {"hook_event_name": "UserPromptSubmit", "prompt": "hello", "cwd": str(project.path)}
    assert project.ortet("hook", stdin=json.dumps(given)) == ""
    assert not (project.home / "data").exists() and os.listdir(project.path) == []


def test_hook_finds_the_workspace_by_the_cwd_in_its_input(claude: Claude, tmp_path: Path) -> None:
    """Some agents run hooks in a directory of their own."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    inside = claude.project.path / "src"
    inside.mkdir()
    given = {"hook_event_name": "UserPromptSubmit", "prompt": "hello", "cwd": str(inside)}
    told = claude.project.ortet("--json", "-C", str(elsewhere), "hook", stdin=json.dumps(given))
    assert json.loads(told)["message"] == "prompt: hello"
    assert claude.messages() == ["prompt: hello"]


def test_hook_does_not_commit_a_secret(claude: Claude) -> None:
    claude.project.env["DEPLOY_TOKEN"] = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    claude.project.write("leak.txt", claude.project.env["DEPLOY_TOKEN"])
    told = claude.tell("UserPromptSubmit", prompt="deploy")
    assert told.startswith("ortet hook: ")
    assert "no commit yet" in claude.project.ortet("log", code=4)
