"""The first page: all sessions that the caller may see."""

from __future__ import annotations

from starlette.responses import Response

from ortet.surface.http.shapes import seen_rows
from ortet.surface.page.visit import Visit


def sessions(visit: Visit) -> Response:
    with visit.hub() as hub:
        rows = list(reversed(seen_rows(hub, visit.caller)))
    return visit.show("sessions.html", rows=rows)
