"""The journal page: events with their text and reason, in pages from the newest back.

A script can also ask for the events after a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from ortet.cli import output
from ortet.hub.governance.audit import audit_line
from ortet.journal.events import Event
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

GROUPS: dict[str, tuple[str, ...]] = {
    "said": ("message", "comment"),
    "reasoning": ("thought", "decision", "plan", "step", "goal", "question", "answer"),
    "done": ("begun", "ended", "run", "asked", "given", "model", "artifact"),
    "known": ("fact", "lesson", "note", "episode"),
    "money": ("spend", "budget"),
}
"""Event kinds by group. All others are in the group OTHER."""
OTHER = "other"


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
    tip = view.event_log.tip().seq
    if ask.behind is not None:
        found = [journal_line(one) for one in view.events(ask.behind) if _matches(one, ask)]
        return JournalPage(found, ask, 0, tip)
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
    if ask.kind and group_of(event.kind) not in ask.kind and event.kind not in ask.kind:
        return False
    words = ask.q.strip().lower()
    return not words or words in _searchable_text(event)


def _searchable_text(event: Event) -> str:
    return f"{event.kind} {event.actor} {_json(event.data)}".lower()


def group_of(kind: str) -> str:
    """Return the group of an event kind."""
    return next((name for name, kinds in GROUPS.items() if kind in kinds), OTHER)


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
        group=group_of(event.kind),
        time=event.time,
        actor=event.actor,
        role=_short_text(data.get("role")) if event.kind == "message" else "",
        text="(erased)" if event.erased else event_wording(event),
        why=why if isinstance(why, str) else _json(why),
        more=_details(event.kind, data),
        data=shown[:_MAX_DATA_CHARACTERS] + cut,
        hash=event.hash.hex(),
        timeline=event.timeline,
        refs=[bytes(oid).hex() for oid, _ in event.refs],
        erased=event.erased,
        waiting=event.waiting,
    )


def event_wording(event: Event) -> str:
    """Return the text of an event: as written by its author, else as in the audit log."""
    data = event.data
    if event.kind == "message":
        return _message_text(data.get("content"))
    if event.kind == "spend" and isinstance(data.get("amounts"), dict):
        return ", ".join(_spent_text(name, value) for name, value in data["amounts"].items())
    if event.kind == "plan" and isinstance(data.get("steps"), list):
        return "\n".join(f"{n}. {step}" for n, step in enumerate(data["steps"], 1))
    if event.kind == "lifecycle":
        return audit_line(event).what.replace(" -> ", " → ")
    for key in ("text", "summary"):
        if isinstance(data.get(key), str) and not data.get("gone"):
            return str(data[key])
    return audit_line(event).what


def _message_text(content: Any) -> str:
    """Return the text of a message. Parts that are not text are shown as JSON."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return _json(content)
    found = []
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            found.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else None
            found.append(f"[{kind or 'part'}] {_json(part)[:500]}")
    return "\n".join(found)


def _spent_text(name: str, value: float) -> str:
    return amount(value, name) if name == "usd" else f"{amount(value)} {name}"


def _details(kind: str, data: dict[str, Any]) -> list[str]:
    found: list[str] = []
    if kind == "decision":
        found += [f"instead of {_short_text(one)}" for one in data.get("instead_of", [])]
    if kind in ("fact", "lesson"):
        found += [
            f"{name} {_short_text(data[name])}" for name in ("about", "scope") if data.get(name)
        ]
    if kind == "spend" and data.get("model"):
        found.append(_short_text(data["model"]))
    if kind == "ended" and data.get("error"):
        found.append(_short_text(data["error"]))
    return found


def _short_text(value: Any) -> str:
    return output.single_line(value if isinstance(value, str) else _json(value))[:300]


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False, indent=indent, default=str)


def journal(page_request: PageRequest) -> Response:
    """Render the journal page."""
    ask = parse_query(page_request, JournalQuery)
    ask = msgspec.structs.replace(ask, kind=[one for one in ask.kind if one])
    with page_request.view() as view:
        found = build_journal_page(view, ask)
        given = session_frame(view)
    return page_request.render(
        "journal.html", tab="journal", found=found, groups=(*GROUPS, OTHER), **given
    )
