"""The sessions of a store as the first page lists them: who they are, what they cost, what they do.

Rows of all sessions are cheap; a goal, a cost and a last event are read of those shown alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
from starlette.responses import Response

from ortet.errors import OrtetError
from ortet.session.budget import levels
from ortet.session.hub import Hub
from ortet.session.lifecycle import SessionRow
from ortet.session.view import View
from ortet.surface import render
from ortet.surface.http.shapes import seen_rows
from ortet.surface.http.tokens import Caller
from ortet.surface.page.asking import asked
from ortet.surface.page.visit import Visit

STATUSES = ("open", "active", "paused", "closed", "archived")
PAGE = 50
_GOALS = 300
"""The newest sessions whose goals are looked through, beside all names."""
_SAID = 30
"""Memories that are looked at for sessions in which the words were said."""


class AskRoster(msgspec.Struct, frozen=True):
    """What the address of the page says."""

    q: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    status: str = ""
    agent: str = ""
    page: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1


class Card(msgspec.Struct, frozen=True):
    """One session. `found`: where the words were, other than in its name."""

    id: str
    name: str
    agent: str
    status: str
    created: int
    touched: int
    goal: str
    spent: dict[str, float]
    head: str
    message: str
    live: bool
    parent: str
    events: int
    found: str = ""
    fault: str = ""


class Roster(msgspec.Struct, frozen=True):
    """A page of sessions, the newest first; `total` are all, `count` those that were asked for."""

    cards: list[Card]
    ask: AskRoster
    agents: list[str]
    counts: dict[str, int]
    total: int
    count: int
    pages: int


def roster(hub: Hub, caller: Caller, ask: AskRoster, lives: Callable[[str], bool]) -> Roster:
    """What the page shows; `lives` says whether a session's machine is here."""
    rows = list(reversed(seen_rows(hub, caller)))
    agents = sorted({row.agent for row in rows})
    kept = [row for row in rows if ask.agent in ("", row.agent)]
    counts = {name: sum(row.status == name for row in kept) for name in STATUSES}
    kept = [row for row in kept if ask.status in ("", row.status)]
    found = dict(_matching(hub, caller, kept, ask.q.strip())) if ask.q.strip() else {}
    chosen = [row for row in kept if not ask.q.strip() or row.id in found]
    pages = max(1, -(-len(chosen) // PAGE))
    start = (min(ask.page, pages) - 1) * PAGE
    cards = [
        card(hub, row, live=lives(row.id), found=found.get(row.id, ""))
        for row in chosen[start : start + PAGE]
    ]
    return Roster(cards, ask, agents, counts, len(rows), len(chosen), pages)


def card(hub: Hub, row: SessionRow, *, live: bool, found: str = "") -> Card:
    made = Card(
        id=row.id,
        name=row.name,
        agent=row.agent,
        status=row.status,
        created=row.created,
        touched=row.created,
        goal="",
        spent={},
        head="",
        message="",
        live=live,
        parent=row.parent,
        events=0,
        found=found,
    )
    try:
        view = hub.get(row.id)
        head, tip = view.head, view.line.tip().seq
        return msgspec.structs.replace(
            made,
            touched=_last(view, tip) or row.created,
            goal=view.goal,
            spent=_spent(view),
            head=head.oid if head else "",
            message=render.title(head.message) if head else "",
            events=tip,
        )
    except OrtetError as error:  # one that cannot be read is no reason to show none
        return msgspec.structs.replace(made, fault=error.message)


def _spent(view: View) -> dict[str, float]:
    """Of a family by its first session, of a fork its own."""
    if view.id == view.row.family:
        return view.spent()
    return levels(view.hub.catalog, view.row)[0].purse.spent


def _last(view: View, tip: int) -> int:
    """When it last changed."""
    return next((event.time for event in view.events(max(0, tip - 1), tip)), 0)


def _matching(
    hub: Hub, caller: Caller, rows: Sequence[SessionRow], words: str
) -> Iterator[tuple[str, str]]:
    """Sessions that have the words, each with where; the best reason last."""
    small, known = words.lower(), {row.id for row in rows}
    for id_, text in _said(hub, caller, words):
        if id_ in known:
            yield id_, text
    for row in rows[:_GOALS]:
        try:
            goal = hub.get(row.id).goal
        except OrtetError:
            continue
        if small in goal.lower():
            yield row.id, ""  # the goal is shown in any case
    for row in rows:
        if small in row.name.lower() or small in row.id:
            yield row.id, ""


def _said(hub: Hub, caller: Caller, words: str) -> Iterator[tuple[str, str]]:
    """Sessions in which something like it was said or learned."""
    for agent in caller.agents or (None,):
        for hit in reversed(hub.recall(words, _SAID, agent=agent, explain=True)):
            exact = hit.scores is not None and hit.scores.terms
            if hit.source.session and exact:
                yield hit.source.session, render.line(hit.text)[:200]


def sessions(visit: Visit) -> Response:
    """The first page."""
    ask = asked(visit, AskRoster)
    with visit.hub() as hub:
        found = roster(hub, visit.caller, ask, visit.rooms.lives)
    return visit.show("sessions.html", roster=found, statuses=STATUSES)
