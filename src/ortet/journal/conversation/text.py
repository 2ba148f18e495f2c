"""What was said, as plain text, and how many tokens that is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ortet._util.codec import to_json
from ortet.errors import Invalid
from ortet.journal.state.records import Message

TokenCounter = Callable[[str], int]
"""How many tokens a text is, for the model it is meant for."""

_CUT = "…"
_MESSAGE_OVERHEAD_TOKENS = 4
"""Tokens a model API spends on the frame of each message."""


def estimate_tokens(text: str) -> int:
    """Four characters a token: near enough for prose in most models, with no tokenizer to load."""
    return -(-len(text) // 4)


def text_of(content: Any) -> str:
    """Content as its reader would see it: the text of parts, the shape of what is none."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list | tuple):
        return "\n".join(filter(None, (_part(part) for part in content)))
    return to_json(content)


def message_text(content: Any, extra: Any) -> str:
    """A message as its reader would see it: who said nothing may have called something."""
    if (text := text_of(content)) or not isinstance(extra, dict):
        return text
    calls = extra.get("tool_calls")
    return "\n".join(map(_call, calls)) if isinstance(calls, list | tuple) else ""


def _call(call: Any) -> str:
    if not isinstance(call, dict):
        return ""
    made = call["function"] if isinstance(call.get("function"), dict) else call
    given: Any = next((made[key] for key in ("arguments", "args", "input") if key in made), {})
    return f"[calls {made.get('name')} {text_of(given)}]"


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
"""Actions, and which of their arguments is what was run."""


def command_text(data: dict[str, Any]) -> str:
    """What a deed was: of a command, what was run, which its name does not tell."""
    args, at = data.get("args"), _COMMAND_ARGUMENTS.get(str(data.get("name")), -1)
    said = args[at] if isinstance(args, list) and 0 <= at < len(args) else _by_name(data)
    words: list[Any] = said if isinstance(said, list) else [said]
    return " ".join(words) if all(isinstance(word, str) for word in words) else ""


def _by_name(data: dict[str, Any]) -> Any:
    """Tools of agents that run commands take it under this name."""
    given = data.get("kwargs")
    return given.get("command") if isinstance(given, dict) else None


def message_tokens(message: Message, count: TokenCounter) -> int:
    """Tokens of a message with all that goes to the model: its parts and tool calls too."""
    said = message.content if isinstance(message.content, str) else to_json(message.content)
    calls = message.extra.get("tool_calls")
    return count(said) + (count(to_json(calls)) if calls else 0) + _MESSAGE_OVERHEAD_TOKENS


def clip(text: str, limit: int) -> str:
    """At most `limit` characters, with a mark where it was cut."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + _CUT[:limit]


def one_line(text: str, limit: int) -> str:
    """The same, in one line."""
    return clip(" ".join(text[: limit * 4].split()), limit)


def check_tokens(tokens: int) -> int:
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise Invalid("bad_tokens", f"tokens={tokens!r}: give a number from 1")
    return tokens
