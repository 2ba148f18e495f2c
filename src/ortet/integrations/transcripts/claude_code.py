"""Translates transcripts of Claude Code: ~/.claude/projects/DIR/SESSION.jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ortet.integrations.transcripts.line_tree import (
    NO_PARENT,
    ImportedLine,
    LineNode,
    parse_time_ns,
)
from ortet.integrations.transcripts.lines import TranscriptLine
from ortet.integrations.transcripts.tool_calls import (
    ToolCallEffects,
    kind_of,
    relative,
    valid_amounts,
)
from ortet.journal.conversation.text import text_of
from ortet.journal.events import Draft
from ortet.sessions.actions.accounting import amounts_of
from ortet.sessions.writing.bulk_import import PastSpend

# Recognises user messages of Claude Code that are not prompts.

_INTERRUPTED = re.compile(r"\[Request interrupted by user[^\]]*\]")
_OUTPUT = ("<local-command-stdout>", "<local-command-stderr>", "<local-command-caveat>")
_COMMAND = re.compile(r"<command-name>/([\w:-]+)</command-name>")
_BUILTIN_COMMANDS = frozenset(
    (
        *("add-dir", "agents", "bashes", "bug", "clear", "color", "compact", "config", "context"),
        *("continue", "copy", "cost", "doctor", "effort", "exit", "export", "extra-usage", "fast"),
        *("feedback", "help", "hooks", "ide", "keybindings", "login", "logout", "mcp", "memory"),
        *("model", "output-style", "permissions", "plugin", "privacy-settings", "quit"),
        *("release-notes", "rename", "resume", "rewind", "skills", "stats", "status", "tasks"),
        *("terminal-setup", "theme", "todos", "upgrade", "usage", "vim"),
    )
)
"""Commands that Claude Code executes itself; other commands are prompts."""


def note_of(text: str) -> str:
    """Return the record kind of such a message; "" for a prompt."""
    text = text.strip()
    if _INTERRUPTED.fullmatch(text):
        return "interrupted"
    command = _COMMAND.search(text) if text.startswith("<command-") else None
    return (
        "command"
        if text.startswith(_OUTPUT) or (command and command[1] in _BUILTIN_COMMANDS)
        else ""
    )


TOOL = "claude-code"
CONTEXT = f"{TOOL}.context"

_CONTEXT_FIELDS = (
    *("sessionId", "cwd", "version", "gitBranch", "userType", "entrypoint", "slug"),
    *("permissionMode", "isSidechain", "agentId"),
)
"""Fields that nearly every line repeats; recorded only when they change."""

_READ_ONLY_TOOLS = frozenset(
    (
        *("Read", "Grep", "Glob", "LS", "NotebookRead", "TodoRead", "TodoWrite", "WebSearch"),
        *("WebFetch", "ToolSearch", "LSP", "AskUserQuestion", "EnterPlanMode", "ExitPlanMode"),
        *("TaskGet", "TaskList", "TaskOutput", "BashOutput", "Skill", "StructuredOutput"),
        *("ListMcpResourcesTool", "ReadMcpResourceTool"),
    )
)
"""Tools without outside effects: their calls are messages but not effects."""

_MAX_UUID_LENGTH = 100
_PATH_ARGUMENTS = ("file_path", "notebook_path")
_WRITERS = frozenset({"Write", "Edit", "MultiEdit", "NotebookEdit"})
_THINKING = ("thinking", "redacted_thinking")


def index(
    lines: Iterable[tuple[TranscriptLine, Any]], known_keys: frozenset[str]
) -> list[LineNode]:
    """Return every line with its place in the tree; `known_keys` are the imported lines."""
    nodes: list[LineNode] = []
    by_uuid: dict[str, int] = {}
    last: dict[str, int] = {}
    answers: dict[
        str, tuple[int, PastSpend]
    ] = {}  # by answer: its last line and the usage that line reports
    for line, data in lines:
        node = _node(
            line, data if isinstance(data, dict) else {}, nodes, by_uuid=by_uuid, last=last
        )
        at = len(nodes)
        if node.mark and node.paid is not None:
            before = answers.get(node.mark)
            answers[node.mark] = (at, node.paid)
            if before is not None and nodes[before[0]].key in known_keys:
                node = msgspec.structs.replace(node, paid=_remaining_usage(node.paid, before[1]))
            elif before is not None:
                nodes[before[0]] = msgspec.structs.replace(nodes[before[0]], paid=None)
        if node.key == line.key:  # It has no place of its own in the tree.
            node = msgspec.structs.replace(node, parent=last.get(node.side, NO_PARENT))
        else:
            by_uuid[node.key] = at
        last[node.side] = at
        nodes.append(node)
    return nodes


def _node(
    line: TranscriptLine,
    data: dict[str, Any],
    nodes: list[LineNode],
    *,
    by_uuid: dict[str, int],
    last: dict[str, int],
) -> LineNode:
    uuid, parent = data.get("uuid"), data.get("parentUuid") or data.get("logicalParentUuid")
    above = nodes[by_uuid[parent]] if isinstance(parent, str) and parent in by_uuid else None
    side = _sidechain_id(data, above) if data.get("isSidechain") is True else ""
    if not isinstance(uuid, str) or not 0 < len(uuid) <= _MAX_UUID_LENGTH or uuid in by_uuid:
        side = side or (nodes[-1].side if nodes and "isSidechain" not in data else "")
        return LineNode(line, line.key, NO_PARENT, weighs=False, said=False, side=side)
    message = data.get("message")
    message = message if isinstance(message, dict) else {}
    parts = _parts(message.get("content"))
    is_message = data.get("type") in ("user", "assistant")
    boundary = data.get("type") == "system" and data.get("parentUuid") is None
    if above is not None and above.side == side:
        place = by_uuid[above.key]
    else:  # The parent is lost or in another file.
        place = last.get(side, NO_PARENT) if parent or boundary else NO_PARENT
    return LineNode(
        line=line,
        key=uuid,
        parent=place,
        weighs=is_message and not data.get("isMeta") and not data.get("teamName"),
        said=is_message,
        mark=str(message.get("id") or "") if data.get("type") == "assistant" else "",
        calls=tuple(_ids(parts, "tool_use", "id")),
        results=tuple(_ids(parts, "tool_result", "tool_use_id")),
        side=side,
        paid=_model_usage(message, data),
    )


def _sidechain_id(data: dict[str, Any], parent_node: LineNode | None) -> str:
    """Return the id of the subagent that wrote a line.

    Older releases wrote all subagents into one file without ids. There each is identified by its
    first line.
    """
    if isinstance(data.get("agentId"), str) and data["agentId"]:
        return str(data["agentId"])
    return (
        parent_node.side
        if parent_node is not None and parent_node.side
        else str(data.get("uuid", "side"))
    )


def _remaining_usage(usage: PastSpend, before: PastSpend) -> PastSpend | None:
    """Return the usage of an answer that was not yet counted.

    Each line of an answer reports its usage. It is counted once, with the last line.
    """
    rest = {
        name: amount - before.amounts.get(name, 0)
        for name, amount in usage.amounts.items()
        if amount > before.amounts.get(name, 0)
    }
    return msgspec.structs.replace(usage, amounts=rest) if rest else None


def _model_usage(message: dict[str, Any], data: dict[str, Any]) -> PastSpend | None:
    usage, model = message.get("usage"), message.get("model")
    if data.get("forkedFrom"):  # A copied line was paid for in its original conversation.
        return None
    if not isinstance(usage, dict) or not isinstance(model, str) or not model.isprintable():
        return None
    amounts = valid_amounts(amounts_of(usage))
    return (
        PastSpend(amounts, model, parse_time_ns(data.get("timestamp")))
        if any(amounts.values())
        else None
    )


class ClaudeCodeReader:
    """Translates the lines of one conversation, in order.

    `context` has the context fields recorded so far.
    """

    def __init__(self, effects: ToolCallEffects, context: Mapping[str, Any]) -> None:
        self._effects = effects
        self._context = dict(context)

    def translate(self, node: LineNode, data: Any) -> ImportedLine | None:
        """Translate a line to events; None if it is not understood."""
        kind = data.get("type") if isinstance(data, dict) else None
        if not isinstance(kind, str) or not kind:
            return None
        message = data.get("message")
        first = self._context_changes(data)
        metadata = _line_metadata(data, kind)
        if node.key == node.line.key and "uuid" in data:
            return ImportedLine([*first, _record("line", {**metadata, "message": message})])
        if kind not in ("user", "assistant") or not isinstance(message, dict):
            metadata |= {"message": message} if "message" in data else {}
            return ImportedLine([*first, _record(kind, metadata)])
        if data.get("isApiErrorMessage") or (
            data.get("isVisibleInTranscriptOnly") and not data.get("isCompactSummary")
        ):
            return ImportedLine([*first, _record("shown", {**metadata, "message": message})])
        content = message.get("content")
        metadata["message"] = {k: v for k, v in message.items() if k not in ("content", "role")}
        if data.get("isCompactSummary"):
            return ImportedLine(
                [*first, _record("compacted", metadata)],
                summary=text_of(content) or "Nothing was said of it.",
            )
        note = note_of(text_of(content)) if kind == "user" and _is_text(content) else ""
        if note:
            return ImportedLine([*first, _record(note, {**metadata, "message": message})])
        if kind == "assistant":
            return ImportedLine([*first, *self._assistant_drafts(node, content, metadata, message)])
        return self._user_entry(first, content, metadata, data)

    def _context_changes(self, data: dict[str, Any]) -> list[Draft]:
        now = {name: data[name] for name in _CONTEXT_FIELDS if name in data}
        news = {k: v for k, v in now.items() if self._context.get(k, "") != v}
        if not news:
            return []
        self._context |= news
        return [Draft(CONTEXT, news)]

    def _user_entry(
        self, first: list[Draft], content: Any, metadata: dict[str, Any], data: dict[str, Any]
    ) -> ImportedLine:
        """Translate a prompt or the results of tool calls."""
        drafts = [*first, _message("user", content, metadata)]
        results = [part for part in _parts(content) if part.get("type") == "tool_result"]
        for part in results:
            failed, call = part.get("is_error") is True, str(part.get("tool_use_id", ""))
            drafts += self._effects.end(call, part.get("content"), at=metadata["at"], failed=failed)
        is_prompt = not results and not data.get("isMeta")
        return ImportedLine(drafts, prompt=text_of(content).strip() if is_prompt else "")

    def _assistant_drafts(
        self, node: LineNode, content: Any, metadata: dict[str, Any], message: dict[str, Any]
    ) -> list[Draft]:
        drafts: list[Draft] = []
        parts = content if isinstance(content, list) else []
        visible_parts = [part for part in parts if not _is_thinking(part)] if parts else content
        for number, part in enumerate(parts):
            if _is_thinking(part):
                drafts.append(_thought(part, number, node.mark, metadata["at"]))
        if visible_parts or not drafts:
            drafts.append(_message("assistant", visible_parts, metadata))
        else:
            drafts[0] = Draft("thought", {**drafts[0].data, TOOL: metadata})
        drafts += [
            self._tool_call_draft(part, metadata["at"])
            for part in _parts(visible_parts)
            if _is_effect(part)
        ]
        if node.paid is not None:
            usage = message.get("usage")
            data = {"provider": "anthropic", "model": node.paid.model, "params": {}}
            drafts.append(Draft("model", {**data, "usage": usage, "at": metadata["at"]}))
        return drafts

    def _tool_call_draft(self, part: dict[str, Any], at: int) -> Draft:
        arguments, name = part.get("input"), str(part.get("name", ""))
        arguments = arguments if isinstance(arguments, dict) else {"input": arguments}
        files = [
            relative(arguments.get(key), self._context.get("cwd"))
            for key in _PATH_ARGUMENTS
            if name in _WRITERS and arguments.get(key)
        ]
        why = arguments.get("description")
        return self._effects.begin(
            str(part.get("id", "")),
            name,
            arguments,
            at=at,
            files=files,
            why=why if isinstance(why, str) else "",
        )


def _line_metadata(data: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the fields of a line except the message and the context fields."""
    left_out = {"message", "type", *_CONTEXT_FIELDS}
    rest = {key: value for key, value in data.items() if key not in left_out}
    return {"type": kind, "at": parse_time_ns(data.get("timestamp")), **rest}


