"""Erase events: destroy their bodies and salts in rows, objects and folds.

Headers stay, so that the hash chain of events can still be checked. The steps are: sign and store a
`PendingErasure`, replace objects and write tombstones, clear the rows, rewrite archives, sweep, and
store the receipt. Each step can be repeated after a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import COUNT, require
from ortet.backends.base import Lease, RowChange
from ortet.errors import Invalid, NotFound
from ortet.hub.governance.archive import rewrite_archive
from ortet.hub.governance.legal_holds import check_erasure_supported, check_hold
from ortet.hub.governance.rewrite_objects import replace_objects, sealed_rows, shared_segments
from ortet.hub.governance.tombstones import (
    PENDING_KIND,
    ErasedEvent,
    ErasureReceipt,
    PendingErasure,
    Tombstone,
    record_row,
)
from ortet.hub.sweep import sweep_store
from ortet.ids import Oid
from ortet.journal.conversation.compaction import compaction_data, compaction_of, message_events
from ortet.journal.event_log import EventLog, TimelineSpan
from ortet.journal.events import Draft, Event
from ortet.journal.kinds.registry import kind_of
from ortet.journal.segments import unseal
from ortet.memory.working import clear_working_memory
from ortet.sessions.actions.ledger import (
    decode_effect,
    effect_change,
    effect_kind,
    ledgers_of,
)
from ortet.sessions.environment.removal_rows import rows_repeating_event
from ortet.sessions.memory.recall import words_of
from ortet.sessions.memory.shared_scopes import scope_rows
from ortet.sessions.table import ARCHIVED, SessionRow
from ortet.sessions.writing import state_cache
from ortet.sessions.writing.inbox import drop, pending_messages
from ortet.store.signing import store_signer

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext


# Objects that only events in the catalog refer to. A sweep must keep them.
#
# No commit contains these events yet.


_LOCK_TIMEOUT_SECONDS = 60.0


def erase(
    sessions: SessionManager, session: str | None, seqs: Sequence[int] | None, user: str | None
) -> ErasureReceipt:
    """Erase events; see `Governance.erase`."""
    store = sessions.store
    check_erasure_supported(store)
    if session is None and user is None:
        raise Invalid("nothing_meant", "say what to erase: session=ID, or user=NAME, or both")
    if seqs is not None and session is None:
        raise Invalid("nothing_meant", "numbers of events mean those of a session: give session=ID")
    for seq in seqs or ():
        require(COUNT, **{"one of seqs": seq})
    receipt = finish_pending_erasures(sessions)
    rows = [sessions.table.get(session)] if session is not None else sessions.all()
    events, effects, outside = _select_events(sessions, rows, seqs, user)
    waiting = _inbox_keys(sessions, rows, user) if seqs is None else []
    pending = PendingErasure(
        id=sessions.services.new_id(),
        by=store.author,
        session=session or "",
        events=events,
        effects=effects,
        letters=waiting,
        rows=outside,
    )
    if receipt is not None and {(e.timeline, e.seq) for e in events} <= {
        (e.timeline, e.seq) for e in receipt.events
    }:
        return receipt  # the interrupted erasure already covered these events
    with ExitStack() as held:
        known = _lock_sessions(sessions, events, held)
        pending = store_signer(store).sign_record(pending)
        store.catalog.put_row(PENDING_KIND, pending.id, encode(pending))
        failpoint("erase.begun")
        return _run_erasure(sessions, pending, known)


def finish_pending_erasures(sessions: SessionManager) -> ErasureReceipt | None:
    """Finish erasures that another process started. Return the last receipt, or None."""
    receipt: ErasureReceipt | None = None
    for row in sessions.store.catalog.rows(PENDING_KIND):
        pending = decode(PendingErasure, row.value)
        with ExitStack() as held:
            known = _lock_sessions(sessions, pending.events, held)
            receipt = _run_erasure(sessions, pending, known)
    return receipt


def _run_erasure(
    sessions: SessionManager, pending: PendingErasure, affected: Sequence[SessionRow]
) -> ErasureReceipt:
    store = sessions.store
    texts = _texts(sessions, pending.events)
    with (
        store.objects.sweep_lock.hold_gc_lock(exclusive=True),
        store.objects.sweep_lock.exclusive(_LOCK_TIMEOUT_SECONDS),
    ):
        # The exclusive lock stops commits of session states that still contain the data.
        replaced = replace_objects(sessions, pending.events, pending.by)
        pairs = dict(pending.replaced) | {r.old.hex(): r.new.hex() for r in replaced}
        pending = msgspec.structs.replace(pending, replaced=sorted(pairs.items()))
        pending = store_signer(store).sign_record(pending)
        rows = [
            RowChange(PENDING_KIND, pending.id, encode(pending)),
            *_tombstone_rows(store, replaced),
        ]
        store.catalog.move([], verb="erase", actor=pending.by, rows=rows)
        failpoint("erase.replaced")
        _wipe(store, pending)
        failpoint("erase.wiped")
        store.objects.refresh_after_sweep(store.objects.sweep_lock.raise_epoch())
        sessions.services.maps.clear_cache()
        sessions.services.scopes.forget()
        sessions.services.library.forget(
            texts, timelines={event.timeline for event in pending.events}
        )
        clear_working_memory(store.cache)
        state_cache.clear_all(store.cache)
    for row in affected:
        rewrite_archive(sessions, row.id)
    # Old objects are deleted together with the packs that contain them.
    sweep_store(sessions, dry_run=False, expire_ns=None, min_garbage=0.0, progress=None)
    failpoint("erase.swept")
    receipt = store_signer(store).sign_record(_receipt(store, pending))
    store.catalog.move(
        [],
        verb="erase",
        actor=pending.by,
        detail=receipt.id,
        rows=[record_row(receipt), RowChange(PENDING_KIND, pending.id, None)],
    )
    return receipt


def _receipt(store: StoreContext, pending: PendingErasure) -> ErasureReceipt:
    left = [old for old, _ in pending.replaced if _object_exists(store, bytes.fromhex(old))]
    return ErasureReceipt(
        id=pending.id,
        time=store.clock.now_ns(),
        by=pending.by,
        session=pending.session,
        events=pending.events,
        replaced=pending.replaced,
        left=left,
    )


def _object_exists(store: StoreContext, oid: bytes) -> bool:
    return next(iter(store.objects.pack_set.copies(Oid(oid))), None) is not None


def _tombstone_rows(store: StoreContext, replaced: Iterable[Tombstone]) -> list[RowChange]:
    mine = store_signer(store)
    return [record_row(mine.sign_record(one)) for one in replaced]


def _texts(sessions: SessionManager, events: Sequence[ErasedEvent]) -> list[str] | None:
    """Return the texts to remove from the index, or None if one of them cannot be read."""
    found: list[str] = []
    for event in events:
        if not kind_of(event.kind).indexed:
            continue
        rows = sessions.store.catalog.events(event.timeline, event.seq - 1, 1)
        if not rows or rows[0].seq != event.seq or not rows[0].salt:
            return None
        found.append(words_of(sessions.services.chain.read(rows[0], event.timeline)))
    return found


def _wipe(store: StoreContext, pending: PendingErasure) -> None:
    lines: dict[str, list[int]] = {}
    for event in pending.events:
        lines.setdefault(event.timeline, []).append(event.seq)
    for timeline, seqs in lines.items():
        store.catalog.erase_events(timeline, seqs)
        failpoint("erase.rows")
    for ledger, id_ in pending.effects:
        row = store.catalog.row(effect_kind(ledger), id_)
        if row is not None:
            effect_row = decode_effect(row)
            effect = msgspec.structs.replace(effect_row.effect, why="", command="")
            bare = msgspec.structs.replace(
                effect_row, effect=effect, outcome=None, error="", call=""
            )
            store.catalog.move([], verb="erase", rows=[effect_change(bare)])
    for session, key in pending.letters:
        drop(store.catalog, session, key)
    for kind, key in pending.rows:
        store.catalog.drop_row(kind, key)
    store.catalog.scrub()


# selection of events


def _select_events(
    sessions: SessionManager,
    rows: Sequence[SessionRow],
    seqs: Sequence[int] | None,
    user: str | None,
) -> tuple[list[ErasedEvent], list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the events to erase, their effects, and catalog rows that repeat their data.

    The rows repeat what the events recorded about external state.
    """
    outside: dict[tuple[str, str], None] = {}
    found: dict[tuple[str, int], ErasedEvent] = {}
    effects: dict[tuple[str, str], None] = {}
    wanted = None if seqs is None else set(seqs)
    for row in rows:
        seen: set[int] = set()
        own = timelines_of(sessions, row) if wanted is None else set[str]()
        for event in _session_events(
            sessions, row, own, with_inherited=wanted is not None or user is not None
        ):
            if wanted is None and kind_of(event.kind).only_amounts:
                continue
            if wanted is not None and event.seq not in wanted:
                continue
            if user is not None and not _concerns_user(event, user):
                continue
            seen.add(event.seq)
            key = event.timeline, event.seq
            found[key] = ErasedEvent(event.timeline, event.seq, event.kind, event.hash.hex())
            if event.kind in ("begun", "ended") and "id" in event.data:
                for ledger in ledgers_of(sessions.store.catalog, row):
                    effects[ledger, str(event.data["id"])] = None
            outside |= dict.fromkeys(rows_repeating_event(sessions.services, row, event))
        _add_derived_events(sessions.services.load(row).line.events(), found)
        if user is not None:  # match by number alone: no session is there
            _add_derived_events(_timeline_events(sessions, own), found, {seq for _, seq in found})
        if missing := (wanted or set()) - seen:
            raise Invalid(
                "no_event",
                f"session {row.name!r} has no event {min(missing)}"
                f"{f' of {user}' if user else ''}: `ortet journal {row.name}` lists them",
            )
    _add_shared_memory_events(sessions, found, user)
    events = sorted(found.values(), key=lambda one: (one.timeline, one.seq))
    return events, list(effects), list(outside)


