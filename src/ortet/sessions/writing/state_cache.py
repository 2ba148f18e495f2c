"""Cache of folded session state, shared by several servers.

Without it, each server that opens a session folds all events since the last commit again.
"""

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
    from ortet.sessions.services import JournalServices

TTL_NS = 3600 * 1_000_000_000
MIN_EVENTS = 64
"""Least number of events worth caching. Fewer are folded faster than the cache answers."""

_KEY_PREFIX = "fold/1/"
"""Prefix of every key, with a format number.

The number rises if the format changes, or if folding gives another result for the same events:
several releases may share a cache.
"""


class _CachedState(StoredRecord, frozen=True):
    """The changes up to event `seq` with header hash `hash`, relative to the fold `base`."""

    timeline: str
    seq: int
    hash: bytes
    time: int
    base: bytes
    ahead: PendingChanges


def epoch_of(sessions: JournalServices) -> int:
    """Return the sweep epoch, or -1 if no cache is shared.

    An erasure changes the epoch. Read the epoch before reading anything that is cached under it.
    """
    store = sessions.store
    return store.objects.sweep_lock.fetch_epoch() if store.cache.shared else -1


def load_cached(
    sessions: JournalServices, event_log: EventLog, state: SessionState, epoch: int
) -> Tip | None:
    """Apply a cached entry to a state that was loaded from the log's base.

    An entry is used only if all of these hold. Its last event is in the catalog under the same
    hash, which covers all earlier events. It builds on the same fold, so that erased data does not
    return. Its checksum was made with the key of this store.

    Returns:
        The position that the state has now, or None if no entry fits.
    """
    store = sessions.store
    data = store.cache.get(_key(event_log.timeline, epoch)) if epoch >= 0 else None
    kept = _decode_entry(sessions, data) if data is not None else None
    if kept is None or kept.timeline != event_log.timeline or kept.seq <= event_log.base.seq:
        return None
    rows = store.catalog.events(event_log.timeline, kept.seq - 1, 1)
    if not rows or rows[0].seq != kept.seq or store.objects.hasher.oid(rows[0].head) != kept.hash:
        return None
    if kept.base != _fold_oid(sessions, event_log) or not state.apply_pending_changes(kept.ahead):
        return None
    return Tip(kept.seq, kept.hash, kept.time)


def cache_state(
    sessions: JournalServices, event_log: EventLog, state: SessionState, tip: Tip, *, epoch: int
) -> None:
    """Cache the state for the next process that opens the session.

    Args:
        epoch: the epoch from before the first event was read. If it has changed, the state may hold
            erased data and is not cached.
    """
    if epoch < 0 or tip.seq - event_log.base.seq < MIN_EVENTS or epoch_of(sessions) != epoch:
        return
    base = _fold_oid(sessions, event_log)
    kept = encode(
        _CachedState(event_log.timeline, tip.seq, tip.hash, tip.time, base, state.pending_changes())
    )
    seal = sessions.store.objects.hasher.oid(kept)
    sessions.store.cache.put(_key(event_log.timeline, epoch), seal + kept, TTL_NS)


def cache_writer_state(sessions: JournalServices, writer: EventWriter, epoch: int) -> None:
    """Cache the state of a writer, unless it belongs to a replay."""
    if writer.recorded is None:
        cache_state(sessions, writer.event_log, writer.state, writer.tip, epoch=epoch)


def clear_all(cache: Cache) -> None:
    """Drop all entries. An erasure needs this, because forks inherit the state of their parents."""
    cache.drop(_KEY_PREFIX)


def forget(cache: Cache, timeline: str) -> None:
    """Drop the entries of one timeline, whose session was removed."""
    cache.drop(f"{_KEY_PREFIX}{timeline}/")


def _key(timeline: str, epoch: int) -> str:
    return f"{_KEY_PREFIX}{timeline}/{epoch}"


def _fold_oid(sessions: JournalServices, event_log: EventLog) -> bytes:
    fold = event_log.base.fold
    return sessions.store.objects.replacement_of(Oid(fold)) if fold else b""


def _decode_entry(sessions: JournalServices, data: bytes) -> _CachedState | None:
    """Decode an entry. Return None if it is damaged or was not written with this store's key."""
    hasher = sessions.store.objects.hasher
    size = len(hasher.oid(b""))
    if hasher.oid(data[size:]) != data[:size]:
        return None
    try:
        return decode(_CachedState, data[size:])
    except Corrupt:
        return None
