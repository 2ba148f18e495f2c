"""A session as a timeline tree: its page, and the rows that a script draws."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.sessions.reader import View
from ortet.web.request import Draw, Visit
from ortet.web.views import commit, compare, replay
from ortet.web.views.seals import Seals
from ortet.web.views.timeline_graph import Family, Grove

_FIRST = 200
"""Rows that come first: more than any screen shows."""


def pages() -> tuple[tuple[str, Draw], ...]:
    grove = Grove()
    return (
        ("/s/{session}", show),
        ("/s/{session}/tree.json", partial(rows, grove)),
        ("/s/{session}/c/{commit}", commit.show),
        ("/s/{session}/compare/{a}/{b}", compare.show),
        ("/s/{session}/replay", partial(replay.show, Seals())),
    )


def show(visit: Visit) -> Response:
    """The frame of the tree, and beside it what the session is about."""
    with visit.view() as view:
        family = family_of(visit, view.hub)
        return visit.show("tree.html", tab="timeline", row=view.row, **overview(view, family))


def overview(view: View, family: Family) -> dict[str, Any]:
    core = view.mind.core
    spent, limits = view.spent(), view.limits()
    return {
        "goal": core.goal,
        "plan": list(core.plan),
        "step": core.step,
        "spent": sorted(spent.items()),
        "limits": limits,
        "family": family,
        "head": view.head,
        "events": view.line.tip().seq,
        "first": _FIRST,
    }


def rows(grove: Grove, visit: Visit) -> Response:
    """`?from=N&upto=M`: some of them, all without."""
    start, stop = _number(visit, "from", 0), _number(visit, "upto", 1 << 53)
    with visit.hub() as hub:
        family = family_of(visit, hub)
        if not start and stop <= _FIRST:
            sketch = grove.sketch(hub, visit.caller, family, stop)
            if sketch is not None:
                return visit.data(sketch.part(0, stop))
        drawing = grove.drawing(hub, visit.caller, family)
    return visit.data(drawing.part(start, stop), f'"{drawing.tag}-{start}-{stop}"')


def family_of(visit: Visit, hub: Hub) -> Family:
    return Family.of(hub, visit.rooms, visit.caller, visit.row())


def _number(visit: Visit, name: str, default: int) -> int:
    text = visit.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise Invalid("bad_request", f"{name} is a whole number from 0: correct the address")
    return int(text)