def _record(kind: str, metadata: dict[str, Any]) -> Draft:
    rest = {key: value for key, value in metadata.items() if key != "at"}
    return Draft(kind_of(TOOL, kind), {"at": metadata["at"], "said": rest})


def _thought(part: dict[str, Any], place: int, answer: str, at: int) -> Draft:
    """Return a thought with the model's signature, which APIs require to accept it back."""
    data: dict[str, Any] = {"text": str(part.get("thinking") or ""), "at": at, "of": answer}
    data["part"] = {key: value for key, value in part.items() if key != "thinking"}
    return Draft("thought", {**data, "place": place})


def _message(role: str, content: Any, metadata: dict[str, Any]) -> Draft:
    rest = {key: value for key, value in metadata.items() if key not in ("type", "at")}
    extra = {"at": metadata["at"], TOOL: rest}
    answer = rest.get("message", {}).get("id")
    if isinstance(answer, str):
        extra["id"] = answer
    return Draft("message", {"role": role, "content": content, "extra": extra})


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _is_text(content: Any) -> bool:
    return all(part.get("type") == "text" for part in _parts(content))


def _ids(parts: Iterable[dict[str, Any]], kind: str, name: str) -> list[str]:
    return [
        part[name]
        for part in parts
        if part.get("type") == kind and isinstance(part.get(name), str) and part[name]
    ]


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _THINKING


def _is_effect(part: dict[str, Any]) -> bool:
    return (
        part.get("type") == "tool_use"
        and isinstance(part.get("id"), str)
        and str(part.get("name", "")) not in _READ_ONLY_TOOLS
    )
