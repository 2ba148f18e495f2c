"""A session event by event: what was said, planned, noted, known and spent at each of them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from starlette.responses import Response

from ortet.errors import Invalid
from ortet.history.records import Journal
from ortet.journal.conversation.superseded import is_aside
from ortet.journal.conversation.text import clip, spoken, text_of
from ortet.journal.event_log import NOTHING
from ortet.journal.events import Event
from ortet.journal.state.records import Core, Fact, Message, Note
from ortet.journal.state.reducers import fold, message_of
from ortet.journal.state.state import Mind
from ortet.sessions.reader import View
from ortet.web.request import Visit
from ortet.web.views.journal import wording
from ortet.web.views.seals import Seals

_MESSAGES = 20
_FACTS = 60
_STEP = 256
_LONGEST = 20_000
"""Characters of one event's data."""


class Moment(msgspec.Struct, frozen=True):
    """The mind right behind an event. `fresh` are facts that this one taught."""

    event: Event | None
    text: str
    data: str
    messages: list[Message]
    earlier: int  # messages before those
    goal: str
    plan: list[str]
    step: int
    notes: list[Note]
    facts: list[Fact]
    hidden: int  # facts that are not shown
    spent: list[tuple[str, float]]


def show(seals: Seals, visit: Visit) -> Response:
    """`?at=N`: behind which event, the last without; with `part`, only what changes with it."""
    with visit.view() as view:
        tip = view.line.tip().seq
        at = _at(visit, tip)
        found = next(seals.before(view, visit.caller.tenant, at), None)
        oid, base = found if found is not None else (None, NOTHING)
        return visit.show(
            "moment.html" if "part" in visit.query else "replay.html",
            tab="replay",
            row=view.row,
            at=at,
            tip=tip,
            moment=moment_of(view, at, base),
            commit=view.hub.history.info(oid) if oid is not None else None,
            behind=at - base.seq,
            said=text_of,
        )


def moment_of(view: View, at: int, base: Journal) -> Moment:
    """`base`: what a commit holds that is not behind it, the newer the better."""
    event = next(iter(view.line.events(at - 1, at)), None) if at else None
    mind = mind_at(view, at, base)
    messages = _messages(view, at, mind.core)
    facts = sorted(mind.facts, key=lambda one: -one.seq)
    return Moment(
        event=event,
        text=clip(_text(event), _LONGEST) if event is not None else "",
        data=_data(event) if event is not None else "",
        messages=messages[-_MESSAGES:],
        earlier=max(0, len(messages) - _MESSAGES),
        goal=mind.core.goal,
        plan=list(mind.core.plan),
        step=mind.core.step,
        notes=list(mind.notes),
        facts=facts[:_FACTS],
        hidden=max(0, len(facts) - _FACTS),
        spent=sorted(mind.core.spent.items()),
    )


def mind_at(view: View, seq: int, base: Journal) -> Mind:
    """What the events up to one add up to."""
    sessions = view.hub._minds()
    mind = Mind.load(sessions.maps, view.hub.objects, base.fold)
    for event in view.line.events(base.seq, seq):
        fold(mind, [event])
    return mind


def _messages(view: View, at: int, core: Core) -> list[Message]:
    """The newest of those in context, in order, and one more where there are others."""
    found: list[Message] = []
    upto = at
    while upto > core.since and len(found) <= _MESSAGES:
        start = max(upto - _STEP, core.since)
        events = [one for one in view.line.events(start, upto) if _is_said(one)]
        found[:0] = [message_of(one) for one in events if not is_aside(core.aside, one.seq)]
        upto = start
    return found


def _is_said(event: Event) -> bool:
    return event.kind == "message" and not event.erased


def _text(event: Event) -> str:
    if event.erased:
        return "erased"
    if event.kind != "message":
        return wording(event)
    return spoken(event.data.get("content"), event.data.get("extra"))


def _data(event: Event) -> str:
    plain: Any = msgspec.to_builtins(event.data, enc_hook=str)
    return clip(json.dumps(plain, indent=2, ensure_ascii=False), _LONGEST)


def _at(visit: Visit, tip: int) -> int:
    text = visit.query.get("at", str(tip))
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise Invalid("bad_request", "at is the number of an event: correct the address")
    return min(int(text), tip)
