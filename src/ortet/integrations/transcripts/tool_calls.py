"""Tool calls of a transcript as deeds, and the files that they changed as artifacts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from ortet._util.codec import to_json
from ortet.journal.conversation.text import text_of
from ortet.journal.events import Draft

_TEXT = 2_000
"""Characters of an argument or a result that the deed has: the whole is in the message."""

_PATCHED = re.compile(r"^\*\*\* (?:Add File|Update File|Delete File|Move to): (.+?)\s*$", re.M)

Pending = Callable[[], Mapping[str, Mapping[str, Any]]]
"""The intents of deeds, by their calls, that were told before and have not ended."""


class Doings:
    """The deeds of one conversation: a call is begun where it was made, and ended by its result."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._before: dict[str, Mapping[str, Any]] | None = None
        self._begun: dict[str, Mapping[str, Any]] = {}

    def begin(
        self,
        call: str,
        name: str,
        given: Any,
        *,
        at: int,
        files: Sequence[str] = (),
        why: str = "",
    ) -> Draft:
        data = {
            "id": effect_id(call, at),
            "name": name[:_TEXT] or "tool",
            "replay": "recorded",
            "key": "",
            "scope": "family",
            "why": why[:_TEXT],
            "args": [],
            "kwargs": short(given) if isinstance(given, dict) else {"input": short(given)},
            "call": call[:_TEXT],
            "at": at,
            "files": [path for path in files if path][:1000],
        }
        self._begun[call[:_TEXT]] = data
        return Draft("begun", data)

    def end(self, call: str, result: Any, *, at: int, failed: bool = False) -> list[Draft]:
        """Nothing for a call that is no deed, or has ended."""
        begun = self._begun.pop(call[:_TEXT], None) or self._earlier(call[:_TEXT])
        if begun is None:
            return []
        id_, said = begun["id"], short(text_of(result))
        if failed:
            return [Draft("ended", {"id": id_, "state": "failed", "error": said, "at": at})]
        ended = Draft("ended", {"id": id_, "state": "done", "outcome": said, "at": at})
        return [ended, *(_touched(path, id_) for path in begun.get("files", ()))]

    def _earlier(self, call: str) -> Mapping[str, Any] | None:
        if self._before is None:
            self._before = dict(self._pending())
        return self._before.pop(call, None)


def effect_id(call: str, at: int) -> str:
    """The same for the same call, whenever it is read; in the order of their times, as all ids."""
    mark = blake2b(call.encode("utf-8", "replace"), digest_size=9).hexdigest()
    return f"{at // 10**6 & (1 << 48) - 1:012x}7{mark[:3]}8{mark[3:]}"


def relative(path: Any, cwd: Any) -> str:
    """As the workspace has it, where it lies in it."""
    if not isinstance(path, str) or not path:
        return ""
    if isinstance(cwd, str) and os.path.isabs(cwd) and os.path.isabs(path):
        inside = os.path.relpath(path, cwd)
        return path if inside.startswith("..") else inside
    return path


def patched(text: Any) -> list[str]:
    """The files that a patch names, in order, each once."""
    found = _PATCHED.findall(text) if isinstance(text, str) else []
    return list(dict.fromkeys(found))


def short(value: Any) -> Any:
    """With the ends of long texts."""
    if isinstance(value, str):
        if len(value) <= _TEXT:
            return value
        half = _TEXT // 2
        return f"{value[:half]}\n[… {len(value) - 2 * half} characters …]\n{value[-half:]}"
    whole = value if isinstance(value, dict | list) else None
    if isinstance(whole, dict):
        whole = {str(key)[:_TEXT]: short(one) for key, one in list(whole.items())[:100]}
    elif isinstance(whole, list):
        whole = [short(one) for one in whole[:100]]
    else:
        return value
    return whole if len(to_json(whole)) <= 20 * _TEXT else {"…": short(to_json(whole))}


def _touched(path: str, effect: str) -> Draft:
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
