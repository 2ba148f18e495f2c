"""What pages of a session have in common: what their address says, and where the session is."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ortet.server import wire
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest

_Ask = TypeVar("_Ask", bound=msgspec.Struct)


def parse_query(page_request: PageRequest, query_type: type[_Ask]) -> _Ask:
    """The query of the address; Invalid for what it cannot say."""
    return wire.parse_request(
        query_type, path={}, query=page_request.request.query_params.multi_items(), body=None
    )


def session_frame(view: SessionReader) -> dict[str, Any]:
    """What the frame of a session's page is given."""
    return {"row": view.row, "goal": view.goal}