def _add_shared_memory_events(
    sessions: SessionManager, found: dict[tuple[str, int], ErasedEvent], user: str | None
) -> None:
    """Add events of shared memories that were derived from the selected events.

    With `user`, also add all events of the scope "user:NAME".
    """
    for name, event in _shared_memory_events(sessions):
        told = (event.data.get(word) or {} for word in ("told", "source"))
        made_of = {(one.get("timeline"), one.get("seq")) for one in told}
        if name == f"user:{user}" or not made_of.isdisjoint(found):
            key = event.timeline, event.seq
            found[key] = ErasedEvent(event.timeline, event.seq, event.kind, event.hash.hex())


def _shared_memory_events(sessions: SessionManager) -> Iterator[tuple[str, Event]]:
    """Yield all events of shared memories with the name of their scope.

    Events that came from other stores exist only in commits. They are included.
    """
    for known in sessions.services.scopes.all():
        for event in known.events(sessions.services):
            yield known.name, event
    here = {row.timeline for _, row in scope_rows(sessions.store.catalog)}
    for name, segment in shared_segments(sessions):
        timeline = segment.timeline.hex()
        if timeline not in here:
            for row in unseal(sessions.store.objects, segment):
                yield name, sessions.services.chain.read(row, timeline)


def _add_derived_events(
    events: Iterable[Event],
    found: dict[tuple[str, int], ErasedEvent],
    selected_seqs: Collection[int] = (),
) -> None:
    """Add events that repeat the content of selected ones.

    A compaction or an episode may quote its messages. A fact repeats the event that it was learned
    from.
    """
    meant = set(selected_seqs)
    for event in events:
        if (event.timeline, event.seq) in found:
            meant.add(event.seq)
        elif _is_derived_from(event, found) or (
            kind_of(event.kind).quotes_messages
            and any(
                event.data.get("first", 0) <= seq <= event.data.get("last", -1) for seq in meant
            )
        ):
            meant.add(event.seq)
            key = event.timeline, event.seq
            found[key] = ErasedEvent(event.timeline, event.seq, event.kind, event.hash.hex())


