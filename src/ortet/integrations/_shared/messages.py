"""Appends, loads, replaces and clears the messages of a conversation, of any size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from ortet.errors import Invalid, OrtetError
from ortet.hub.hub import Hub, hub_of
from ortet.integrations._shared.session_pool import AdapterSessionPool
from ortet.journal.conversation.compaction import (
    Compaction,
    compaction_data,
    digest_of,
    message_events,
)
from ortet.journal.conversation.tool_calls import lost_result, results_of
from ortet.journal.events import Draft, Event, is_plain
from ortet.journal.state.records import Message
from ortet.sessions.conversation import message_data
from ortet.sessions.conversation_state import last_compaction
from ortet.sessions.history.fork_session import rewind_before_event
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.writing import large_events
from ortet.sessions.writing.large_events import EventInput, is_large, stored_data
from ortet.store.sweep_retry import run_with_sweep_retry

_COMMIT_INTERVAL_EVENTS = 256
"""Number of events after which a conversation is committed."""
_MAX_PATH_DEPTH = 20
"""Nesting depth down to which the location of an invalid value is reported."""

_LEASE_TIMEOUT_SECONDS = 30.0
"""Seconds that a framework waits for another process; its messages must not be lost."""

_MESSAGE_FIELDS = ("role", "content")

_POOLS_BY_HUB: WeakKeyDictionary[Hub, dict[str, AdapterSessionPool]] = WeakKeyDictionary()


def get_session_pool(hub: Hub, agent: str) -> AdapterSessionPool:
    """Return the session pool of this hub and agent.

    All adapters of one hub share it: two pools would block each other's sessions.
    """
    if not isinstance(hub, Hub):
        raise Invalid(
            "bad_hub", f"{type(hub).__name__} is no opened store: give what ortet.open() returned"
        )
    known = _POOLS_BY_HUB.setdefault(hub, {})
    if agent not in known:
        known[agent] = AdapterSessionPool(hub, agent=agent, lease_timeout=_LEASE_TIMEOUT_SECONDS)
    return known[agent]


def check_session_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return `options` if all of them are options of `hub.session`, else raise Invalid.

    Adapters call this when they are constructed, so that a wrong option fails before the first
    message.
    """
    known = signature(Hub.session).parameters.keys() - {"self", "name", "agent", "replay"}
    for name in options:
        if name not in known:
            words = ", ".join(sorted(known))
            raise Invalid("bad_option", f"{name!r} is no option of a session: give one of {words}")
    return options


# Checks of plain data.


@contextmanager
def report_invalid_value(label: str, values: Sequence[Any]) -> Iterator[None]:
    """Add the location of the first invalid value to a "not_json" error of this block."""
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
    """Return the path of the value that is not plain data, such as `output[0].text`.

    A path that is too deep is cut and ends in an ellipsis.
    """
    path = ""
    for _ in range(_MAX_PATH_DEPTH):
        pairs: Iterator[tuple[str, Any]] = iter(())
        if isinstance(value, Mapping):
            odd = next((key for key in value if not isinstance(key, str)), None)
            if odd is not None or None in value:
                return f"{path}[{odd!r}]".removeprefix(".")
            pairs = ((f".{key}", value[key]) for key in value)
        elif isinstance(value, list | tuple):
            pairs = ((f"[{number}]", one) for number, one in enumerate(value))
        bad = next(((place, one) for place, one in pairs if not is_plain(one)), None)
        if bad is None:
            return path.removeprefix(".")
        path, value = path + bad[0], bad[1]
    return path.removeprefix(".") + "…"


# Appending messages.


def append_messages(session: Session, messages: Sequence[dict[str, Any]]) -> list[Event]:
    """Append all messages or none, in order and in one write; durable when this returns."""
    if not messages:
        return []
    if not is_large(messages):
        author = session.internals.store.author
        events = append_events(session, [Draft("message", _data(one), author) for one in messages])
    else:
        events = append_stored_events(session, lambda: drafts_of(session, messages))
    _commit_periodically(session)
    return events


def _commit_periodically(session: Session) -> None:
    """Commit from time to time, because going back to a message reads from the commit before it.

    Sessions with files are skipped, because such a commit would scan the files.
    """
    if (
        session.internals.state.core.events - session.internals.event_log.base.seq
        >= _COMMIT_INTERVAL_EVENTS
        and not session.internals.row.has_files
    ):
        with suppress(OrtetError):  # The next message tries again.
            session.commit("of a conversation")


