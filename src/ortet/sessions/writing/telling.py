"""Events of several kinds in one write, for who translates what another program records; what is
too large for an event lies beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ortet._util.codec import decode, encode
from ortet.backends.base import RowChange
from ortet.journal.conversation.text import clip, text_of
from ortet.journal.events import Draft, Event, check_plain
from ortet.journal.upcast import check_kind
from ortet.sessions.actions.artifacts import Content, load, store
from ortet.store.sweep_retry import repeated

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.session import Session

_LARGE = 1 << 19
"""Bytes of an event's data from which on they are stored apart; an event takes twice as much."""

_SHOWN = 4000
"""Characters of such a message that stay in the journal, to be read and found."""

_PAIRING = ("tool_calls", "tool_call_id", "name")
"""What stays of the rest of such a message: pairs of calls and results are found by it."""

_LONG = 500

_APART = "stored"


class Telling(NamedTuple):
    """An event to be: a "message", a "fact", or of a program's own kind."""

    kind: str
    data: dict[str, Any]


def tell(
    session: Session, several: Sequence[Telling], *, rows: Sequence[RowChange] = ()
) -> list[Event]:
    """All of them, with these rows, or none; durable on return. `whole` reads them back."""
    for kind, data in several:
        check_plain(data)
        if "." in kind:
            check_kind(kind)
    session._touch()
    hub = session.hub
    if not any(is_large(one.data) for one in several):
        drafts = [Draft(kind, data, hub.author) for kind, data in several]
        events = session._ledger.add(*drafts, rows=rows, now=True)
    else:
        events = repeated(hub, lambda: _add_large(session, several, rows))
    if several:
        session._keep_pace(*several[-1])
    return events


def _add_large(
    session: Session, several: Sequence[Telling], rows: Sequence[RowChange]
) -> list[Event]:
    hub = session.hub
    with hub.writing():  # until the event is there, a sweep must not take it
        return session._ledger.add(*drafts_of(hub, several), rows=rows, now=True)


def is_large(data: Any) -> bool:
    """Whether it is stored apart from its event."""
    return len(encode(data)) > _LARGE


def drafts_of(hub: Hub, several: Sequence[Telling]) -> list[Draft]:
    """Events to be, within hub.writing(): what is large is stored."""
    drafts = [_draft(hub, one) for one in several]
    hub.objects.flush()
    return drafts


def whole(hub: Hub, event: Event) -> dict[str, Any]:
    """The data of an event as it was told."""
    at = event.data.get("extra", {}) if event.kind == "message" else event.data
    return had_apart(hub, at) or event.data


def had_apart(hub: Hub, at: Any) -> dict[str, Any] | None:
    """What is stored apart from data, or from the extra of a message; None: nothing is."""
    apart = at.get(_APART) if isinstance(at, dict) else None
    if not isinstance(apart, dict) or set(apart) != {"oid", "size"}:
        return None
    told: dict[str, Any] = decode(dict, load(hub.objects, Content(**apart)))
    return told


def _draft(hub: Hub, one: Telling) -> Draft:
    if not is_large(one.data):
        return Draft(one.kind, one.data, hub.author)
    content = store(hub.objects, encode(hub.hidden(one.data)))
    named = {_APART: {"oid": content.oid, "size": content.size}}
    return Draft(one.kind, _short(one, named), hub.author, content.refs)


def _short(one: Telling, named: Mapping[str, Any]) -> dict[str, Any]:
    if one.kind != "message":
        return dict(named)
    shown = clip(text_of(one.data.get("content")), _SHOWN)
    extra = one.data.get("extra", {})
    pairing = {key: extra[key] for key in _PAIRING if key in extra and not is_large(extra[key])}
    return {"role": one.data.get("role"), "content": shown, "extra": {**pairing, **named}}


def seal_if_long(session: Session, message: str) -> None:
    """Commit a session whose events since the last commit are many: who opens it reads them all."""
    if session._ledger.tip.seq - session.line.base.seq >= _LONG:
        session.commit(message)
