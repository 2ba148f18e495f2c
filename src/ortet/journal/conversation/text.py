"""Plain text of messages, and token counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortet._util.codec import to_json
from ortet.errors import Invalid
from ortet.journal.state.records import Message

TokenCounter = Callable[[str], int]
"""Function that returns the number of tokens of a text for a model."""

_CUT = "…"
_MESSAGE_OVERHEAD_TOKENS = 4
"""Tokens that a model API uses for the frame of each message."""


def estimate_tokens(text: str) -> int:
    """Estimate four characters per token. That is close for prose and needs no tokenizer."""
    return -(-len(text) // 4)


def text_of(content: Any) -> str:
    """Return content as readable text: the text of its parts, JSON for other values."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, (_part(part) for part in content)))
    return to_json(content)


def message_text(content: Any, extra: Any) -> str:
    """Return a message as readable text. A message without text may have tool calls."""
    if (text := text_of(content)) or not isinstance(extra, dict):
        return text
    calls = extra.get("tool_calls")
    return "\n".join(map(_call, calls)) if isinstance(calls, list | tuple) else ""


def _call(call: Any) -> str:
    if not isinstance(call, dict):
        return ""
    function = call["function"] if isinstance(call.get("function"), dict) else call
    arguments: Any = next(
        (function[key] for key in ("arguments", "args", "input") if key in function), {}
    )
    return f"[calls {function.get('name')} {text_of(arguments)}]"


def _part(part: Any) -> str:
    if not isinstance(part, dict):
        return text_of(part)
    if isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type")
    if kind == "tool_use":
        return f"[calls {part.get('name')} {to_json(part.get('input'))}]"
    if kind == "tool_result":
        return text_of(part.get("content"))
    return f"[{kind}]" if isinstance(kind, str) else to_json(part)


_COMMAND_ARGUMENTS = {"run": 0, "spawn": 1, "kernel.run": 1}
"""Actions, and the position of the argument that holds the command."""


def command_text(data: dict[str, Any]) -> str:
    """Return the command of an action, which its name does not show, or ""."""
    args, at = data.get("args"), _COMMAND_ARGUMENTS.get(str(data.get("name")), -1)
    command = args[at] if isinstance(args, list) and 0 <= at < len(args) else _by_name(data)
    words: list[Any] = command if isinstance(command, list) else [command]
    return " ".join(words) if all(isinstance(word, str) for word in words) else ""


def _by_name(data: dict[str, Any]) -> Any:
    """Return the argument "command", which tools of agents use for commands."""
    kwargs = data.get("kwargs")
    return kwargs.get("command") if isinstance(kwargs, dict) else None


def message_tokens(message: Message, count: TokenCounter) -> int:
    """Return the tokens of a message with its parts and tool calls."""
    content = message.content if isinstance(message.content, str) else to_json(message.content)
    calls = message.extra.get("tool_calls")
    return count(content) + (count(to_json(calls)) if calls else 0) + _MESSAGE_OVERHEAD_TOKENS


def clip(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters, with a mark at the cut."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + _CUT[:limit]


def one_line(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters in one line."""
    return clip(" ".join(text[: limit * 4].split()), limit)


def check_tokens(tokens: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Invalid("bad_tokens", f"tokens={tokens!r}: give a number from 1")
    return tokens
