"""Helpers that the pages of a session share: the query, and the variables of the page frame.

A module of its own, because several views share them and `request` does not need them.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ortet.server import wire
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest

_Ask = TypeVar("_Ask", bound=msgspec.Struct)


def parse_query(page_request: PageRequest, query_type: type[_Ask]) -> _Ask:
    """Return the query of the address as a struct, or raise Invalid."""
    return wire.parse_request(
        query_type, path={}, query=page_request.request.query_params.multi_items(), body=None
    )


def session_frame(view: SessionReader) -> dict[str, Any]:
    """Return the template variables of the frame of a session's page."""
    return {"row": view.row, "goal": view.goal}
