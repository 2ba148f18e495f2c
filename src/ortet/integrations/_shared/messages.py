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
from ortet.integrations._shared.session_pool import AdapterSessionPool
from ortet.journal.conversation.compaction import (
    Compaction,
    compaction_data,
    digest_of,
    message_events,
)
from ortet.journal.events import Draft, Event, is_plain
from ortet.journal.state.records import Message
from ortet.sessions.conversation import message_data
from ortet.sessions.history.rewinding import rewind_before_event
from ortet.sessions.reader import SessionReader
from ortet.sessions.recollect import last_compaction
from ortet.sessions.session import Session
from ortet.sessions.writing import telling
from ortet.sessions.writing.telling import EventInput, is_large, stored_data
from ortet.store.sweep_retry import run_with_sweep_retry

_COMMIT_INTERVAL_EVENTS = 256
"""Events after which a conversation is committed."""
_MAX_PATH_DEPTH = 20
"""Levels of data that the place of a bad value in it is told by."""

_LEASE_TIMEOUT_SECONDS = 30.0
"""Seconds that a framework waits for another process: it was told that what it says is stored."""

_MESSAGE_FIELDS = ("role", "content")

_POOLS_BY_HUB: WeakKeyDictionary[Hub, dict[str, AdapterSessionPool]] = WeakKeyDictionary()


def get_session_pool(hub: Hub, agent: str) -> AdapterSessionPool:
    """One for all adapters that were made with a hub: two of them must not keep a session from
    each other."""
    if not isinstance(hub, Hub):
        raise Invalid(
            "bad_hub", f"{type(hub).__name__} is no opened store: give what ortet.open() returned"
        )
    known = _POOLS_BY_HUB.setdefault(hub, {})
    if agent not in known:
        known[agent] = AdapterSessionPool(hub, agent=agent, lease_timeout=_LEASE_TIMEOUT_SECONDS)
    return known[agent]


def check_session_options(options: dict[str, Any]) -> dict[str, Any]:
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
def report_invalid_value(label: str, values: Sequence[Any]) -> Iterator[None]:
    """Around what records these values: one that cannot be is told with its place."""
    try:
        yield
    except Invalid as error:
        if error.kind == "not_json":
            for number, value in enumerate(values):
                if not is_plain(value):
                    place = _invalid_value_path(value)
                    at = f"{label} {number}" + (f", at {place}" if place else "")
                    raise Invalid(error.kind, f"{at}: {error.message}", key=place) from error
        raise


def _invalid_value_path(value: Any) -> str:
    """Where it is no plain data, as `output[0].text`; of what is nested deeper, how that begins."""
    found = ""
    for _ in range(_MAX_PATH_DEPTH):
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


def append_messages(session: Session, messages: Sequence[dict[str, Any]]) -> list[Event]:
    """All of these messages or none, in order, durable when it returns, for the price of one."""
    if not messages:
        return []
    if not is_large(messages):
        author = session.hub.author
        events = append_events(session, [Draft("message", _data(one), author) for one in messages])
    else:
        events = append_stored_events(session, lambda: drafts_of(session, messages))
    _commit_periodically(session)
    return events


def _commit_periodically(session: Session) -> None:
    """Commit now and then: who goes back to a message reads from the last commit before it on.
    Not where that would look at files, which nobody asked for."""
    if (
        session.state.core.events - session.event_log.base.seq >= _COMMIT_INTERVAL_EVENTS
        and not session.row.has_files
    ):
        with suppress(OrtetError):  # it is tried again with the next message
            session.commit("of a conversation")


def drafts_of(session: Session, messages: Sequence[dict[str, Any]]) -> list[Draft]:
    """The events of messages, within hub.writing(): the contents of large ones are stored."""
    return telling.drafts_of(session.hub, [EventInput("message", _data(one)) for one in messages])


def _data(message: dict[str, Any]) -> dict[str, Any]:
    extra = (
        {key: message[key] for key in message if key not in _MESSAGE_FIELDS}
        if len(message) > 2
        else {}
    )
    return message_data(message.get("role"), message["content"], extra)


def append_events(session: Session, drafts: Sequence[Draft]) -> list[Event]:
    session._begin_change()
    events = session._writer.add(*drafts)
    session._auto_commit_if_due(drafts[-1].kind, drafts[-1].data)
    return events


def append_stored_events(
    session: Session, make_drafts: Callable[[], Sequence[Draft]]
) -> list[Event]:
    """The same of events whose contents `make` stores and flushes. It is called within
    hub.writing(), and again when a sweep by another host came in between."""
    session._begin_change()

    def tell() -> list[Event]:
        with session.hub.writing():  # until the events are there, a sweep must not take contents
            return session._writer.add(*make_drafts())

    events = run_with_sweep_retry(session.hub, tell)
    session._auto_commit_if_due(events[-1].kind, events[-1].data)
    return events


def load_full_message(view: SessionReader, message: Message) -> Message:
    """A message as it was said, however large."""
    told = stored_data(view.hub, message.extra)
    return message if told is None else msgspec.structs.replace(message, **{"extra": {}, **told})


# taking back


def replace_messages_from(
    session: Session, seq: int, replacement: Sequence[dict[str, Any]] = ()
) -> None:
    """Go to before the message at an event, and say other messages `instead`; see go_before."""
    rewind_before_event(session, seq, lambda: drafts_of(session, replacement))


def clear_context(session: Session, replacement: Sequence[dict[str, Any]] = ()) -> bool:
    """Leave all messages out of context, with no summary but what is said `then`, in one write;
    `s.dropped()` has them. False when there was nothing."""
    session.close_tool_calls()  # or their results would come behind what is left out
    core, before = session.state.core, last_compaction(session)
    events = message_events(session.events(core.since))
    stands = before is not None and bool(before.summary or before.rules)
    if not events and not stands and not replacement:
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
    record = Draft("compaction", compaction_data(past), session.hub.author)
    append_stored_events(session, lambda: [record, *drafts_of(session, replacement)])
    return True
