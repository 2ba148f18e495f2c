"""Garbage collection of a store: what must be kept, and the sweep itself.

`gc_roots` defines which objects a sweep must keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ortet._util.codec import decode, encode
from ortet._util.validation import COUNT, require
from ortet.backends.base import Catalog, EventRow
from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.history.references import references_after_erasure
from ortet.history.refs import REFLOG_EXPIRY_ROW, ReflogExpiry, load_reflog_expiry
from ortet.ids import Oid
from ortet.journal.event_log import EventLog
from ortet.journal.events import EventBody
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.sweep import MIN_GARBAGE_FRACTION, Progress, SweepReport, sweep
from ortet.objects.source import kind_of
from ortet.sessions.history.load import sealed_journal
from ortet.sessions.manager import SessionManager
from ortet.sessions.memory.shared_scopes import sealed_scopes
from ortet.sessions.table import ARCHIVED, SessionRow
from ortet.store.sweep_retry import sweep_shared


def gc_roots(sessions: SessionManager, expiry: ReflogExpiry) -> Iterator[ObjectRef]:
    """Yield every object that a sweep must keep, without the objects that it refers to.

    The roots are: heads, reflog entries that are not expired, base images of private machines,
    sealed journals and memories of sessions and scopes, and objects that only uncommitted events
    refer to.
    """
    store = sessions.store
    after = ""
    while heads := store.catalog.heads("", after):
        yield from (ObjectRef(head.oid, Kind.COMMIT) for head in heads)
        after = heads[-1].name
    seq = 0
    while ops := store.catalog.ops(after=seq):
        for op in ops:
            if not isinstance(op.time, int):
                raise Corrupt(
                    "catalog_damaged",
                    f"line {op.seq} of the operation log is damaged: run `ortet verify`",
                )
            if not expiry.covers(op):
                yield from (ObjectRef(oid, Kind.COMMIT) for oid in (op.old, op.new) if oid)
        seq = ops[-1].seq
    for row in sessions.workspaces.table.all():
        if row.base:
            yield ObjectRef(Oid(row.base), Kind.IMAGE)
    for session in sessions.table.all():
        if session.sealed:
            yield ObjectRef(Oid(session.sealed), Kind.JOURNAL)
        if session.beliefs:
            yield ObjectRef(Oid(session.beliefs), Kind.MEMORY)
    yield from sealed_scopes(store.catalog)
    yield from unsealed_objects(sessions)


def sweep_store(
    sessions: SessionManager,
    *,
    dry_run: bool,
    expire_ns: int | None,
    min_garbage: float | None,
    progress: Progress | None,
) -> SweepReport:
    """Collect garbage; see `Maintenance.sweep`.

    With `expire_ns`, older reflog entries expire first. The expiry is stored before the sweep, so
    that `verify` no longer expects those commits.
    """
    store = sessions.store
    gone = load_reflog_expiry(store.catalog)
    if expire_ns is not None:
        require(COUNT._replace(kind="bad_age", description="an age from 0"), expire_ns=expire_ns)
        since = store.clock.now_ns() - expire_ns
        gone = ReflogExpiry(max(since, gone.time), store.catalog.last_op())
        if not dry_run:
            store.catalog.put_row(*REFLOG_EXPIRY_ROW, encode(gone))
            store.catalog.trim_ops(since)
    least = MIN_GARBAGE_FRACTION if min_garbage is None else min_garbage
    found, walk = partial(gc_roots, sessions, gone), references_after_erasure(store.objects)
    if store.objects.is_remote:
        return sweep_shared(
            store, found, walk, dry_run=dry_run, min_garbage=least, progress=progress
        )
    return sweep(store.objects, found, walk, dry_run=dry_run, min_garbage=least, progress=progress)


def unsealed_objects(sessions: SessionManager) -> Iterator[ObjectRef]:
    """Yield the objects that uncommitted events of all sessions refer to."""
    for row in sessions.table.all():
        if row.status == ARCHIVED:  # all its events are sealed, and its branch may not exist
            continue
        try:
            yield from _referenced_objects(sessions, row)
        except NotFound:
            if sessions.table.has(row.id):
                raise


def _referenced_objects(sessions: SessionManager, row: SessionRow) -> Iterator[ObjectRef]:
    for event in _unsealed_rows(sessions, row):
        if event.salt:  # an event without salt is erased
            for oid, kind in decode(EventBody, event.body).refs:
                yield ObjectRef(Oid(oid), kind_of(kind))


def _unsealed_rows(sessions: SessionManager, row: SessionRow) -> Iterator[EventRow]:
    store = sessions.store
    head = store.catalog.head(f"branch:{row.branch}")
    try:
        journal, _ = sealed_journal(sessions.services, row, head.oid if head else None)
    # damaged commit, which `verify` reports; keep too many objects rather than too few
    except OrtetError:
        return _all_rows(store.catalog, row.timeline)
    if store.catalog.last_seq(row.timeline) <= journal.seq:
        return iter(())
    line = EventLog(
        store.catalog, store.objects, sessions.services.chain, timeline=row.timeline, base=journal
    )
    return line.rows(journal.seq)


def _all_rows(catalog: Catalog, timeline: str) -> Iterator[EventRow]:
    after = 0
    while page := catalog.events(timeline, after):
        yield from page
        after = page[-1].seq
