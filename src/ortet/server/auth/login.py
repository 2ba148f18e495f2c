"""A cookie for the page: a token is given once, and the browser keeps it from scripts."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ortet.errors import Invalid
from ortet.server.auth.authenticate import COOKIE
from ortet.server.context import Desk
from ortet.server.dispatch import read_body
from ortet.server.errors import JSON, Unknown

_LARGEST = 4096
_FORM = "application/x-www-form-urlencoded"
_KEEP = 30 * 24 * 3600
"""Seconds; the token itself may be valid for less."""


def login_routes(desk: Desk) -> list[Route]:
    return [
        Route("/login", partial(_login, desk), methods=["POST"], name="login"),
        Route("/logout", partial(_logout, desk), methods=["POST"], name="logout"),
    ]


async def _login(desk: Desk, request: Request) -> Response:
    """`{"token": ...}`, or the same from a form, which is then led to the page."""
    desk.gate.check_origin(request)
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    body = await read_body(request, _LARGEST)
    token = _token(media, body)
    try:
        caller = await desk.in_thread(partial(desk.gate.known, token))
    except Unknown:
        client = request.scope.get("client")
        await desk.in_thread(partial(desk.limits.stranger, client[0] if client else ""))
        if media == _FORM:
            return RedirectResponse("/login?" + urlencode({"wrong": "", "next": _next(body)}), 303)
        raise
    told = {"token": caller.token, "name": caller.name, "allows": caller.allows}
    answer = (
        RedirectResponse(_next(body), 303)
        if media == _FORM
        else Response(msgspec.json.encode(told), media_type=JSON)
    )
    answer.set_cookie(COOKIE, token, max_age=_KEEP, **_how(request))
    return answer


async def _logout(desk: Desk, request: Request) -> Response:
    desk.gate.check_origin(request)
    form = request.headers.get("content-type", "").startswith(_FORM)
    answer = RedirectResponse("/", 303) if form else Response(status_code=204)
    answer.delete_cookie(COOKIE, **_how(request))
    return answer


def _next(body: bytes) -> str:
    """Where the form was, if that is a page of ours."""
    return page_of(parse_qs(body.decode()).get("next", ["/"])[0])


def page_of(path: str) -> str:
    """A path that is one of ours, else the first page: who signs in is led to no other site."""
    ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if ours else "/"


def _how(request: Request) -> dict[str, Any]:
    return {
        "path": "/",
        "httponly": True,
        "samesite": "strict",
        "secure": request.url.scheme == "https",
    }


def _token(media: str, body: bytes) -> str:
    try:
        if media == _FORM:
            token: Any = parse_qs(body.decode(), max_num_fields=10).get("token", [""])[0]
        else:
            token = msgspec.json.decode(body)["token"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str):
        raise Invalid("bad_request", 'give {"token": "ortet_..."}, or the same in a form')
    return token.strip()
