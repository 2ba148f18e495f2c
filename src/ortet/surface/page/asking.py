"""What pages of a session have in common: what their address says, and where the session is."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ortet.session.view import View
from ortet.surface.http import wire
from ortet.surface.page.visit import Visit

_Ask = TypeVar("_Ask", bound=msgspec.Struct)


def asked(visit: Visit, kind: type[_Ask]) -> _Ask:
    """The query of the address; Invalid for what it cannot say."""
    return wire.asked(kind, path={}, query=visit.request.query_params.multi_items(), body=None)


def about(view: View) -> dict[str, Any]:
    """What the frame of a session's page is given."""
    return {"row": view.row, "goal": view.goal}
