"""Carry tokens: the state of a session as signed text that a client keeps."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import Compressor, decode, decompress, encode
from ortet._util.validation import check_text
from ortet.errors import Conflict, Corrupt, Invalid, Refused, Unsupported
from ortet.journal.kinds.registry import kind_of
from ortet.journal.state.records import Message
from ortet.sessions.context import SessionContext
from ortet.sessions.conversation import Conversation
from ortet.sessions.conversation_state import live_notes
from ortet.sessions.history.load import is_bookkeeping_event
from ortet.sessions.memory.facts import believed_facts
from ortet.store.signing import store_signer

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

VERSION = 1
_MARK_BYTES = 32
_SIZE_BYTES = 4
_MAX_RECORD_BYTES = 64 << 20


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


def carry(view: SessionContext) -> str:
    """Return the carry token; see `Session.carry`."""
    messages = Conversation(view).messages()  # flushes buffered events
    tip = view.event_log.tip()
    record = CarryRecord(
        version=VERSION,
        session=view.id,
        name=view.name,
        agent=view.agent,
        seq=tip.seq,
        hash=tip.hash,
        goal=view.goal,
        plan=list(view.state.core.plan),
        step=view.state.core.step,
        messages=messages,
        facts=[fact.text for fact in believed_facts(view)],
        notes=live_notes(view.state, view.now()),
    )
    plain = encode(record)
    if len(plain) > _MAX_RECORD_BYTES:
        raise Invalid(
            "carry_too_large",
            f"{len(plain)} bytes are too many for a client to carry: compact the session, or use "
            "hub.turn",
        )
    packed = len(plain).to_bytes(_SIZE_BYTES, "big") + Compressor().compress(plain)
    mark = store_signer(view.store).sign(b"carry" + packed)
    return base64.urlsafe_b64encode(mark + packed).rstrip(b"=").decode()


def read_carry(store: StoreContext, text: str) -> CarryRecord:
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
    if mark != store_signer(store).sign(b"carry" + packed):
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


def check_fresh(session: SessionContext, record: CarryRecord) -> None:
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
