"""The terminal page: a shell of a session's machine in the browser.

With xterm.js, if it was installed, it is a full terminal. Otherwise it takes lines and shows text.
A module of its own, like every page.
"""

from __future__ import annotations

from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.server.middleware.requests import PAGE_POLICY
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest, session_frame

XTERM = ("vendor/xterm.js", "vendor/xterm.css")


def terminal(page_request: PageRequest) -> Response:
    """Render the terminal page."""
    with page_request.view() as view:
        frame = {**session_frame(view), "why": _unavailable_reason(page_request, view)}
    full = (
        all(page_request.has_static_file(name) for name in XTERM)
        and "plain" not in page_request.query
    )
    answer = page_request.render(
        "terminal.html",
        tab="terminal",
        live=page_request.session_pool.has_live_machine(frame["row"].id),
        xterm=XTERM if full else (),
        **frame,
    )
    if full:
        # xterm.js creates inline styles. Scripts are still limited to our own.
        policy = PAGE_POLICY.replace(b"style-src 'self'", b"style-src 'self' 'unsafe-inline'")
        answer.headers["content-security-policy"] = policy.decode()
    return answer


def _unavailable_reason(page_request: PageRequest, view: SessionReader) -> str:
    """Return why a terminal cannot be opened, or ""."""
    if view.status in ("closed", "archived"):
        return f"The session is {view.status}. Fork it, and open a terminal in the fork."
    try:
        page_request.caller.need("write")
        page_request.caller.need_host()
    except OrtetError as error:
        return error.message
    if (
        view.internals.row.path
        and view.internals.row.engine in ("auto", "folder")
        and view.internals.row.files != "private"
    ):
        return (
            "It works in a directory in place, where its commands are the host's own: a terminal "
            "needs a machine. Begin a session with engine overlay or criu, or fork this one."
        )
    return ""
