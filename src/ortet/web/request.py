"""One request for a page: who asks, what they may see, and the page, or why there is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.context import Desk
from ortet.server.errors import JSON, Unknown, hidden, refusal, shape_of
from ortet.server.session_pool.pool import Rooms
from ortet.sessions.reader import View
from ortet.sessions.table import SessionRow

if TYPE_CHECKING:
    from jinja2 import Environment

HTML = "text/html"
THEME = "ortet-theme"
"""A cookie of the page's own: what is drawn here has the colours at once."""


class Tab(NamedTuple):
    """One of the pages of a session. `key` is what a template sets `tab` to."""

    key: str
    label: str
    path: str  # behind /s/{session}


class Visit:
    """What a page is drawn with. Used in one thread."""

    def __init__(
        self,
        desk: Desk,
        request: Request,
        templates: Environment,
        *,
        caller: Caller,
        tabs: tuple[Tab, ...],
    ) -> None:
        self.desk = desk
        self.request = request
        self.caller = caller
        self._templates = templates
        self._tabs = tabs

    @property
    def rooms(self) -> Rooms:
        return self.desk.tenants.rooms(self.caller.tenant)

    @property
    def path(self) -> dict[str, str]:
        """What the address names."""
        found: dict[str, str] = self.request.path_params
        return found

    @property
    def query(self) -> dict[str, str]:
        return dict(self.request.query_params)

    def row(self) -> SessionRow:
        """The session of the address; NotFound, also for one that is not to be seen."""
        row = self.rooms.row(self.path["session"], self.caller.sees)
        self.request.scope["state"]["session"] = row.id
        return row

    @contextmanager
    def view(self) -> Iterator[View]:
        """The session of the address, to read; its hub knows no commit that the caller may not."""
        with self.rooms.view(self.row().id) as view, self.desk.sight.of(self.caller, view.hub):
            yield view

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        with self.rooms.hub() as hub, self.desk.sight.of(self.caller, hub):
            yield hub

    def commit(self, hub: Hub, text: str) -> Oid:
        """A commit that the caller may read, by any of its names."""
        return self.desk.sight.commit(hub, self.caller, text)

    def has(self, name: str) -> bool:
        """Whether there is such a file for pages: not all are ours."""
        look: Any = self._templates.globals["has_static"]
        return bool(look(name))

    def show(self, template: str, status: int = 200, **given: Any) -> Response:
        """A page. Templates know `visit`, `who`, `theme`, `tabs` and what is given."""
        text = self._templates.get_template(template).render(
            visit=self,
            who=self.caller,
            theme=theme_of(self.request),
            tabs=self._tabs,
            **given,
        )
        return html(text, status)

    def data(self, value: Any, etag: str = "") -> Response:
        """JSON for a script of ours; 304 where the browser has it already."""
        headers = {"etag": etag, "cache-control": "private, no-cache"} if etag else None
        if etag and etag in self.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(wire.to_json(value), media_type=JSON, headers=headers)


Draw = Callable[[Visit], Response]


def endpoint(
    desk: Desk, templates: Environment, draw: Draw, tabs: tuple[Tab, ...]
) -> Callable[[Request], Awaitable[Response]]:
    """The route of a page. Who has not said who they are is asked, in the same place."""

    def drawn(request: Request) -> Response:
        caller = desk.known(request)
        caller.need("read")
        return draw(Visit(desk, request, templates, caller=caller, tabs=tabs))

    async def answer(request: Request) -> Response:
        try:
            found: Response = await desk.in_thread(partial(drawn, request))
        except OrtetError as error:
            return failed(templates, request, error)
        return found

    return answer


def failed(templates: Environment, request: Request, error: OrtetError) -> Response:
    """An error as a page, for people; as it is told everywhere, for scripts."""
    told = refusal(error)
    if HTML not in request.headers.get("accept", ""):
        return told
    name = "login.html" if isinstance(error, Unknown) else "error.html"
    text = templates.get_template(name).render(
        error=error,
        message=hidden(shape_of(error)["message"].encode("utf-8", "backslashreplace")).decode(),
        theme=theme_of(request),
        status=told.status_code,
        back=request.url.path,
        who=None,
    )
    return html(text, told.status_code)


def html(text: str, status: int = 200) -> Response:
    """Names of files may hold bytes that are no text: they are shown as escapes."""
    return Response(text.encode("utf-8", "backslashreplace"), status, media_type=HTML)


def theme_of(request: Request) -> str:
    """As the switch was left; "": as the system has it."""
    found = request.cookies.get(THEME, "")
    return found if found in ("dark", "light") else ""
