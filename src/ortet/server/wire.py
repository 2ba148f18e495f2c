"""Requests into records, and what is given back into JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.errors import Invalid

_Ask = TypeVar("_Ask", bound=msgspec.Struct)


def parse_request(
    kind: type[_Ask],
    *,
    path: Mapping[str, str],
    query: Sequence[tuple[str, str]],
    body: bytes | None,
) -> _Ask:
    """What a request says. `body` is None where the query says it."""
    if body is None:
        values = _from_query(kind, query)
    elif not body.strip():
        values = {}
    else:
        values = _from_body(body)
    named = {name: value for name, value in path.items() if name in kind.__struct_fields__}
    try:
        return msgspec.convert(
            {**values, **named}, thread_safe_struct(kind), strict=body is not None
        )
    except msgspec.ValidationError as error:
        raise Invalid("bad_request", f"{error}: /openapi.json says what can be given") from error


def _from_body(body: bytes) -> dict[str, Any]:
    try:
        values = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid("bad_json", f"the body is not JSON ({error}): correct it") from error
    if not isinstance(values, dict):
        raise Invalid("bad_json", "the body is not a JSON object: give one")
    return values


def _from_query(kind: type[msgspec.Struct], query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A parameter that is a list may be given several times, or once with commas."""
    lists = _list_fields(kind)
    values: dict[str, Any] = {}
    for name, value in query:
        if name not in kind.__struct_fields__:
            raise Invalid("bad_request", f"{name}: no parameter of this name; see /openapi.json")
        if name in lists:
            values.setdefault(name, []).extend(value.split(","))
        else:
            values[name] = value
    return values


@cache
def _list_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Fields that are lists. To ask for their types evaluates every annotation anew."""
    return frozenset(
        field.name
        for field in msgspec.structs.fields(kind)
        if list in {get_origin(one) for one in (field.type, *get_args(field.type))}
    )


def to_json(value: object) -> bytes:
    """Compact. A path with bytes that are no text keeps them as escapes that Python reads back."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode()
