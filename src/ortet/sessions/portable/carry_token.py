"""Sessions without a process: single turns, and signed text that a client keeps."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import Compressor, decode, decompress, encode
from ortet._util.validation import check_text
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unsupported
from ortet.journal.events import check_plain
from ortet.journal.kinds.registry import kind_of
from ortet.journal.state.records import Message
from ortet.sessions.history.load import is_bookkeeping_event
from ortet.store.signing import store_signer

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session

VERSION = 1
_MARK_BYTES = 32
_SIZE_BYTES = 4
_MAX_RECORD_BYTES = 64 << 20
"""Kinds of events that do not make a carry token stale: they do not change what it holds."""


class CarryRecord(msgspec.Struct, frozen=True):
    """The session state that a client keeps.

    Stored as a map, so that later releases may add keys.
    """

    version: int
    session: str
    name: str
    agent: str
    seq: int
    hash: bytes  # hash of the last event; later events make the record stale
    goal: str
    plan: list[str]
    step: int
    messages: list[Message]
    facts: list[str]
    notes: dict[str, Any]


class _CarryVersion(msgspec.Struct, frozen=True):
    version: int


def turn(
    sessions: SessionManager,
    name: str,
    message: Any,
    *,
    role: str,
    agent: str,
    reply: Callable[[Session], Any] | None,
) -> list[Message]:
    """Run one turn; see `Hub.turn`."""
    check_text(role=role)
    check_plain(message)
    with sessions.open(name, agent=agent) as session:
        said = [session.say(role, message)]
        if reply is not None:
            answer = reply(session)
            if answer is None:
                raise Invalid("no_reply", "reply gave None: return what the assistant says")
            said.append(session.say("assistant", answer))
        session.commit("turn")
        return [Message(e.seq, e.data["role"], e.data["content"], e.time) for e in said]


def carry(view: SessionReader, sessions: SessionManager) -> str:
    """Return the carry token; see `SessionReader.carry`."""
    messages = view.messages()  # flushes buffered events
    tip = view.event_log.tip()
    record = CarryRecord(
        version=VERSION,
        session=view.id,
        name=view.name,
        agent=view.agent,
        seq=tip.seq,
        hash=tip.hash,
        goal=view.goal,
        plan=view.steps,
        step=view.step,
        messages=messages,
        facts=[fact.text for fact in view.facts()],
        notes=view.notes(),
    )
    plain = encode(record)
    if len(plain) > _MAX_RECORD_BYTES:
        raise Invalid(
            "carry_too_large",
            f"{len(plain)} bytes are too many for a client to carry: compact the session, or use "
            "hub.turn",
        )
    packed = len(plain).to_bytes(_SIZE_BYTES, "big") + Compressor().compress(plain)
    mark = store_signer(sessions.store).sign(b"carry" + packed)
    return base64.urlsafe_b64encode(mark + packed).rstrip(b"=").decode()


def read_carry(sessions: SessionManager, text: str) -> CarryRecord:
    """Return the record in a carry token.

    Raises:
        Refused: "bad_carry" if this store has not signed it.
        Unsupported: "newer_carry" if a later release wrote it.
    """
    check_text(text=text)
    try:
        raw = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise _bad() from error
    mark, packed = raw[:_MARK_BYTES], raw[_MARK_BYTES:]
    if mark != store_signer(sessions.store).sign(b"carry" + packed):
        raise _bad()
    size = int.from_bytes(packed[:_SIZE_BYTES], "big")
    try:
        plain = decompress(packed[_SIZE_BYTES:], size)
        if (version := decode(_CarryVersion, plain).version) > VERSION:
            raise Unsupported(
                "newer_carry",
                f"this record is of format {version}, known here is {VERSION}: upgrade ortet",
            )
        return decode(CarryRecord, plain)
    except Corrupt as error:
        raise _bad() from error


def from_carry(sessions: SessionManager, text: str) -> Session:
    """Open the session of a carry token; see `Hub.from_carry`."""
    record = read_carry(sessions, text)
    try:
        sessions.table.get(record.session)
    except NotFound as error:
        raise NotFound(
            "no_session",
            f"session {record.name!r} is no more in this store: begin another",
        ) from error
    check_fresh(sessions.get(record.session), record)
    session = sessions.open(record.name, agent=record.agent)
    try:
        check_fresh(session, record)
    except BaseException:
        session.pause()
        raise
    return session


def check_fresh(session: SessionReader, record: CarryRecord) -> None:
    """Raise Conflict("stale_carry") if events since then make the record stale."""
    at = next(iter(session.events(record.seq - 1, record.seq)), None)
    news = (event for event in session.events(record.seq) if not is_bookkeeping_event(event))
    since = [event for event in news if not kind_of(event.kind).from_others]
    if session.id != record.session or at is None or at.hash != record.hash or since:
        raise Conflict(
            "stale_carry",
            f"session {record.name!r} has gone on since this was written: take a new record "
            "from it",
            seq=record.seq,
        )


def _bad() -> Refused:
    return Refused("bad_carry", "this record was changed, or another store made it: take a new one")
