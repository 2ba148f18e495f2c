"""Which session a verb of the command line means, and how sessions look."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ortet.errors import Conflict, NotFound
from ortet.surface import render

if TYPE_CHECKING:
    from ortet.journal.events import Event
    from ortet.session.lifecycle import SessionRow
    from ortet.session.session import Session
    from ortet.session.view import View
    from ortet.surface.call import Call

_SHORTEST = 4

session_argument = click.argument("session", metavar="[SESSION]", required=False)
session_option = click.option(
    "-s", "--session", "session", metavar="SESSION", help="Its name or id; else that of this place."
)


def find(call: Call, word: str | None) -> SessionRow:
    """By name, agent/name, id or the first digits of one; without a word, the one that works in
    this directory."""
    rows = call.hub.sessions()
    if word is None:
        return _here(call, rows)
    agent, _, rest = word.partition("/")
    ways = (
        [row for row in rows if row.id == word],
        [row for row in rows if row.name == word],
        [row for row in rows if row.agent == agent and row.name == rest],
        [row for row in rows if len(word) >= _SHORTEST and row.id.startswith(word)],
    )
    for found in ways:
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(f"{row.agent}/{row.name}" for row in found[:5])
            raise Conflict("ambiguous", f"{word!r} may be {names}: say which of them")
    raise NotFound("no_session", f"there is no session {word!r}: `ortet session ls` lists them")


def _here(call: Call, rows: list[SessionRow]) -> SessionRow:
    branch = call.branch()
    for row in rows:
        if branch is not None and row.branch == branch:
            return row
    raise NotFound(
        "no_session", "no session works in this directory: name one (`ortet session ls` lists them)"
    )


def read(call: Call, word: str | None) -> View:
    return call.hub.get(find(call, word).id)


def write(call: Call, word: str | None) -> Session:
    """Opened; it is let go when the command ends."""
    row = find(call, word)
    return call.hub.session(row.name, agent=row.agent)


def row_data(row: SessionRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "agent": row.agent,
        "status": row.status,
        "created": row.created,
        "branch": row.branch,
        "path": row.path or None,
        "parent": row.parent or None,
    }


def event_data(event: Event) -> dict[str, Any]:
    return {**render.fields(event), "hash": event.hash.hex(), "refs": _refs(event)}


def _refs(event: Event) -> list[str]:
    return [bytes(oid).hex() for oid, _ in event.refs]


def event_line(event: Event) -> str:
    from ortet.session.audit import told

    line = told(event)
    why = f"  ({render.title(line.why)})" if line.why else ""
    actor = render.safe(line.actor)
    head = f"{line.seq:>5}  {render.when(line.time)}  {actor}  {line.kind}"
    return f"{head}  {render.title(line.what)}{why}".rstrip()


def value_of(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    import json

    with suppress(ValueError):
        return json.loads(text)
    return text