def _is_derived_from(event: Event, found: Collection[tuple[str, int]]) -> bool:
    source = event.data.get("source") if kind_of(event.kind).shareable else None
    return isinstance(source, dict) and (source.get("timeline"), source.get("seq")) in found


def _inbox_keys(
    sessions: SessionManager, rows: Sequence[SessionRow], user: str | None
) -> list[tuple[str, str]]:
    catalog = sessions.store.catalog
    return [
        (row.id, key)
        for row in rows
        for key, event in pending_messages(catalog, row.id)
        if user is None or _concerns_user(event, user)
    ]


def _concerns_user(event: Event, user: str) -> bool:
    said = event.data.get("extra", {}) if event.kind == "message" else {}
    about = kind_of(event.kind).shareable and event.data.get("scope") == f"user:{user}"
    return event.actor == user or about or (isinstance(said, dict) and said.get("user") == user)


def _session_events(
    sessions: SessionManager, row: SessionRow, own: Collection[str], *, with_inherited: bool
) -> Iterator[Event]:
    """Yield the events of a session, then all events of its own timelines.

    Its own timelines include those that a restore has left. Without `with_inherited`, events that
    it shares with a parent are left out.
    """
    line = sessions.services.load(row).line
    for event in line.events():
        if with_inherited or event.timeline in own:
            yield event
    yield from _timeline_events(sessions, own)


