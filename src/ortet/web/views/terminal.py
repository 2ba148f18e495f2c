"""The terminal: a shell of a session's machine, in the browser.

With xterm.js, which set-up may have put beside the interpreter, it is a full one; without, lines go
in and text comes out, which does for most.
"""

from __future__ import annotations

from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.server.middleware.requests import PAGE_POLICY
from ortet.sessions.reader import View
from ortet.web.asking import about
from ortet.web.request import Visit

XTERM = ("vendor/xterm.js", "vendor/xterm.css")


def terminal(visit: Visit) -> Response:
    """The page."""
    with visit.view() as view:
        given = {**about(view), "why": _why(visit, view)}
    full = all(visit.has(name) for name in XTERM) and "plain" not in visit.query
    answer = visit.show(
        "terminal.html",
        tab="terminal",
        live=visit.rooms.lives(given["row"].id),
        xterm=XTERM if full else (),
        **given,
    )
    if full:
        # it colours what it shows by styles that it makes; scripts stay ours alone
        policy = PAGE_POLICY.replace(b"style-src 'self'", b"style-src 'self' 'unsafe-inline'")
        answer.headers["content-security-policy"] = policy.decode()
    return answer


def _why(visit: Visit, view: View) -> str:
    """Why there can be none; "" when there can."""
    if view.status in ("closed", "archived"):
        return f"The session is {view.status}. Fork it, and open a terminal in the fork."
    try:
        visit.caller.need("write")
        visit.caller.need_host()
    except OrtetError as error:
        return error.message
    if view.row.path and view.row.engine in ("auto", "folder") and view.row.files != "private":
        return (
            "It works in a directory in place, where its commands are the host's own: a terminal "
            "needs a machine. Begin a session with engine overlay or criu, or fork this one."
        )
    return ""
