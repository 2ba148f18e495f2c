"""The journal of a session as the page shows it: each event in a line, with why, and what is under
it; a page at a time from the newest back, or what came behind a number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from ortet.cli import output
from ortet.hub.governance.audit import told
from ortet.journal.events import Event
from ortet.server.schemas import Number
from ortet.sessions.reader import View
from ortet.web.asking import about, asked
from ortet.web.request import Visit
from ortet.web.templates import amount

PAGE = 60
_STEP = 256
_SEARCHED = 20_000
"""Events that one request looks through for words."""
_DATA = 20_000
"""Characters of an event's data that are shown; the API has all of it."""

GROUPS: dict[str, tuple[str, ...]] = {
    "said": ("message", "comment"),
    "reasoning": ("thought", "decision", "plan", "step", "goal", "question", "answer"),
    "done": ("begun", "ended", "run", "asked", "given", "model", "artifact"),
    "known": ("fact", "lesson", "note", "episode"),
    "money": ("spend", "budget"),
}
"""Kinds that people look at together; all others are OTHER."""
OTHER = "other"


class AskJournal(msgspec.Struct, frozen=True):
    """What the address says. `before`: events older than that one; `behind`: newer ones."""

    kind: list[str] = []
    q: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    before: Number = 0
    behind: Number | None = None


class Line(msgspec.Struct, frozen=True):
    """One event. `text` is what was said, thought or done; `why` the reason that was given; `more`
    are short words beside it, `data` everything as JSON."""

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


class Chronicle(msgspec.Struct, frozen=True):
    """The newest line last. `older`: number to go on before, 0 when there is no more; `tip` is the
    number of the newest event; `stopped`: words were looked for in part of the journal only."""

    lines: list[Line]
    ask: AskJournal
    older: int
    tip: int
    stopped: bool = False


def chronicle(view: View, ask: AskJournal) -> Chronicle:
    """What the page shows."""
    tip = view.line.tip().seq
    if ask.behind is not None:
        found = [line_of(one) for one in view.events(ask.behind) if _wanted(one, ask)]
        return Chronicle(found, ask, 0, tip)
    lines: list[Line] = []
    seen = 0
    for event in _backwards(view, ask.before, tip):
        if not event.waiting:
            seen += 1
        if _wanted(event, ask):
            if len(lines) >= PAGE:
                return Chronicle(lines[::-1], ask, event.seq + 1, tip)
            lines.append(line_of(event))
        if seen >= _SEARCHED:
            return Chronicle(lines[::-1], ask, event.seq, tip, stopped=True)
    return Chronicle(lines[::-1], ask, 0, tip)


def _backwards(view: View, before: int, tip: int) -> Iterator[Event]:
    """A stretch at a time; what waits for the writer is the newest."""
    if not before:
        yield from reversed([event for event in view.events(tip) if event.waiting])
    upto = min(tip, before - 1) if before else tip
    while upto > 0:
        start = max(0, upto - _STEP)
        yield from reversed(list(view.events(start, upto)))
        upto = start


def _wanted(event: Event, ask: AskJournal) -> bool:
    if ask.kind and group_of(event.kind) not in ask.kind and event.kind not in ask.kind:
        return False
    words = ask.q.strip().lower()
    return not words or words in _searched(event)


def _searched(event: Event) -> str:
    return f"{event.kind} {event.actor} {_json(event.data)}".lower()


def group_of(kind: str) -> str:
    return next((name for name, kinds in GROUPS.items() if kind in kinds), OTHER)


def line_of(event: Event) -> Line:
    data = event.data
    shown = _json(data, indent=2) if data else ""
    cut = f"\n… {len(shown) - _DATA:,} characters more" if len(shown) > _DATA else ""
    why = data.get("why", "")
    return Line(
        seq=event.seq,
        kind=event.kind,
        group=group_of(event.kind),
        time=event.time,
        actor=event.actor,
        role=_word(data.get("role")) if event.kind == "message" else "",
        text="(erased)" if event.erased else wording(event),
        why=why if isinstance(why, str) else _json(why),
        more=_more(event.kind, data),
        data=shown[:_DATA] + cut,
        hash=event.hash.hex(),
        timeline=event.timeline,
        refs=[bytes(oid).hex() for oid, _ in event.refs],
        erased=event.erased,
        waiting=event.waiting,
    )


def wording(event: Event) -> str:
    """In full where somebody wrote it, else as the audit tells it."""
    data = event.data
    if event.kind == "message":
        return _said(data.get("content"))
    if event.kind == "spend" and isinstance(data.get("amounts"), dict):
        return ", ".join(_spent(name, value) for name, value in data["amounts"].items())
    if event.kind == "plan" and isinstance(data.get("steps"), list):
        return "\n".join(f"{n}. {step}" for n, step in enumerate(data["steps"], 1))
    if event.kind == "lifecycle":
        return told(event).what.replace(" -> ", " → ")
    for key in ("text", "summary"):
        if isinstance(data.get(key), str) and not data.get("gone"):
            return str(data[key])
    return told(event).what


def _said(content: Any) -> str:
    """Also of a message in parts: their texts, and what the others are."""
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


def _spent(name: str, value: float) -> str:
    return amount(value, name) if name == "usd" else f"{amount(value)} {name}"


def _more(kind: str, data: dict[str, Any]) -> list[str]:
    found: list[str] = []
    if kind == "decision":
        found += [f"instead of {_word(one)}" for one in data.get("instead_of", [])]
    if kind in ("fact", "lesson"):
        found += [f"{name} {_word(data[name])}" for name in ("about", "scope") if data.get(name)]
    if kind == "spend" and data.get("model"):
        found.append(_word(data["model"]))
    if kind == "ended" and data.get("error"):
        found.append(_word(data["error"]))
    return found


def _word(value: Any) -> str:
    return output.line(value if isinstance(value, str) else _json(value))[:300]


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False, indent=indent, default=str)


def journal(visit: Visit) -> Response:
    """The page."""
    ask = asked(visit, AskJournal)
    ask = msgspec.structs.replace(ask, kind=[one for one in ask.kind if one])
    with visit.view() as view:
        found = chronicle(view, ask)
        given = about(view)
    return visit.show("journal.html", tab="journal", found=found, groups=(*GROUPS, OTHER), **given)
