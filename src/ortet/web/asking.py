"""What pages of a session have in common: what their address says, and where the session is."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ortet.server import wire
from ortet.sessions.reader import View
from ortet.web.request import Visit

_Ask = TypeVar("_Ask", bound=msgspec.Struct)


def asked(visit: Visit, kind: type[_Ask]) -> _Ask:
    """The query of the address; Invalid for what it cannot say."""
    return wire.asked(kind, path={}, query=visit.request.query_params.multi_items(), body=None)


def about(view: View) -> dict[str, Any]:
    """What the frame of a session's page is given."""
    return {"row": view.row, "goal": view.goal}
