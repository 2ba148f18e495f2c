"""Transcripts as coding agents write them, made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CONVERSATION = "4b1f6a52-7d7e-4c60-9a0e-0f3f5d1c2b11"
_USAGE = {
    "input_tokens": 12,
    "cache_creation_input_tokens": 900,
    "cache_read_input_tokens": 4000,
    "cache_creation": {"ephemeral_5m_input_tokens": 900, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 30,
    "service_tier": "standard",
}


class Claude:
    """Writes lines as Claude Code does: each part of an answer on a line of its own."""

    def __init__(self, directory: str = "/home/ada/parser") -> None:
        self.lines: list[dict[str, Any]] = []
        self._directory = directory
        self._count = 0
        self.last: str | None = None

    def line(self, kind: str, **more: Any) -> str:
        """A line with a place in the tree, behind the last unless `parentUuid` says otherwise."""
        self._count += 1
        uuid = more.pop("uuid", f"{self._count:08d}-0000-4000-8000-000000000000")
        self.lines.append(
            {
                "parentUuid": self.last,
                "isSidechain": False,
                "userType": "external",
                "cwd": self._directory,
                "sessionId": CONVERSATION,
                "version": "2.1.81",
                "gitBranch": "main",
                "type": kind,
                "uuid": uuid,
                "timestamp": f"2026-03-02T09:{self._count // 60:02d}:{self._count % 60:02d}.250Z",
                **more,
            }
        )
        self.last = uuid
        return str(uuid)

    def bare(self, kind: str, **more: Any) -> None:
        """A line without a place in the tree."""
        self.lines.append({"type": kind, **more})

    def prompt(self, text: Any, **more: Any) -> str:
        return self.line("user", message={"role": "user", "content": text}, **more)

    def answer(self, *parts: dict[str, Any], id_: str, **more: Any) -> str:
        usage = more.pop("usage", _USAGE)
        message = {
            "id": id_,
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-5",
            "content": list(parts),
            "stop_reason": None,
            "usage": usage,
        }
        return self.line("assistant", message=message, requestId=f"req_{id_}", **more)

    def result(self, call: str, content: Any, *, failed: bool = False, **more: Any) -> str:
        part = {"type": "tool_result", "tool_use_id": call, "content": content}
        if failed:
            part["is_error"] = True
        return self.line("user", message={"role": "user", "content": [part]}, **more)

    def write(self, path: Path) -> Path:
        return write(path, self.lines)


def write(path: Path, lines: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def thinking(text: str, signature: str = "EqQBCkYIBhgC") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id_: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def small() -> Claude:
    """A question, a look, an edit, a failing and a passing test."""
    claude = Claude()
    snapshot = {"messageId": "x", "trackedFileBackups": {}, "timestamp": "2026-03-02T09:00:00Z"}
    claude.bare("file-history-snapshot", messageId="x", snapshot=snapshot, isSnapshotUpdate=False)
    claude.bare("queue-operation", operation="enqueue", content="the lexer drops a token")
    claude.prompt("the lexer drops the last token")
    claude.answer(thinking("Look at the lexer first."), id_="msg_01")
    claude.answer(text("I read the lexer."), id_="msg_01")
    claude.answer(use("toolu_01", "Read", file_path="/home/ada/parser/lexer.py"), id_="msg_01")
    claude.result("toolu_01", "1\tdef lex(text): ...", toolUseResult={"type": "text"})
    edit = use("toolu_02", "Edit", file_path="/home/ada/parser/lexer.py", old_string="a")
    claude.answer(edit, id_="msg_02")
    claude.result("toolu_02", "The file has been updated.")
    run = use("toolu_03", "Bash", command="pytest -q", description="Run the tests")
    claude.answer(run, id_="msg_03")
    claude.result("toolu_03", "1 failed", failed=True)
    again = use("toolu_04", "Bash", command="pytest -q --lf", description="Run it again")
    claude.answer(again, id_="msg_04")
    claude.result("toolu_04", "1 passed")
    claude.answer(text("The last token is kept now."), id_="msg_05")
    claude.line("system", subtype="turn_duration", durationMs=5120, isMeta=True)
    return claude


class Codex:
    """Writes lines as the Codex CLI does."""

    def __init__(self, *, bare: bool = False) -> None:
        self.lines: list[dict[str, Any]] = []
        self._bare = bare
        self._count = 0

    def line(self, kind: str, payload: dict[str, Any]) -> None:
        self._count += 1
        stamp = f"2025-11-20T10:{self._count // 60:02d}:{self._count % 60:02d}.000Z"
        if self._bare:
            self.lines.append(payload)
        else:
            self.lines.append({"timestamp": stamp, "type": kind, "payload": payload})

    def item(self, kind: str, **more: Any) -> None:
        self.line("response_item", {"type": kind, **more})

    def event(self, what: str, **more: Any) -> None:
        self.line("event_msg", {"type": what, **more})

    def said(self, role: str, words: str) -> None:
        part = "output_text" if role == "assistant" else "input_text"
        self.item("message", role=role, content=[{"type": part, "text": words}])

    def counted(self, total: int) -> None:
        usage = {"input_tokens": total - 10, "output_tokens": 10, "total_tokens": total}
        self.event("token_count", info={"total_token_usage": usage, "last_token_usage": usage})

    def write(self, path: Path) -> Path:
        return write(path, self.lines)


def rollout() -> Codex:
    """A question, a plan, a command, a patch, an answer."""
    codex = Codex()
    meta = {
        "id": CONVERSATION,
        "timestamp": "2025-11-20T10:00:00.000Z",
        "cwd": "/home/ada/parser",
        "originator": "codex_cli_rs",
        "cli_version": "0.65.0",
        "source": "cli",
        "model_provider": "openai",
        "git": {"branch": "main"},
    }
    codex.line("session_meta", meta)
    codex.said(
        "user", "<environment_context>\n  <cwd>/home/ada/parser</cwd>\n</environment_context>"
    )
    codex.line(
        "turn_context", {"cwd": "/home/ada/parser", "model": "gpt-5-codex", "effort": "high"}
    )
    codex.said("user", "the lexer drops the last token")
    codex.event("user_message", message="the lexer drops the last token", kind="plain")
    summary = [{"type": "summary_text", "text": "**Looking at the lexer**"}]
    codex.item("reasoning", summary=summary, content=None, encrypted_content="gAAAAABo")
    call = {"command": ["bash", "-lc", "cat lexer.py"], "workdir": "/home/ada/parser"}
    codex.item("function_call", name="shell", arguments=json.dumps(call), call_id="call_01")
    told = json.dumps({"output": "def lex(text): ...", "metadata": {"exit_code": 0}})
    codex.item("function_call_output", call_id="call_01", output=told)
    codex.counted(1000)
    patch = "*** Begin Patch\n*** Update File: lexer.py\n@@\n-a\n+b\n*** End Patch"
    codex.item(
        "custom_tool_call", call_id="call_02", name="apply_patch", input=patch, status="completed"
    )
    codex.item("custom_tool_call_output", call_id="call_02", output="Exit code: 0\nSuccess.")
    action = {"type": "exec", "command": ["pytest", "-q"], "timeout_ms": 1000}
    codex.item("local_shell_call", call_id="call_03", status="completed", action=action)
    codex.item("function_call_output", call_id="call_03", output="Exit code: 1\n1 failed")
    codex.item("web_search_call", status="completed", action={"type": "search", "query": "lexers"})
    codex.said("assistant", "The last token is kept now.")
    codex.counted(1000)
    codex.counted(1500)
    return codex