def drafts_of(session: Session, messages: Sequence[dict[str, Any]]) -> list[Draft]:
    """Return the events of messages and store large contents.

    Call it inside `hub.store.writing()`.
    """
    return large_events.drafts_of(
        hub_of(session).store, [EventInput("message", _data(one)) for one in messages]
    )


def _data(message: dict[str, Any]) -> dict[str, Any]:
    extra = (
        {key: message[key] for key in message if key not in _MESSAGE_FIELDS}
        if len(message) > 2
        else {}
    )
    return message_data(message.get("role"), message["content"], extra)


def append_events(session: Session, drafts: Sequence[Draft]) -> list[Event]:
    session.internals.pipeline.begin_change()
    events = session.internals.pipeline.writer.add(*drafts)
    session.internals.pipeline.auto_commit_if_due(drafts[-1].kind, drafts[-1].data)
    return events


def append_stored_events(
    session: Session, make_drafts: Callable[[], Sequence[Draft]]
) -> list[Event]:
    """Append events whose contents `make_drafts` stores and flushes.

    `make_drafts` is called inside `hub.store.writing()`. It is called again if another host swept
    the store concurrently.
    """
    session.internals.pipeline.begin_change()

    def tell() -> list[Event]:
        with session.internals.store.writing():
            # A sweep must not delete the contents before the events refer to them.
            return session.internals.pipeline.writer.add(*make_drafts())

    events = run_with_sweep_retry(hub_of(session).store, tell)
    session.internals.pipeline.auto_commit_if_due(events[-1].kind, events[-1].data)
    return events


def load_full_message(view: SessionReader, message: Message) -> Message:
    """Return a message with its full content, however large."""
    fields = stored_data(hub_of(view).store, message.extra)
    return (
        message if fields is None else msgspec.structs.replace(message, **{"extra": {}, **fields})
    )


# Tool calls that wait for a person or another program.

UNANSWERED_TEXT = "No result: the conversation went on before this call was approved or answered."


def is_substitute_for(message: Message, calls: Collection[str]) -> bool:
    """Return True if the message only stands in for the results of these calls.

    A program that opens the session itself writes such messages, because APIs refuse a call without
    a result. For a framework the calls may still be open.
    """
    ids = results_of(message) if message.extra.get("synthetic") else []
    return bool(ids) and all(id_ in calls for id_ in ids)


def close_open_calls(session: Session, texts: Mapping[str, str]) -> None:
    """Add a substitute result for each open call, with the text for its id if there is one."""
    author = session.internals.store.author
    calling = session.internals.state.core.calling
    drafts = [lost_result(call, author) for call in calling]
    for call, draft in zip(calling, drafts, strict=True):
        if call.id in texts and not call.part:
            draft.data["content"] = texts[call.id]
    if drafts:
        append_events(session, drafts)


# Removing messages.


def replace_messages_from(
    session: Session, seq: int, replacement: Sequence[dict[str, Any]] = ()
) -> None:
    """Rewind to before the message at event `seq` and append `replacement`.

    See `rewind_before_event`.
    """
    rewind_before_event(session, seq, lambda: drafts_of(session, replacement))


def clear_context(session: Session, replacement: Sequence[dict[str, Any]] = ()) -> bool:
    """Drop all messages from the context and append `replacement`, in one write.

    No summary is written. `s.conversation.dropped()` returns the dropped messages.

    Returns:
        False if there was nothing to drop.
    """
    # Close them first, or their results would follow the compaction.
    session.internals.navigation.close_tool_calls()
    core, before = session.internals.state.core, last_compaction(session.internals.context)
    events = message_events(session.events(core.since))
    stands = before is not None and bool(before.summary or before.rules)
    if not events and not stands and not replacement:
        return False
    last = core.events
    past = Compaction(
        first=events[0].seq if events else last,
        last=events[-1].seq if events else last,
        count=len(events),
        digest=digest_of(events, session.internals.store.objects.hasher),
        summary="",
        before=core.summary,
    )
    record = Draft("compaction", compaction_data(past), session.internals.store.author)
    append_stored_events(session, lambda: [record, *drafts_of(session, replacement)])
    return True
