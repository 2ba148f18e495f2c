"""What a coding agent tells its hooks, as events of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import known
from ortet.cli import output
from ortet.errors import Invalid
from ortet.mcp_server.answers import ends_of

if TYPE_CHECKING:
    from ortet.sessions.session import Session

_TITLE = 72
"""Characters of the message of a commit."""

_TEXT = 8_000
"""Characters of each text of a call that are recorded: files that it wrote are in the commit."""

_TAIL = 1 << 19
"""Bytes of a transcript, from its end, in which the reasoning for the last call is looked for."""

_TELLING = ("description", "file_path", "notebook_path", "path", "command", "pattern", "url")
"""Arguments that say what a call was about, the best first."""


class Hook(msgspec.Struct, frozen=True):
    """The JSON on standard input. Keys are Claude Code's; those of others are left out."""

    hook_event_name: str
    session_id: str | None = None
    transcript_path: str | None = None
    cwd: str | None = None
    prompt: str | None = None
    tool_name: str | None = None
    tool_input: Any = None
    tool_response: Any = None
    tool_use_id: str | None = None
    error: Any = None
    source: str | None = None
    trigger: str | None = None
    reason: str | None = None
    last_assistant_message: str | None = None


def parse(data: bytes) -> Hook:
    try:
        return msgspec.json.decode(data, type=known(Hook), strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            "bad_hook", f"standard input is not the JSON of a hook ({error}): see docs/guide/mcp.md"
        ) from None


def record(session: Session, hook: Hook) -> str:
    """Put what happened into the journal; returns the message of the commit behind it."""
    return RECORDED[hook.hook_event_name](session, hook)


def _prompt(session: Session, hook: Hook) -> str:
    text = hook.prompt or ""
    if text:
        session.say("user", text)
    return _titled("prompt", text)


def _tool(session: Session, hook: Hook) -> str:
    name, id_ = hook.tool_name or "tool", hook.tool_use_id or session.hub.new_id()
    for thought in reasoning(hook.transcript_path, id_):
        session.think(ends_of(thought, _TEXT))
    failed = hook.error is not None
    call = {"type": "tool_use", "id": id_, "name": name, "input": _short(hook.tool_input)}
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": id_,
        "content": _told(hook.error if failed else hook.tool_response),
    }
    if failed:
        result["is_error"] = True
    session.say_all([("assistant", [call]), ("user", [result])])
    return _titled(name, _about(hook))


def _stop(session: Session, hook: Hook) -> str:
    text = hook.last_assistant_message or last_words(hook.transcript_path)
    last = session.messages(last=1)
    if text and not (last and last[0].role == "assistant" and last[0].content == text):
        session.say("assistant", text)
    return _titled("turn", text)


def _compact(session: Session, hook: Hook) -> str:
    """The conversation is about to be cut: what happened so far is remembered as one episode."""
    session.milestone()
    return _titled("before compaction", hook.trigger or "")


def _end(_: Session, hook: Hook) -> str:
    return _titled("end of conversation", hook.reason or "")


RECORDED: dict[str, Callable[[Session, Hook], str]] = {
    "UserPromptSubmit": _prompt,
    "PostToolUse": _tool,
    "PostToolUseFailure": _tool,
    "Stop": _stop,
    "SubagentStop": lambda _, hook: _titled("subagent", hook.last_assistant_message or ""),
    "PreCompact": _compact,
    "SessionEnd": _end,
}


def _titled(what: str, text: str) -> str:
    rest = output.title(text)
    return f"{what}: {rest}"[:_TITLE] if rest else what


def _about(hook: Hook) -> str:
    given = hook.tool_input if isinstance(hook.tool_input, dict) else {}
    for name in _TELLING:
        text = given.get(name)
        if isinstance(text, str) and text.strip():
            return os.path.relpath(text, hook.cwd) if hook.cwd and os.path.isabs(text) else text
    return ""


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return ends_of(value, _TEXT)
    if isinstance(value, dict):
        return {str(key): _short(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return value


def _told(value: Any) -> str:
    """A result as text, which every model API takes."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return ends_of(text, 2 * _TEXT)


# the transcript: who thought what before which call


def reasoning(path: str | None, tool_use_id: str) -> list[str]:
    """What was thought and said just before a call; nothing where it cannot be told."""
    since: list[str] = []
    for role, part in _parts(path):
        kind = part.get("type")
        if role != "assistant":
            since = []
        elif kind == "tool_use":
            if part.get("id") == tool_use_id:
                return since
            since = []  # of another call, which has recorded it
        elif text := part.get("thinking") or part.get("text"):
            since.append(str(text))
    return []


def last_words(path: str | None) -> str:
    """What the agent said last, behind all that its user and its tools said."""
    since: list[str] = []
    for role, part in _parts(path):
        if role != "assistant" or part.get("type") == "tool_use":
            since = []
        elif part.get("type") == "text":
            since.append(str(part.get("text", "")))
    return "\n\n".join(since)


def _parts(path: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """(role, part) of each message at the end of a transcript, one JSON object on a line."""
    for line in _tail(path or ""):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            entry = msgspec.json.decode(line)
            message = entry.get("message") if isinstance(entry, dict) else None
            if not isinstance(message, dict) or entry.get("isSidechain"):
                continue
            content, role = message.get("content"), str(message.get("role", ""))
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            for part in content if isinstance(content, list) else []:
                if isinstance(part, dict):
                    yield role, part


def _tail(path: str) -> list[bytes]:
    with suppress(OSError), open(path, "rb", opener=_open_file) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        return file.read(_TAIL).splitlines()
    return []


def _open_file(path: str, flags: int) -> int:
    """Not a pipe, which would keep the agent waiting."""
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path} is no file")
    return number
