"""The journal page: events with their text and reason, in pages from the newest back.

A script can also ask for the events after a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args

import msgspec
from starlette.responses import Response

from ortet.cli.terminal import output
from ortet.hub.governance.audit import audit_line
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import EventData, EventGroup
from ortet.journal.kinds.registry import kind_of
from ortet.server.schemas import Number
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest, parse_query, session_frame
from ortet.web.templates import amount

EVENTS_PER_PAGE = 60
_EVENTS_PER_READ = 256
_MAX_EVENTS_SEARCHED = 20_000
"""Maximum number of events that one request searches for words."""
_MAX_DATA_CHARACTERS = 20_000
"""Maximum length of an event's data on the page. The API returns all of it."""

GROUPS: tuple[EventGroup, ...] = get_args(EventGroup)


class JournalQuery(msgspec.Struct, frozen=True):
    """The query. `before` selects events older than a number, `behind` newer ones."""

    kind: list[str] = []
    q: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    before: Number = 0
    behind: Number | None = None


class JournalLine(msgspec.Struct, frozen=True):
    """One event.

    `text` is the content, `why` the recorded reason. `more` has short details, `data` everything as
    JSON.
    """

    seq: int
    kind: str
    group: str
    time: int
    actor: str
    role: str
    text: str
    why: str
    more: list[str]
    data: str
    hash: str
    timeline: str
    refs: list[str]
    erased: bool
    waiting: bool


class JournalPage(msgspec.Struct, frozen=True):
    """One page, with the newest line last.

    `older` is the number to continue before, or 0 if there are no older events. `tip` is the number
    of the newest event. `stopped`: only a part of the journal was searched.
    """

    lines: list[JournalLine]
    ask: JournalQuery
    older: int
    tip: int
    stopped: bool = False


def build_journal_page(view: SessionReader, ask: JournalQuery) -> JournalPage:
    """Return the data of the page."""
    tip = view.internals.event_log.tip().seq
    if ask.behind is not None:
        matching = [journal_line(one) for one in view.events(ask.behind) if _matches(one, ask)]
        return JournalPage(matching, ask, 0, tip)
    lines: list[JournalLine] = []
    seen = 0
    for event in _backwards(view, ask.before, tip):
        if not event.waiting:
            seen += 1
        if _matches(event, ask):
            if len(lines) >= EVENTS_PER_PAGE:
                return JournalPage(lines[::-1], ask, event.seq + 1, tip)
            lines.append(journal_line(event))
        if seen >= _MAX_EVENTS_SEARCHED:
            return JournalPage(lines[::-1], ask, event.seq, tip, stopped=True)
    return JournalPage(lines[::-1], ask, 0, tip)


def _backwards(view: SessionReader, before: int, tip: int) -> Iterator[Event]:
    """Yield events from the newest back, read in batches. Waiting messages come first."""
    if not before:
        yield from reversed([event for event in view.events(tip) if event.waiting])
    upto = min(tip, before - 1) if before else tip
    while upto > 0:
        start = max(0, upto - _EVENTS_PER_READ)
        yield from reversed(list(view.events(start, upto)))
        upto = start


def _matches(event: Event, ask: JournalQuery) -> bool:
    if ask.kind and kind_of(event.kind).group not in ask.kind and event.kind not in ask.kind:
        return False
    words = ask.q.strip().lower()
    return not words or words in _searchable_text(event)


def _searchable_text(event: Event) -> str:
    return f"{event.kind} {event.actor} {_json(event.data)}".lower()


def journal_line(event: Event) -> JournalLine:
    """Return an event as a line of the page."""
    data = event.data
    shown = _json(data, indent=2) if data else ""
    cut = (
        f"\n… {len(shown) - _MAX_DATA_CHARACTERS:,} characters more"
        if len(shown) > _MAX_DATA_CHARACTERS
        else ""
    )
    why = data.get("why", "")
    return JournalLine(
        seq=event.seq,
        kind=event.kind,
        group=kind_of(event.kind).group,
        time=event.time,
        actor=event.actor,
        role=_short_text(data.get("role")) if event.kind == "message" else "",
        text="(erased)" if event.erased else event_wording(event),
        why=why if isinstance(why, str) else _json(why),
        more=EVENT_DETAILS[event.kind](data) if event.kind in EVENT_DETAILS else [],
        data=shown[:_MAX_DATA_CHARACTERS] + cut,
        hash=event.hash.hex(),
        timeline=event.timeline,
        refs=[bytes(oid).hex() for oid, _ in event.refs],
        erased=event.erased,
        waiting=event.waiting,
    )


def event_wording(event: Event) -> str:
    """Return the text of an event: as written by its author, else as in the audit log."""
    data, render = event.data, EVENT_TEXTS.get(event.kind)
    if render is not None and (text := render(data)) is not None:
        return text
    for key in ("text", "summary"):
        if isinstance(data.get(key), str) and not data.get("gone"):
            return str(data[key])
    return audit_line(event).what


def _message_text(data: EventData) -> str:
    """Return the text of a message. Parts that are not text are shown as JSON."""
    content = data.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return _json(content)
    texts = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else None
            texts.append(f"[{kind or 'part'}] {_json(part)[:500]}")
    return "\n".join(texts)


def _spend_text(data: EventData) -> str | None:
    amounts = data.get("amounts")
    if not isinstance(amounts, dict):
        return None
    return ", ".join(_amount_text(name, value) for name, value in amounts.items())


def _amount_text(name: str, value: float) -> str:
    return amount(value, name) if name == "usd" else f"{amount(value)} {name}"


def _plan_text(data: EventData) -> str | None:
    steps = data.get("steps")
    if not isinstance(steps, list):
        return None
    return "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))


def _lifecycle_text(data: EventData) -> str:
    return kind_of("lifecycle").line(data).replace(" -> ", " → ")


EVENT_TEXTS: dict[str, Callable[[EventData], str | None]] = {
    "message": _message_text,
    "spend": _spend_text,
    "plan": _plan_text,
    "lifecycle": _lifecycle_text,
}
"""Text of kinds that need more than the line of their record. None: the line is used."""


def _decision_details(data: EventData) -> list[str]:
    return [f"instead of {_short_text(text)}" for text in data.get("instead_of", [])]


def _fact_details(data: EventData) -> list[str]:
    return [f"{name} {_short_text(data[name])}" for name in ("about", "scope") if data.get(name)]


def _spend_details(data: EventData) -> list[str]:
    return [_short_text(data["model"])] if data.get("model") else []


def _ended_details(data: EventData) -> list[str]:
    return [_short_text(data["error"])] if data.get("error") else []


EVENT_DETAILS: dict[str, Callable[[EventData], list[str]]] = {
    "decision": _decision_details,
    "fact": _fact_details,
    "lesson": _fact_details,
    "spend": _spend_details,
    "ended": _ended_details,
}
"""Short details beside the text. Other kinds have none."""


def _short_text(value: Any) -> str:
    return output.single_line(value if isinstance(value, str) else _json(value))[:300]


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False, indent=indent, default=str)


def journal(page_request: PageRequest) -> Response:
    """Render the journal page."""
    ask = parse_query(page_request, JournalQuery)
    ask = msgspec.structs.replace(ask, kind=[one for one in ask.kind if one])
    with page_request.view() as view:
        page = build_journal_page(view, ask)
        frame = session_frame(view)
    return page_request.render("journal.html", tab="journal", page=page, groups=GROUPS, **frame)
