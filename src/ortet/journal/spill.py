"""Store long texts of an event as separate objects.

The event keeps the start of each text and a reference to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ortet._util.codec import to_json

SPILL_KEY = "beside"
"""Key in event data: a list of [path of keys, {"oid", "size", "json"}], in order."""

_MEDIA_TYPES = ("image", "image_url", "document", "file", "input_image")
_PREVIEW_CHARS = 2000

PutContent = Callable[[bytes], dict[str, Any]]
"""Function that stores content and returns the reference for the event."""

LoadContent = Callable[[dict[str, Any]], bytes]
"""Function that loads the content of a reference."""


def spill_long_texts(data: dict[str, Any], limit: int, put: PutContent) -> dict[str, Any]:
    """Return the data with texts longer than `limit` stored separately and cut.

    An image or document is replaced as a whole by a placeholder.
    """
    beside = list(data.get(SPILL_KEY, ()))
    light: Any = data
    for path, value in list(_find_long_values(data, limit)):
        is_text = isinstance(value, str)
        named = put(value.encode() if is_text else to_json(value).encode())
        beside.append([path, named if is_text else {**named, "json": True}])
        left = f"{value[: min(limit, _PREVIEW_CHARS)]}…" if is_text else _placeholder(value)
        light = _replace_at(light, path, left)
    return {**light, SPILL_KEY: beside} if beside else light


def load_spilled(data: dict[str, Any], load: LoadContent) -> dict[str, Any]:
    """Return the data with all separately stored values put back."""
    whole: Any = {key: value for key, value in data.items() if key != SPILL_KEY}
    for path, named in reversed(data.get(SPILL_KEY, ())):
        content = load(named)
        value = msgspec.json.decode(content) if named.get("json") else content.decode()
        whole = _replace_at(whole, path, value)
    return dict(whole)


def _find_long_values(
    value: Any, limit: int, path: tuple[Any, ...] = ()
) -> Iterator[tuple[list[Any], Any]]:
    if isinstance(value, str):
        if len(value) > limit:
            yield list(path), value
    elif isinstance(value, dict):
        if value.get("type") in _MEDIA_TYPES and any(
            _find_long_values({**value, "type": ""}, limit)
        ):
            yield list(path), value
            return
        for key, item in value.items():
            if path or key != SPILL_KEY:
                yield from _find_long_values(item, limit, (*path, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _find_long_values(item, limit, (*path, number))


def _placeholder(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": f"[{part.get('type')} that is kept beside this]"}


def _replace_at(value: Any, path: Sequence[Any], new: Any) -> Any:
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: _replace_at(value.get(key), rest, new)}
    return [
        _replace_at(item, rest, new) if index == key else item for index, item in enumerate(value)
    ]
