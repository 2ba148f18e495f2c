"""Login and logout of the web page: exchanges a token for a cookie that scripts cannot read."""

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
from ortet.server.context import AppContext
from ortet.server.dispatch import read_body
from ortet.server.errors import JSON, Unauthorized

_MAX_BODY_BYTES = 4096
_FORM = "application/x-www-form-urlencoded"
_COOKIE_SECONDS = 30 * 24 * 3600
"""Lifetime of the cookie. The token may expire earlier."""


def login_routes(context: AppContext) -> list[Route]:
    """Return the routes POST /login and POST /logout."""
    return [
        Route("/login", partial(_login, context), methods=["POST"], name="login"),
        Route("/logout", partial(_logout, context), methods=["POST"], name="logout"),
    ]


async def _login(context: AppContext, request: Request) -> Response:
    """Set the cookie for a token in JSON or in a form.

    A form is redirected to the page afterwards.
    """
    context.authenticator.check_origin(request)
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    body = await read_body(request, _MAX_BODY_BYTES)
    token = _token(media, body)
    try:
        caller = await context.in_thread(partial(context.authenticator.caller_of_token, token))
    except Unauthorized:
        client = request.scope.get("client")
        await context.in_thread(
            partial(context.rate_limiter.admit_address, client[0] if client else "")
        )
        if media == _FORM:
            return RedirectResponse("/login?" + urlencode({"wrong": "", "next": _next(body)}), 303)
        raise
    caller_data = {"token": caller.token, "name": caller.name, "allows": caller.allows}
    answer = (
        RedirectResponse(_next(body), 303)
        if media == _FORM
        else Response(msgspec.json.encode(caller_data), media_type=JSON)
    )
    answer.set_cookie(COOKIE, token, max_age=_COOKIE_SECONDS, **_cookie_options(request))
    return answer


async def _logout(context: AppContext, request: Request) -> Response:
    context.authenticator.check_origin(request)
    form = request.headers.get("content-type", "").startswith(_FORM)
    answer = RedirectResponse("/", 303) if form else Response(status_code=204)
    answer.delete_cookie(COOKIE, **_cookie_options(request))
    return answer


def _next(body: bytes) -> str:
    """Return the page that the form names, if it is a local page."""
    return local_page(parse_qs(body.decode()).get("next", ["/"])[0])


def local_page(path: str) -> str:
    """Return `path` if it is local, else "/".

    This prevents a redirect to another site after login.
    """
    ours = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if ours else "/"


def _cookie_options(request: Request) -> dict[str, Any]:
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
