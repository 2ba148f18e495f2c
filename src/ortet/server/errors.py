"""Errors as they are told over HTTP: one shape, a status for each class, never a secret."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.responses import Response

from ortet.errors import Invalid, OrtetError, Refused, Unavailable, code_of
from ortet.machines.secrets.scanner import without_secret_name
from ortet.server import wire

JSON = "application/json"
_TOKEN = re.compile(rb"(ortet_[0-9a-z]{1,40}_)[0-9a-zA-Z]+")


class Unauthorized(OrtetError):
    """Nobody knows who asks: 401, which is not one of the store's errors."""

    name = "unauthorized"


class HeadMoved(Refused):
    """412: the caller's condition does not hold."""


class TooLarge(Invalid):
    """413."""


class TooSlow(Invalid):
    """408."""


class TooManyRequests(Unavailable):
    """429: this caller has asked for more than its share."""


STATUS: dict[type[OrtetError], int] = {
    Unauthorized: 401,
    HeadMoved: 412,
    TooLarge: 413,
    TooSlow: 408,
    TooManyRequests: 429,
}


def token_revoked() -> Unauthorized:
    """In the middle of something that takes long."""
    return Unauthorized(
        "bad_token", "this token was revoked meanwhile, or is out of time: get another"
    )


def redact_tokens(text: bytes) -> bytes:
    """Without what makes a token valid, wherever somebody put one."""
    return _TOKEN.sub(rb"\1...", text)


def error_body(error: OrtetError) -> dict[str, Any]:
    """The one shape that errors have everywhere; here names of secrets are for nobody, as whoever
    asks may not be one who can list them."""
    return without_secret_name(error).as_dict()


def error_response(error: OrtetError) -> Response:
    """An error as it is told."""
    status = STATUS.get(type(error)) or code_of(error).status
    headers = {}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="ortet"'
    if status in (429, 503) or error.kind in ("lease_held", "in_progress"):
        headers["retry-after"] = str(error.details.get("retry_after", 1))
    body = redact_tokens(wire.to_json(error_body(error)))
    return Response(body, status, headers=headers, media_type=JSON)


def bug_response(error: BaseException) -> Response:
    """What is not one of our errors: told without its words, which may hold anything."""
    told = {
        "error": "bug",
        "kind": type(error).__name__,
        "message": "this is a fault of the server: its log says more",
        "details": {},
    }
    return Response(msgspec.json.encode(told), 500, media_type=JSON)
