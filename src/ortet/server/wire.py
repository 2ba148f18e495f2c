"""Converts requests to structs, and results to JSON."""

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
    """Return the request as a `kind`.

    Args:
        kind: The struct of the request.
        path: Path parameters. They replace fields of the same name.
        query: Query parameters, used if `body` is None.
        body: The JSON body, or None if the request is in the query.

    Raises:
        Invalid: The body is not a JSON object, or a value does not fit the struct.
    """
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
    """Return the values of a query. A list parameter may be repeated or hold commas."""
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
    """Return the names of list fields.

    Cached, because msgspec evaluates all annotations on each call.
    """
    return frozenset(
        field.name
        for field in msgspec.structs.fields(kind)
        if list in {get_origin(one) for one in (field.type, *get_args(field.type))}
    )


def to_json(value: object) -> bytes:
    """Return compact JSON.

    A path with bytes that are not UTF-8 is written with surrogate escapes, which Python can read
    back.
    """
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode()
