"""Translates transcripts of the Codex CLI: ~/.codex/sessions/…/rollout-*.jsonl.

Lines are {timestamp, type, payload}. In the first releases a line was the payload itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ortet._util.codec import to_json
from ortet.integrations.transcripts.line_tree import (
    NO_PARENT,
    ImportedLine,
    LineNode,
    parse_time_ns,
)
from ortet.integrations.transcripts.lines import TranscriptLine, decode_json
from ortet.integrations.transcripts.tool_calls import (
    ToolCallEffects,
    kind_of,
    patched_files,
    relative,
    valid_amounts,
)
from ortet.journal.events import Draft
from ortet.sessions.actions.accounting import amounts_of
from ortet.sessions.writing.bulk_import import PastSpend

TOOL = "codex"
CONTEXT = f"{TOOL}.context"

_ITEMS = frozenset(
    (
        *("message", "reasoning", "function_call", "function_call_output", "local_shell_call"),
        *("custom_tool_call", "custom_tool_call_output", "web_search_call"),
    )
)
_CALLS = ("function_call", "local_shell_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_READ_ONLY_TOOLS = frozenset(
    {"update_plan", "view_image", "list_mcp_resources", "read_mcp_resource"}
)
_SYNTHETIC_PROMPT_PREFIXES = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<turn_abort",
)
"""Prefixes of user messages that no user wrote."""
_EXITED = re.compile(r"^(?:Exit code: |Process exited with code )(-?\d+)\s*$", re.M)


def payload_of(data: Any) -> tuple[str, dict[str, Any]]:
    """Return the type and payload of a line, also of the first releases."""
    if not isinstance(data, dict):
        return "", {}
    kind, payload = data.get("type"), data.get("payload")
    if isinstance(kind, str) and isinstance(payload, dict):
        return kind, payload
    if isinstance(kind, str) and kind in _ITEMS:
        return "response_item", data
    if kind is None and isinstance(data.get("id"), str) and "timestamp" in data:
        return "session_meta", data
    return "", {}


def index(
    lines: Iterable[tuple[TranscriptLine, Any]], known_keys: frozenset[str]
) -> list[LineNode]:
    """Return every line as a child of the line before, except after a rollback of turns."""
    del known_keys
    nodes: list[LineNode] = []
    prompts: list[int] = []
    total: dict[str, float] = {}
    model = ""
    for line, data in lines:
        at, paid = len(nodes), None
        kind, payload = payload_of(data)
        parent = at - 1
        if kind == "turn_context" and isinstance(payload.get("model"), str):
            model = payload["model"]
        elif kind == "response_item" and _is_prompt(payload):
            prompts.append(at)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            paid, total = _usage_delta(payload, total, model, parse_time_ns(data.get("timestamp")))
        elif kind == "event_msg" and payload.get("type") == "thread_rolled_back":
            gone = payload.get("num_turns")
            if isinstance(gone, int) and 0 < gone <= len(prompts):
                parent = prompts[-gone] - 1
                del prompts[-gone:]
        nodes.append(LineNode(line, line.key, max(parent, NO_PARENT), paid=paid))
    return nodes


def _is_prompt(payload: dict[str, Any]) -> bool:
    if payload.get("type") != "message" or payload.get("role") != "user":
        return False
    return not _text(payload.get("content")).startswith(_SYNTHETIC_PROMPT_PREFIXES)


def _usage_delta(
    payload: dict[str, Any], total: dict[str, float], model: str, at: int
) -> tuple[PastSpend | None, dict[str, float]]:
    """Return the usage since the previous count, and the present count.

    The same count may be reported more than once.
    """
    info = payload.get("info")
    info = info if isinstance(info, dict) else {}
    now, last = (_counts(info.get(name)) for name in ("total_token_usage", "last_token_usage"))
    if not now:
        return (PastSpend(last, model, at) if any(last.values()) else None), total
    reset = any(now.get(name, 0) < count for name, count in total.items())
    news = last if reset else {name: count - total.get(name, 0) for name, count in now.items()}
    return (PastSpend(news, model, at) if any(news.values()) else None), now


def _counts(usage: Any) -> dict[str, float]:
    return valid_amounts(amounts_of(usage)) if isinstance(usage, dict) else {}


class CodexReader:
    """Translates the lines of one conversation, in order."""

    def __init__(self, effects: ToolCallEffects, context: Mapping[str, Any]) -> None:
        self._effects = effects
        self._context = dict(context)

    def translate(self, node: LineNode, data: Any) -> ImportedLine | None:
        """Translate a line to events; None if it is not understood."""
        kind, payload = payload_of(data)
        at = parse_time_ns(data.get("timestamp")) if isinstance(data, dict) else 0
        if kind == "compacted":
            message = payload.get("message")
            rest = {key: value for key, value in payload.items() if key != "message"}
            return ImportedLine(
                [_record("compacted", rest, at)],
                summary=message if isinstance(message, str) and message else "(not told)",
            )
        if kind == "response_item":
            return self._item(payload, at)
        if kind in ("session_meta", "turn_context"):
            return ImportedLine([*self._context_changes(payload), _record(kind, payload, at)])
        if kind == "event_msg":
            drafts = [_record(kind, payload, at)]
            if node.paid is not None:
                drafts.append(self._model(payload, node.paid, at))
            return ImportedLine(drafts)
        if isinstance(data, dict) and isinstance(data.get("record_type"), str):
            return ImportedLine([_record("state", data, at)])
        return ImportedLine([_record(kind, payload, at)], unknown=True) if kind else None

    def _context_changes(self, payload: dict[str, Any]) -> list[Draft]:
        names = ("cwd", "model", "model_provider")
        now = {name: payload[name] for name in names if isinstance(payload.get(name), str)}
        news = {key: value for key, value in now.items() if self._context.get(key) != value}
        self._context |= news
        return [Draft(CONTEXT, news)] if news else []

    def _model(self, payload: dict[str, Any], model_usage: PastSpend, at: int) -> Draft:
        info = payload.get("info") or {}
        usage = info.get("last_token_usage") or info.get("total_token_usage")
        data = {
            "provider": self._context.get("model_provider") or "openai",
            "model": model_usage.model,
        }
        return Draft("model", {**data, "params": {}, "usage": usage, "at": at})

    def _item(self, payload: dict[str, Any], at: int) -> ImportedLine:
        kind = str(payload.get("type") or "line")
        if kind == "message":
            content = _chat_content(payload.get("content"))
            role = payload.get("role")
            drafts = [_message(role if isinstance(role, str) and role else "user", content, at)]
            drafts[0].data["extra"][TOOL] = _without(payload, "role", "content", "type")
            return ImportedLine(
                drafts, prompt=_text(content).strip() if _is_prompt(payload) else ""
            )
        if kind == "reasoning":
            text = "\n\n".join(filter(None, map(_text, _reasoning_parts(payload))))
            return ImportedLine([Draft("thought", {"text": text, "at": at, "part": payload})])
        if kind in _CALLS and isinstance(payload.get("call_id"), str):
            return ImportedLine(self._call(kind, payload, at))
        if kind in _RESULTS and isinstance(payload.get("call_id"), str):
            return ImportedLine(self._result(payload, at))
        return ImportedLine([_record(kind, payload, at)], unknown=kind not in _ITEMS)

    def _call(self, kind: str, payload: dict[str, Any], at: int) -> list[Draft]:
        call, name = payload["call_id"], str(payload.get("name") or kind.removesuffix("_call"))
        arguments = _call_arguments(kind, payload)
        function = {"name": name, "arguments": to_json(arguments)}
        if isinstance(payload.get("arguments"), str):
            function["arguments"] = payload["arguments"]
        draft = _message("assistant", None, at)
        extra = draft.data["extra"]
        extra["tool_calls"] = [{"id": call, "type": "function", "function": function}]
        extra[TOOL] = _without(payload, "call_id", "name", "arguments", "input")
        if name in _READ_ONLY_TOOLS:
            return [draft]
        files = [relative(path, self._context.get("cwd")) for path in _patched_paths(arguments)]
        why = arguments.get("justification") if isinstance(arguments, dict) else None
        why = why if isinstance(why, str) else ""
        return [draft, self._effects.begin(call, name, arguments, at=at, files=files, why=why)]

    def _result(self, payload: dict[str, Any], at: int) -> list[Draft]:
        call, output = payload["call_id"], payload.get("output")
        failed = _is_failure(output)
        draft = _message("tool", _output(output), at)
        draft.data["extra"]["tool_call_id"] = call
        draft.data["extra"][TOOL] = _without(payload, "call_id", "output")
        if isinstance(output, dict):
            draft.data["extra"][TOOL]["output"] = _without(output, "content")
        return [draft, *self._effects.end(call, draft.data["content"], at=at, failed=failed)]


def _record(kind: str, payload: dict[str, Any], at: int) -> Draft:
    return Draft(kind_of(TOOL, kind), {"at": at, "said": payload})


def _message(role: str, content: Any, at: int) -> Draft:
    return Draft("message", {"role": role, "content": content, "extra": {"at": at}})


def _without(payload: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in payload.items() if key not in names}


def _chat_content(content: Any) -> Any:
    """Return text content as str; content with images as chat completion parts."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    if all(_is_text(part) for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    return part


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _text(content: Any) -> str:
    """Return the text of a message or of one part."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return content["text"] if isinstance(content.get("text"), str) else ""
    return "\n".join(map(_text, content)) if isinstance(content, list) else ""


def _reasoning_parts(payload: dict[str, Any]) -> list[Any]:
    """Return the summary of a thought, or its content if there is no summary."""
    summary, content = payload.get("summary"), payload.get("content")
    return (summary if isinstance(summary, list) else []) or (
        content if isinstance(content, list) else []
    )


def _call_arguments(kind: str, payload: dict[str, Any]) -> Any:
    if kind == "local_shell_call":
        return payload.get("action") or {}
    if kind == "custom_tool_call":
        return {"input": payload.get("input")}
    arguments = payload.get("arguments")
    decoded = decode_json(arguments.encode()) if isinstance(arguments, str) else arguments
    return decoded if isinstance(decoded, dict) else {"arguments": arguments}


def _patched_paths(arguments: Any) -> list[str]:
    """Return the files named by a patch in the arguments."""
    if not isinstance(arguments, dict):
        return []
    texts = [arguments.get("input"), arguments.get("cmd"), arguments.get("patch")]
    command = arguments.get("command")
    texts += command if isinstance(command, list) else [command]
    return [path for text in texts for path in patched_files(text)]


def _output(output: Any) -> Any:
    if isinstance(output, dict):
        output = output.get("content", output)
    return _chat_content(output) if isinstance(output, str | list) else to_json(output)


def _is_failure(output: Any) -> bool:
    """Return True if the output reports a failure: {"success": false} or an exit code."""
    if isinstance(output, str) and output.startswith("{"):
        output = decode_json(output.encode())
    elif isinstance(output, str) and (code := _EXITED.search(output[:2000])) is not None:
        return code[1] != "0"
    if not isinstance(output, dict):
        return False
    metadata = output.get("metadata")
    ended = metadata.get("exit_code") if isinstance(metadata, dict) else None
    return output.get("success") is False or (isinstance(ended, int) and ended != 0)


__all__ = ["CONTEXT", "TOOL", "CodexReader", "index", "payload_of"]
