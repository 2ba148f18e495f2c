"""Errors over HTTP: one JSON shape, one status for each class, no secrets."""

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
    """401: the request has no valid token. The store itself never raises this error."""

    name = "unauthorized"


class HeadMoved(Refused):
    """412: the head is not the one that `If-Match` names."""


class TooLarge(Invalid):
    """413: the request body is too large."""


class TooSlow(Invalid):
    """408: the request body did not arrive in time."""


class TooManyRequests(Unavailable):
    """429: the caller exceeded its request rate or its number of concurrent requests."""


STATUS: dict[type[OrtetError], int] = {
    Unauthorized: 401,
    HeadMoved: 412,
    TooLarge: 413,
    TooSlow: 408,
    TooManyRequests: 429,
}


def token_revoked() -> Unauthorized:
    """Return the error for a token that became invalid during a long request, such as a stream."""
    return Unauthorized("bad_token", "this token was revoked or has expired: get another")


def redact_tokens(text: bytes) -> bytes:
    """Replace the secret part of every token in `text`."""
    return _TOKEN.sub(rb"\1...", text)


def error_body(error: OrtetError) -> dict[str, Any]:
    """Return the JSON shape of an error, without the name of any secret.

    The caller may lack the right to list secrets, so their names are removed.
    """
    return without_secret_name(error).as_dict()


def error_response(error: OrtetError) -> Response:
    """Return the HTTP response for an error."""
    status = STATUS.get(type(error)) or code_of(error).status
    headers = {}
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="ortet"'
    if status in (429, 503) or error.kind in ("lease_held", "in_progress"):
        headers["retry-after"] = str(error.details.get("retry_after", 1))
    body = redact_tokens(wire.to_json(error_body(error)))
    return Response(body, status, headers=headers, media_type=JSON)


def bug_response(error: BaseException) -> Response:
    """Return a 500 response for an exception that is not an OrtetError.

    The message of the exception is left out, because it may contain anything.
    """
    body = {
        "error": "bug",
        "kind": type(error).__name__,
        "message": "this is a fault of the server: its log says more",
        "details": {},
    }
    return Response(msgspec.json.encode(body), 500, media_type=JSON)
