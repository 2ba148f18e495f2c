"""PageRequest: one request for a page, with its caller, its session and the rendering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.hub.hub import Hub, hub_of
from ortet.ids import Oid
from ortet.server import wire
from ortet.server.auth.tokens import Caller
from ortet.server.context import AppContext
from ortet.server.errors import JSON, Unauthorized, error_body, error_response, redact_tokens
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.table import SessionRow

if TYPE_CHECKING:
    from jinja2 import Environment


HTML = "text/html"
THEME = "ortet-theme"
"""A cookie of the page. The server reads it, so that the first rendering has the right colours."""


class Tab(NamedTuple):
    """One page of a session. Templates set `tab` to its `key`."""

    key: str
    label: str
    path: str  # after /s/{session}


class PageRequest:
    """The inputs of a view for one page. Used by one thread."""

    def __init__(
        self,
        context: AppContext,
        request: Request,
        templates: Environment,
        *,
        caller: Caller,
        tabs: tuple[Tab, ...],
    ) -> None:
        self.context = context
        self.request = request
        self.caller = caller
        self._templates = templates
        self._tabs = tabs

    @property
    def session_pool(self) -> SessionPool:
        """The session pool of the caller's tenant."""
        return self.context.tenants.session_pool(self.caller.tenant)

    @property
    def path_params(self) -> dict[str, str]:
        """The path parameters of the address."""
        params: dict[str, str] = self.request.path_params
        return params

    @property
    def query(self) -> dict[str, str]:
        return dict(self.request.query_params)

    def row(self) -> SessionRow:
        """Return the session of the address. Raises NotFound if the caller may not see it."""
        row = self.session_pool.row(self.path_params["session"], self.caller.sees)
        self.request.scope["state"]["session"] = row.id
        return row

    @contextmanager
    def view(self) -> Iterator[SessionReader]:
        """Yield the session of the address for reading.

        Its hub resolves only commits the caller may see.
        """
        with (
            self.session_pool.view(self.row().id) as view,
            self.context.commit_visibility.restrict_hub(self.caller, hub_of(view)),
        ):
            yield view

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """Yield a hub that resolves only commits that the caller may see."""
        with (
            self.session_pool.hub() as hub,
            self.context.commit_visibility.restrict_hub(self.caller, hub),
        ):
            yield hub

    def resolve_commit(self, hub: Hub, text: str) -> Oid:
        """Return a commit that the caller may read, by any of its names."""
        return self.context.commit_visibility.resolve_commit(hub, self.caller, text)

    def has_static_file(self, name: str) -> bool:
        """Return True if this static file exists. Third-party files are optional."""
        has_static: Any = self._templates.globals["has_static"]
        return bool(has_static(name))

    def render(self, template: str, status: int = 200, **variables: Any) -> Response:
        """Render a page. Templates get `visit`, `who`, `theme`, `tabs` and `variables`."""
        text = self._templates.get_template(template).render(
            visit=self,
            who=self.caller,
            theme=theme_of(self.request),
            tabs=self._tabs,
            **variables,
        )
        return html(text, status)

    def json_response(self, value: Any, etag: str = "") -> Response:
        """Return JSON for a script of the page, or 304 if the browser has this ETag."""
        headers = {"etag": etag, "cache-control": "private, no-cache"} if etag else None
        if etag and etag in self.request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(wire.to_json(value), media_type=JSON, headers=headers)


PageView = Callable[[PageRequest], Response]


def page_endpoint(
    context: AppContext, templates: Environment, page_view: PageView, tabs: tuple[Tab, ...]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the route handler of a page. A request without a token gets the login form."""

    def drawn(request: Request) -> Response:
        caller = context.authenticate_sync(request)
        caller.need("read")
        return page_view(PageRequest(context, request, templates, caller=caller, tabs=tabs))

    async def answer(request: Request) -> Response:
        try:
            response: Response = await context.in_thread(partial(drawn, request))
        except OrtetError as error:
            return error_page(templates, request, error)
        return response

    return answer


def error_page(templates: Environment, request: Request, error: OrtetError) -> Response:
    """Return an error as a page for browsers, or as JSON for scripts."""
    response = error_response(error)
    if HTML not in request.headers.get("accept", ""):
        return response
    name = "login.html" if isinstance(error, Unauthorized) else "error.html"
    text = templates.get_template(name).render(
        error=error,
        message=redact_tokens(
            error_body(error)["message"].encode("utf-8", "backslashreplace")
        ).decode(),
        theme=theme_of(request),
        status=response.status_code,
        back=request.url.path,
        who=None,
    )
    return html(text, response.status_code)


def html(text: str, status: int = 200) -> Response:
    """Return an HTML response. Bytes of file names that are not UTF-8 are shown as escapes."""
    return Response(text.encode("utf-8", "backslashreplace"), status, media_type=HTML)


def theme_of(request: Request) -> str:
    """Return the theme of the cookie: "dark", "light", or "" for that of the system."""
    theme = request.cookies.get(THEME, "")
    return theme if theme in ("dark", "light") else ""


# Helpers that the pages of a session share: the query, and the variables of the page frame.

_Ask = TypeVar("_Ask", bound=msgspec.Struct)


def parse_query(page_request: PageRequest, query_type: type[_Ask]) -> _Ask:
    """Return the query of the address as a struct, or raise Invalid."""
    return wire.parse_request(
        query_type, path={}, query=page_request.request.query_params.multi_items(), body=None
    )


def session_frame(view: SessionReader) -> dict[str, Any]:
    """Return the template variables of the frame of a session's page."""
    return {"row": view.internals.row, "goal": view.goal}
