"""The mind of a session that several servers take turns with: what its events since the last commit
come to, kept in a cache that they share, so that the next one does not fold them all again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortet._util.codec import StoredRecord, decode, encode
from ortet.errors import Corrupt
from ortet.ids import Oid
from ortet.journal.event_log import EventLog
from ortet.journal.events import Tip
from ortet.journal.state.state import PendingChanges, SessionState
from ortet.sessions.writing.event_writer import EventWriter

if TYPE_CHECKING:
    from ortet.backends.base import Cache
    from ortet.sessions.manager import SessionManager

TTL_NS = 3600 * 1_000_000_000
MIN_EVENTS = 64
"""Events that are worth keeping: fewer are folded in the time that the cache takes to answer."""

_KEY_PREFIX = "fold/1/"
"""What every key begins with. The number goes up with the shape of it, and when folding makes
something else of the same events: releases may share a server."""


class _CachedState(StoredRecord, frozen=True):
    """A mind behind event `seq`, whose header has `hash`, as it goes on from the fold `base`."""

    timeline: str
    seq: int
    hash: bytes
    time: int
    base: bytes
    ahead: PendingChanges


def epoch_of(sessions: SessionManager) -> int:
    """What is erased is another epoch. To be asked before anything is read that is kept under it;
    -1 where nobody shares a cache."""
    hub = sessions.hub
    return hub.objects.sweep_lock.fetch_epoch() if hub.cache.shared else -1


def load_cached(
    sessions: SessionManager, event_log: EventLog, state: SessionState, epoch: int
) -> Tip | None:
    """Bring a mind that was loaded from the line's base forward by what is kept; where to then.

    Only what this very chain has led to is believed: its last event is in the catalog, under the
    same hash, which holds for all before it; the fold that it goes on from is the same one, so that
    what was erased there is not known again; and who has put it has this store's key.
    """
    hub = sessions.hub
    data = hub.cache.get(_key(event_log.timeline, epoch)) if epoch >= 0 else None
    kept = _decode_entry(sessions, data) if data is not None else None
    if kept is None or kept.timeline != event_log.timeline or kept.seq <= event_log.base.seq:
        return None
    rows = hub.catalog.events(event_log.timeline, kept.seq - 1, 1)
    if not rows or rows[0].seq != kept.seq or hub.objects.hasher.oid(rows[0].head) != kept.hash:
        return None
    if kept.base != _fold_oid(sessions, event_log) or not state.apply_pending_changes(kept.ahead):
        return None
    return Tip(kept.seq, kept.hash, kept.time)


def cache_state(
    sessions: SessionManager, event_log: EventLog, state: SessionState, tip: Tip, *, epoch: int
) -> None:
    """For whoever opens it next. `epoch`: as it was before the first of its events was read; when
    it is another one now, what is in this mind may have been erased."""
    if epoch < 0 or tip.seq - event_log.base.seq < MIN_EVENTS or epoch_of(sessions) != epoch:
        return
    base = _fold_oid(sessions, event_log)
    kept = encode(
        _CachedState(event_log.timeline, tip.seq, tip.hash, tip.time, base, state.pending_changes())
    )
    seal = sessions.hub.objects.hasher.oid(kept)
    sessions.hub.cache.put(_key(event_log.timeline, epoch), seal + kept, TTL_NS)


def cache_writer_state(sessions: SessionManager, writer: EventWriter, epoch: int) -> None:
    """The same of a session that was written to, and not only rehearsed."""
    if type(writer) is EventWriter:
        cache_state(sessions, writer.event_log, writer.state, writer.tip, epoch=epoch)


def clear_all(cache: Cache) -> None:
    """Forget all of it, as an erasure must: forks know what their parents knew."""
    cache.drop(_KEY_PREFIX)


def forget(cache: Cache, timeline: str) -> None:
    """That of one timeline, whose session was removed."""
    cache.drop(f"{_KEY_PREFIX}{timeline}/")


def _key(timeline: str, epoch: int) -> str:
    return f"{_KEY_PREFIX}{timeline}/{epoch}"


def _fold_oid(sessions: SessionManager, event_log: EventLog) -> bytes:
    fold = event_log.base.fold
    return sessions.hub.objects.replacement_of(Oid(fold)) if fold else b""


def _decode_entry(sessions: SessionManager, data: bytes) -> _CachedState | None:
    """None for bytes that somebody else put there, or that are not whole."""
    hasher = sessions.hub.objects.hasher
    size = len(hasher.oid(b""))
    if hasher.oid(data[size:]) != data[:size]:
        return None
    try:
        return decode(_CachedState, data[size:])
    except Corrupt:
        return None
