"""All pages: their addresses, their views and the static files.

A page is a function from a PageRequest to a Response, in a module of `views`. It reads the store in
this process (`page_request.view()`, `page_request.hub()`). Changes go through the HTTP operations.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ortet.server.auth.login import local_page
from ortet.server.context import AppContext
from ortet.server.streaming.streams import Streams
from ortet.server.table import RawPathRoute
from ortet.web.request import PageView, Tab, html, page_endpoint, theme_of
from ortet.web.static_files import StaticAssets
from ortet.web.templates import make_environment
from ortet.web.views.api_reference import ApiReferencePage
from ortet.web.views.artifacts import artifacts
from ortet.web.views.budget import budget
from ortet.web.views.journal import journal
from ortet.web.views.live_updates import live_routes
from ortet.web.views.memory import memory, session_memory
from ortet.web.views.sessions import sessions
from ortet.web.views.storage import store
from ortet.web.views.terminal import terminal
from ortet.web.views.timeline import pages as tree_pages

if TYPE_CHECKING:
    from jinja2 import Environment

TABS = (
    Tab("timeline", "Timeline", ""),
    Tab("replay", "Replay", "/replay"),
    Tab("journal", "Journal", "/journal"),
    Tab("memory", "Memory", "/memory"),
    Tab("artifacts", "Artifacts", "/artifacts"),
    Tab("budget", "Budget", "/budget"),
    Tab("terminal", "Terminal", "/terminal"),
)
"""The pages of one session, in the order of its navigation."""

PAGES: tuple[tuple[str, PageView], ...] = (
    ("/", sessions),
    ("/memory", memory),
    ("/storage", store),
    ("/s/{session}/journal", journal),
    ("/s/{session}/memory", session_memory),
    ("/s/{session}/artifacts", artifacts),
    ("/s/{session}/budget", budget),
    ("/s/{session}/terminal", terminal),
)


def page_routes(context: AppContext, streams: Streams) -> list[BaseRoute]:
    """Return the routes of all pages and static files."""
    assets = StaticAssets()
    templates = make_environment(assets)
    return [
        Route("/static/{version}/{name:path}", assets.answer, name="static"),
        Route("/login", partial(_login, templates), methods=["GET"], name="login page"),
        *ApiReferencePage(templates).routes(),
        *live_routes(streams),
        Route("/favicon.ico", partial(_icon, assets), name="icon"),
        *(
            RawPathRoute(path, page_endpoint(context, templates, draw, TABS), name=path)
            for path, draw in (*PAGES, *tree_pages())
        ),
    ]


async def _login(templates: Environment, request: Request) -> Response:
    text = templates.get_template("login.html").render(
        theme=theme_of(request),
        wrong="wrong" in request.query_params,
        back=local_page(request.query_params.get("next", "/")),
        who=None,
    )
    return html(text)


async def _icon(assets: StaticAssets, _: Request) -> Response:
    return RedirectResponse(assets.address("mark.svg"), 302)
