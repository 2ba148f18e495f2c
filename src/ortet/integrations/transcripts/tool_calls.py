"""Converts tool calls of a transcript to effects, and the files they changed to artifacts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ortet._util.codec import to_json
from ortet.journal.conversation.text import text_of
from ortet.journal.events import Draft

# Record kinds and valid amounts, common to the transcripts of all tools.

_WORD = re.compile(r"[a-z0-9_-]{1,60}\Z")
_MAX_NAME_LENGTH = 100
_MAX_AMOUNT = 1e15


def kind_of(tool: str, word: str) -> str:
    """Return the record kind of a line of this type."""
    return f"{tool}.{word}" if _WORD.match(word) and word != "context" else f"{tool}.line"


def valid_amounts(amounts: Mapping[str, float]) -> dict[str, float]:
    """Return the amounts that are plausible."""
    return {
        name: amount
        for name, amount in amounts.items()
        if 0 <= amount < _MAX_AMOUNT and name.isprintable() and 0 < len(name) < _MAX_NAME_LENGTH
    }


_MAX_TEXT_CHARS = 2_000
"""Maximum length of a text in an effect; the message has the full text."""

_PATCH_FILE_LINE = re.compile(
    r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.+?)\s*$", re.M
)

LoadPendingEffects = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Returns the intents of earlier effects that have not ended, by call id."""


class ToolCallEffects:
    """The effects of one conversation: a call begins an effect and its result ends it."""

    def __init__(self, pending: LoadPendingEffects) -> None:
        self._pending = pending
        self._earlier_effects: dict[str, Mapping[str, Any]] | None = None
        self._open_effects: dict[str, Mapping[str, Any]] = {}

    def begin(
        self,
        call: str,
        name: str,
        arguments: Any,
        *,
        at: int,
        files: Sequence[str] = (),
        why: str = "",
    ) -> Draft:
        data = {
            "id": effect_id(call, at),
            "name": name[:_MAX_TEXT_CHARS] or "tool",
            "replay": "recorded",
            "key": "",
            "scope": "family",
            "why": why[:_MAX_TEXT_CHARS],
            "args": [],
            "kwargs": truncate_value(arguments)
            if isinstance(arguments, dict)
            else {"input": truncate_value(arguments)},
            "call": call[:_MAX_TEXT_CHARS],
            "at": at,
            "files": [path for path in files if path][:1000],
        }
        self._open_effects[call[:_MAX_TEXT_CHARS]] = data
        return Draft("begun", data)

    def end(self, call: str, result: Any, *, at: int, failed: bool = False) -> list[Draft]:
        """Return the events that end an effect; none if the call is not an effect or has ended."""
        begun = self._open_effects.pop(call[:_MAX_TEXT_CHARS], None) or self._pop_earlier(
            call[:_MAX_TEXT_CHARS]
        )
        if begun is None:
            return []
        id_, text = begun["id"], truncate_value(text_of(result))
        if failed:
            return [Draft("ended", {"id": id_, "state": "failed", "error": text, "at": at})]
        ended = Draft("ended", {"id": id_, "state": "done", "outcome": text, "at": at})
        return [ended, *(_file_artifact(path, id_) for path in begun.get("files", ()))]

    def _pop_earlier(self, call: str) -> Mapping[str, Any] | None:
        if self._earlier_effects is None:
            self._earlier_effects = dict(self._pending())
        return self._earlier_effects.pop(call, None)


def effect_id(call: str, at: int) -> str:
    """Return a deterministic id for a call. Ids sort by time, as all ids do."""
    mark = blake2b(call.encode("utf-8", "replace"), digest_size=9).hexdigest()
    return f"{at // 10**6 & (1 << 48) - 1:012x}7{mark[:3]}8{mark[3:]}"


def relative(path: Any, cwd: Any) -> str:
    """Return the path relative to the workspace, if it is inside."""
    if not isinstance(path, str) or not path:
        return ""
    if isinstance(cwd, str) and os.path.isabs(cwd) and os.path.isabs(path):
        inside = os.path.relpath(path, cwd)
        return path if inside.startswith("..") else inside
    return path


def patched_files(text: Any) -> list[str]:
    """Return the files that a patch names, in order and unique."""
    paths = _PATCH_FILE_LINE.findall(text) if isinstance(text, str) else []
    return list(dict.fromkeys(paths))


def truncate_value(value: Any) -> Any:
    """Shorten a value: long texts keep their beginning and end."""
    if isinstance(value, str):
        if len(value) <= _MAX_TEXT_CHARS:
            return value
        half = _MAX_TEXT_CHARS // 2
        return f"{value[:half]}\n[… {len(value) - 2 * half} characters …]\n{value[-half:]}"
    whole = value if isinstance(value, dict | list) else None
    if isinstance(whole, dict):
        whole = {
            str(key)[:_MAX_TEXT_CHARS]: truncate_value(one)
            for key, one in list(whole.items())[:100]
        }
    elif isinstance(whole, list):
        whole = [truncate_value(one) for one in whole[:100]]
    else:
        return value
    return (
        whole
        if len(to_json(whole)) <= 20 * _MAX_TEXT_CHARS
        else {"…": truncate_value(to_json(whole))}
    )


def _file_artifact(path: str, effect: str) -> Draft:
    name = "".join(char if char.isprintable() else "\ufffd" for char in path)[:1000]
    data = {
        "name": name,
        "oid": "",
        "size": 0,
        "kind": "file",
        "media": "",
        "link": path[:4000],
        "action": effect,
        "why": "",
    }
    return Draft("artifact", data)
