"""What adapters of conversations share: messages of any size said at once, had back whole, taken
back, or left out of context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from ortet.errors import Invalid, OrtetError
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import Lent
from ortet.journal.conversation.compaction import Compaction, data_of, digest_of, said
from ortet.journal.events import Draft, Event, is_plain
from ortet.journal.state.records import Message
from ortet.sessions.conversation import message_data
from ortet.sessions.history.rewinding import go_before
from ortet.sessions.reader import View
from ortet.sessions.recollect import last_compaction
from ortet.sessions.session import Session
from ortet.sessions.writing import telling
from ortet.sessions.writing.telling import Telling, had_apart, is_large
from ortet.store.sweep_retry import repeated

_OFTEN = 256
"""Events after which a conversation is committed."""
_NAMED = 20
"""Levels of data that the place of a bad value in it is told by."""

_PATIENCE = 30.0
"""Seconds that a framework waits for another process: it was told that what it says is stored."""

_SAID = ("role", "content")

_OPENED: WeakKeyDictionary[Hub, dict[str, Lent]] = WeakKeyDictionary()


def lent_of(hub: Hub, agent: str) -> Lent:
    """One for all adapters that were made with a hub: two of them must not keep a session from
    each other."""
    if not isinstance(hub, Hub):
        raise Invalid(
            "bad_hub", f"{type(hub).__name__} is no opened store: give what ortet.open() returned"
        )
    known = _OPENED.setdefault(hub, {})
    if agent not in known:
        known[agent] = Lent(hub, agent=agent, patience=_PATIENCE)
    return known[agent]


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """Those of hub.session, that a conversation is begun with; told when it is made, not with the
    first that is said."""
    known = signature(Hub.session).parameters.keys() - {"self", "name", "agent", "replay"}
    for name in options:
        if name not in known:
            words = ", ".join(sorted(known))
            raise Invalid("bad_option", f"{name!r} is no option of a session: give one of {words}")
    return options


# plain data


@contextmanager
def naming(what: str, values: Sequence[Any]) -> Iterator[None]:
    """Around what records these values: one that cannot be is told with its place."""
    try:
        yield
    except Invalid as error:
        if error.kind == "not_json":
            for number, value in enumerate(values):
                if not is_plain(value):
                    place = _place_of(value)
                    at = f"{what} {number}" + (f", at {place}" if place else "")
                    raise Invalid(error.kind, f"{at}: {error.message}", key=place) from error
        raise


def _place_of(value: Any) -> str:
    """Where it is no plain data, as `output[0].text`; of what is nested deeper, how that begins."""
    found = ""
    for _ in range(_NAMED):
        pairs: Iterator[tuple[str, Any]] = iter(())
        if isinstance(value, Mapping):
            odd = next((key for key in value if not isinstance(key, str)), None)
            if odd is not None or None in value:
                return f"{found}[{odd!r}]".removeprefix(".")
            pairs = ((f".{key}", value[key]) for key in value)
        elif isinstance(value, list | tuple):
            pairs = ((f"[{number}]", one) for number, one in enumerate(value))
        bad = next(((place, one) for place, one in pairs if not is_plain(one)), None)
        if bad is None:
            return found.removeprefix(".")
        found, value = found + bad[0], bad[1]
    return found.removeprefix(".") + "…"


# saying


def say(session: Session, messages: Sequence[dict[str, Any]]) -> list[Event]:
    """All of these messages or none, in order, durable when it returns, for the price of one."""
    if not messages:
        return []
    if not is_large(messages):
        author = session.hub.author
        events = add(session, [Draft("message", _data(one), author) for one in messages])
    else:
        events = add_stored(session, lambda: drafts_of(session, messages))
    _mark(session)
    return events


def _mark(session: Session) -> None:
    """Commit now and then: who goes back to a message reads from the last commit before it on.
    Not where that would look at files, which nobody asked for."""
    if session.mind.core.events - session.line.base.seq >= _OFTEN and not session.row.has_files:
        with suppress(OrtetError):  # it is tried again with the next message
            session.commit("of a conversation")


def drafts_of(session: Session, messages: Sequence[dict[str, Any]]) -> list[Draft]:
    """The events of messages, within hub.writing(): the contents of large ones are stored."""
    return telling.drafts_of(session.hub, [Telling("message", _data(one)) for one in messages])


def _data(message: dict[str, Any]) -> dict[str, Any]:
    extra = {key: message[key] for key in message if key not in _SAID} if len(message) > 2 else {}
    return message_data(message.get("role"), message["content"], extra)


def add(session: Session, drafts: Sequence[Draft]) -> list[Event]:
    session._touch()
    events = session._ledger.add(*drafts)
    session._keep_pace(drafts[-1].kind, drafts[-1].data)
    return events


def add_stored(session: Session, make: Callable[[], Sequence[Draft]]) -> list[Event]:
    """The same of events whose contents `make` stores and flushes. It is called within
    hub.writing(), and again when a sweep by another host came in between."""
    session._touch()

    def tell() -> list[Event]:
        with session.hub.writing():  # until the events are there, a sweep must not take contents
            return session._ledger.add(*make())

    events = repeated(session.hub, tell)
    session._keep_pace(events[-1].kind, events[-1].data)
    return events


def whole_of(view: View, message: Message) -> Message:
    """A message as it was said, however large."""
    told = had_apart(view.hub, message.extra)
    return message if told is None else msgspec.structs.replace(message, **{"extra": {}, **told})


# taking back


def take_back(session: Session, seq: int, instead: Sequence[dict[str, Any]] = ()) -> None:
    """Go to before the message at an event, and say other messages `instead`; see go_before."""
    go_before(session, seq, lambda: drafts_of(session, instead))


def leave_out(session: Session, then: Sequence[dict[str, Any]] = ()) -> bool:
    """Leave all messages out of context, with no summary but what is said `then`, in one write;
    `s.dropped()` has them. False when there was nothing."""
    session.close_calls()  # or their results would come behind what is left out
    core, before = session.mind.core, last_compaction(session)
    events = said(session.events(core.since))
    stands = before is not None and bool(before.summary or before.rules)
    if not events and not stands and not then:
        return False
    last = core.events
    past = Compaction(
        first=events[0].seq if events else last,
        last=events[-1].seq if events else last,
        count=len(events),
        digest=digest_of(events, session.hub.objects.hasher),
        summary="",
        before=core.summary,
    )
    record = Draft("compaction", data_of(past), session.hub.author)
    add_stored(session, lambda: [record, *drafts_of(session, then)])
    return True