def _timeline_events(sessions: SessionManager, timelines: Collection[str]) -> Iterator[Event]:
    """Yield all events of these timelines, from rows and, where those are trimmed, from commits."""
    store, trimmed = sessions.store, set[str]()
    for timeline in timelines:
        known = store.catalog.timeline(timeline)
        after = known.at if known else 0
        while rows := store.catalog.events(timeline, after):
            if rows[0].seq > after + 1:
                trimmed.add(timeline)
            for each in rows:
                yield sessions.services.chain.read(each, timeline)
            after = rows[-1].seq
    for timeline, row in sealed_rows(sessions, trimmed):
        yield sessions.services.chain.read(row, timeline)


def timelines_of(sessions: SessionManager, row: SessionRow) -> set[str]:
    """Return the timelines that a session created itself.

    Timelines shared with its parent, or taken over from a fork, are not included.
    """
    left = sessions.table.former_timelines(row.id)
    mine = {span.timeline for span in _path(sessions, row)} | left
    forks = {row.id}
    others: set[str] = set()
    theirs: set[str] = set()  # present and former timelines of all other sessions
    for other in sessions.all():  # oldest first, so that a fork comes after its parent
        if other.id != row.id:  # of any family: a session can adopt one of another family
            theirs |= {other.timeline, *sessions.table.former_timelines(other.id)}
        if other.family == row.family and other.id != row.id:
            try:
                path = {span.timeline for span in _path(sessions, other)}
            except NotFound:
                if sessions.table.has(other.id):
                    raise
                continue  # another process removed it concurrently
            if other.parent in forks:
                forks.add(other.id)
                path -= mine
            others |= path
    others = (others | theirs) - {row.timeline} - left
    own = mine - others
    todo = list(own)
    while todo:
        for child in sessions.store.catalog.children(todo.pop()):
            if child.id not in others and child.id not in own:
                own.add(child.id)
                todo.append(child.id)
    return own


def _path(sessions: SessionManager, row: SessionRow) -> list[TimelineSpan]:
    store = sessions.store
    return EventLog(
        store.catalog, store.objects, sessions.services.chain, timeline=row.timeline
    ).timeline_spans()


def _lock_sessions(
    sessions: SessionManager, events: Sequence[ErasedEvent], stack: ExitStack
) -> list[SessionRow]:
    """Lease every session that contains one of these events, and return those sessions.

    Raises Refused("lease_held") if another process has one open.
    """
    store = sessions.store
    known: list[SessionRow] = []
    meant: dict[str, int] = {}
    for event in events:
        meant[event.timeline] = min(event.seq, meant.get(event.timeline, event.seq))
    for row in sessions.all():
        path = _path(sessions, row)
        left = not meant.keys().isdisjoint(sessions.table.former_timelines(row.id))
        if left or any(meant.get(span.timeline, span.upto + 1) <= span.upto for span in path):
            check_hold(store, row)
            lease = sessions.acquire_lease(row)
            stack.callback(store.catalog.release, lease)
            _blank_erased_summary(sessions, row, lease, {(one.timeline, one.seq) for one in events})
            known.append(row)
    return known


def _blank_erased_summary(
    sessions: SessionManager, row: SessionRow, lease: Lease, erased: Collection[tuple[str, int]]
) -> None:
    """Add a compaction without a summary, if the present summary will be erased.

    Otherwise the messages that the summary replaces would come back into the context.
    """
    where = sessions.services.load(row)
    at, line = where.mind.core.summary, where.line
    if not at or row.status == ARCHIVED:
        return
    (event,) = line.events(at - 1, at)
    if (event.timeline, at) not in erased:
        return
    past = compaction_of(event)
    if all(
        e.erased or (e.timeline, e.seq) in erased for e in message_events(line.events(0, past.last))
    ):
        return  # all messages of the summary are erased too
    bare = msgspec.structs.replace(past, summary="")
    draft = Draft("compaction", compaction_data(bare), sessions.store.author)
    made, _ = sessions.services.chain.make(line.tip(), draft, sessions.store.clock.now_ns())
    sessions.store.catalog.append(row.timeline, [made], lease=lease)
    failpoint("erase.kept-out")
