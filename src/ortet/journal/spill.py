"""Long texts of an event that lie beside it in the store: it says where, and how they began."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ortet._util.codec import to_json

BESIDE = "beside"
"""Of the data of an event: [[keys that lead there], {"oid", "size", "json"}], in order."""

_PICTURES = ("image", "image_url", "document", "file", "input_image")
_BEGINNING = 2000

Put = Callable[[bytes], dict[str, Any]]
"""Stores a content; returns how an event names it."""

Load = Callable[[dict[str, Any]], bytes]
"""The reverse."""


def lightened(data: dict[str, Any], limit: int, put: Put) -> dict[str, Any]:
    """The same with texts of more than `limit` characters cut, and the whole of each stored. Of a
    picture nothing is left but that it was there: half of one is none."""
    beside = list(data.get(BESIDE, ()))
    light: Any = data
    for path, value in list(_long(data, limit)):
        is_text = isinstance(value, str)
        named = put(value.encode() if is_text else to_json(value).encode())
        beside.append([path, named if is_text else {**named, "json": True}])
        left = f"{value[: min(limit, _BEGINNING)]}…" if is_text else _left(value)
        light = _with(light, path, left)
    return {**light, BESIDE: beside} if beside else light


def whole(data: dict[str, Any], load: Load) -> dict[str, Any]:
    """As it was before anything was cut."""
    found: Any = {key: value for key, value in data.items() if key != BESIDE}
    for path, named in reversed(data.get(BESIDE, ())):
        content = load(named)
        value = msgspec.json.decode(content) if named.get("json") else content.decode()
        found = _with(found, path, value)
    return dict(found)


def _long(value: Any, limit: int, path: tuple[Any, ...] = ()) -> Iterator[tuple[list[Any], Any]]:
    if isinstance(value, str):
        if len(value) > limit:
            yield list(path), value
    elif isinstance(value, dict):
        if value.get("type") in _PICTURES and any(_long({**value, "type": ""}, limit)):
            yield list(path), value
            return
        for key, one in value.items():
            if path or key != BESIDE:
                yield from _long(one, limit, (*path, key))
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from _long(one, limit, (*path, number))


def _left(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": f"[{part.get('type')} that is kept beside this]"}


def _with(value: Any, path: Sequence[Any], new: Any) -> Any:
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: _with(value.get(key), rest, new)}
    return [_with(one, rest, new) if at == key else one for at, one in enumerate(value)]
