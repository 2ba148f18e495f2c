"""Records hook events of a coding agent as events of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.cli.terminal import output
from ortet.errors import Invalid
from ortet.mcp_server.tool import cut_middle

if TYPE_CHECKING:
    from ortet.sessions.session import Session

_TITLE_CHARACTERS = 72
"""Maximum length of a commit message."""

_MAX_TEXT_CHARACTERS = 8_000
"""Maximum length of each recorded text of a call. Files that it wrote are in the commit."""

_TRANSCRIPT_TAIL_BYTES = 1 << 19
"""Size of the end of a transcript in which the reasoning for the last call is searched."""

_DESCRIPTIVE_ARGUMENTS = (
    "description",
    "file_path",
    "notebook_path",
    "path",
    "command",
    "pattern",
    "url",
)
"""Arguments that describe a call, best first."""


class HookPayload(msgspec.Struct, frozen=True):
    """The JSON that a hook reads from standard input.

    Keys are those of Claude Code; others are ignored.
    """

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


def parse(data: bytes) -> HookPayload:
    """Return the payload of a hook, or raise Invalid(`bad_hook`)."""
    try:
        return msgspec.json.decode(data, type=thread_safe_struct(HookPayload), strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(
            "bad_hook", f"standard input is not the JSON of a hook ({error}): see docs/guide/mcp.md"
        ) from None


def record(session: Session, hook: HookPayload) -> str:
    """Record a hook event in the journal, and return the message for the commit after it."""
    return RECORDERS[hook.hook_event_name](session, hook)


def _prompt(session: Session, hook: HookPayload) -> str:
    text = hook.prompt or ""
    if text:
        session.say("user", text)
    return _commit_message("prompt", text)


def _tool(session: Session, hook: HookPayload) -> str:
    name, id_ = hook.tool_name or "tool", hook.tool_use_id or session.internals.store.new_id()
    for thought in reasoning(hook.transcript_path, id_):
        session.think(cut_middle(thought, _MAX_TEXT_CHARACTERS))
    failed = hook.error is not None
    call = {"type": "tool_use", "id": id_, "name": name, "input": _shorten(hook.tool_input)}
    result: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": id_,
        "content": _result_text(hook.error if failed else hook.tool_response),
    }
    if failed:
        result["is_error"] = True
    session.say_all([("assistant", [call]), ("user", [result])])
    return _commit_message(name, _call_subject(hook))


def _stop(session: Session, hook: HookPayload) -> str:
    text = hook.last_assistant_message or last_assistant_text(hook.transcript_path)
    last = session.messages(last=1)
    if text and not (last and last[0].role == "assistant" and last[0].content == text):
        session.say("assistant", text)
    return _commit_message("turn", text)


def _compact(session: Session, hook: HookPayload) -> str:
    """Record the events so far as one episode, before the conversation is compacted."""
    session.milestone()
    return _commit_message("before compaction", hook.trigger or "")


def _end(_: Session, hook: HookPayload) -> str:
    return _commit_message("end of conversation", hook.reason or "")


RECORDERS: dict[str, Callable[[Session, HookPayload], str]] = {
    "UserPromptSubmit": _prompt,
    "PostToolUse": _tool,
    "PostToolUseFailure": _tool,
    "Stop": _stop,
    "SubagentStop": lambda _, hook: _commit_message("subagent", hook.last_assistant_message or ""),
    "PreCompact": _compact,
    "SessionEnd": _end,
}


def _commit_message(what: str, text: str) -> str:
    rest = output.title(text)
    return f"{what}: {rest}"[:_TITLE_CHARACTERS] if rest else what


def _call_subject(hook: HookPayload) -> str:
    arguments = hook.tool_input if isinstance(hook.tool_input, dict) else {}
    for name in _DESCRIPTIVE_ARGUMENTS:
        text = arguments.get(name)
        if isinstance(text, str) and text.strip():
            return os.path.relpath(text, hook.cwd) if hook.cwd and os.path.isabs(text) else text
    return ""


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return cut_middle(value, _MAX_TEXT_CHARACTERS)
    if isinstance(value, dict):
        return {str(key): _shorten(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shorten(one) for one in value]
    return value


def _result_text(value: Any) -> str:
    """Return a result as text, which every model API accepts."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return cut_middle(text, 2 * _MAX_TEXT_CHARACTERS)


# Reading the transcript


def reasoning(path: str | None, tool_use_id: str) -> list[str]:
    """Return the thoughts and texts just before a call, or [] if they cannot be found."""
    since: list[str] = []
    for role, part in _transcript_parts(path):
        kind = part.get("type")
        if role != "assistant":
            since = []
        elif kind == "tool_use":
            if part.get("id") == tool_use_id:
                return since
            since = []  # belongs to another call, which has recorded it
        elif text := part.get("thinking") or part.get("text"):
            since.append(str(text))
    return []


def last_assistant_text(path: str | None) -> str:
    """Return the last text of the agent, after the last user message and tool call."""
    since: list[str] = []
    for role, part in _transcript_parts(path):
        if role != "assistant" or part.get("type") == "tool_use":
            since = []
        elif part.get("type") == "text":
            since.append(str(part.get("text", "")))
    return "\n\n".join(since)


def _transcript_parts(path: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (role, part) for the messages at the end of a transcript in JSONL."""
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
        file.seek(max(0, size - _TRANSCRIPT_TAIL_BYTES))
        return file.read(_TRANSCRIPT_TAIL_BYTES).splitlines()
    return []


def _open_file(path: str, flags: int) -> int:
    """Open a regular file. A pipe is refused, because it would block the agent."""
    number = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(f"{path} is no file")
    return number
