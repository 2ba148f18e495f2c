"""Shared scopes: facts of an agent, a user or a project, shared by many sessions.

Each scope has a timeline of its own, which grows when a session publishes facts. Commits hold the
state of the scopes that the session saw.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import check_texts
from ortet.backends.base import Append, Catalog, EventRow, Lease, RowChange, Timeline
from ortet.errors import Conflict, Invalid
from ortet.history.records import JournalHead, Memory
from ortet.ids import Oid
from ortet.journal.event_log import EMPTY_JOURNAL, EventLog, TimelineSpan
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.segments import first_seq, iter_segments, unseal
from ortet.journal.state.state import SessionState
from ortet.objects.base import Kind, ObjectRef
from ortet.sessions.table import SessionRow

if TYPE_CHECKING:
    from ortet.sessions.services import JournalServices

SCOPE = "scope"
"""Row kind of shared scopes, by name."""

AGENT = "agent"
_TRIES = 100
_SPAN_CACHE_SIZE = 1000
_SCOPE_NAME = re.compile(
    # characters of a name
    r"(?:user|project):(?![:/])[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}\Z"
)


class ScopeRow(msgspec.Struct, frozen=True):
    """The timeline of a shared scope. `sealed` is a Journal of it that commits hold."""

    timeline: str
    sealed: bytes = b""


class SharedScope(msgspec.Struct):
    """A shared scope as loaded by this process. It only moves forward.

    Attributes:
        name: Name of the scope.
        mind: The state of the scope.
        tip: Position of its last event.
        journal: Id of the stored Journal that ends at `tip`, or b"".
        line: Its event log, or None if the scope is read as of a commit.
    """

    name: str
    mind: SessionState
    tip: Tip
    journal: bytes = b""
    line: EventLog | None = None

    def spans(self, sessions: JournalServices) -> list[TimelineSpan]:
        """Return the timeline spans of the scope, oldest first."""
        if self.line is not None:
            path, base = self.line.timeline_spans(), self.line.base
            return [*sealed_spans(sessions, base, path[0].after), *path] if path else []
        return sealed_spans(sessions, self._read(sessions), self.tip.seq)

    def events(
        self, sessions: JournalServices, after: int = 0, upto: int | None = None
    ) -> Iterator[Event]:
        if self.line is not None:
            yield from self.line.events(after, upto)
            return
        last = self.tip.seq if upto is None else upto
        chosen = []
        for _, segment in iter_segments(sessions.store.objects, self._read(sessions).segment):
            chosen.append(segment)
            if first_seq(segment) <= after + 1:
                break
        for segment in reversed(chosen):
            for row in unseal(sessions.store.objects, segment):
                if after < row.seq <= last:
                    yield sessions.chain.read(row, segment.timeline.hex())

    def _read(self, sessions: JournalServices) -> JournalHead:
        return decode(JournalHead, sessions.store.objects.get(Oid(self.journal)))


def sealed_spans(sessions: JournalServices, journal: JournalHead, upto: int) -> list[TimelineSpan]:
    """Return the spans of events up to `upto` that are in segments and come from other hosts."""
    if upto <= 0 or not journal.segment:
        return []
    known = sessions.foreign_spans.get((journal.segment, upto))
    if known is not None:
        return known
    found: list[TimelineSpan] = []
    end = journal.seq
    for _, segment in iter_segments(sessions.store.objects, journal.segment):
        first, timeline = first_seq(segment), segment.timeline.hex()
        if first <= upto:
            last = min(end, upto)
            if found and found[0].timeline == timeline:
                found[0] = TimelineSpan(timeline, first - 1, found[0].upto)
            else:
                found.insert(0, TimelineSpan(timeline, first - 1, last))
        end = first - 1
    if len(sessions.foreign_spans) >= _SPAN_CACHE_SIZE:
        sessions.foreign_spans.clear()
    sessions.foreign_spans[journal.segment, upto] = found
    return found


def scope_rows(catalog: Catalog) -> Iterator[tuple[str, ScopeRow]]:
    """Iterate over all shared scopes of a store, by name."""
    after = ""
    while page := catalog.rows(SCOPE, after):
        for row in page:
            yield row.key, decode(ScopeRow, row.value)
        after = page[-1].key


def sealed_scopes(catalog: Catalog) -> Iterator[ObjectRef]:
    """Iterate over the journals of scopes, which a sweep must keep even if no commit holds them."""
    for _, row in scope_rows(catalog):
        if row.sealed:
            yield ObjectRef(Oid(row.sealed), Kind.JOURNAL)


def check_scope(scope: str | None) -> str:
    """Return a checked scope as facts have it; "" for the session's own.

    Raises:
        Invalid: "bad_scope" for any other text.
    """
    if scope in (None, "", "session"):
        return ""
    if scope == AGENT or (isinstance(scope, str) and _SCOPE_NAME.match(scope)):
        return str(scope)
    raise Invalid(
        "bad_scope",
        f"scope={scope!r}: give 'session', 'agent', 'user:NAME' or 'project:NAME'",
    )


def check_scopes(scopes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return checked scopes for opening a session. Its own and its agent's are left out."""
    if scopes is None:
        return None
    found = (check_scope(scope) for scope in check_texts("scopes", scopes))
    return tuple(sorted({scope for scope in found if scope not in ("", AGENT)}))


def name_of(agent: str, scope: str) -> str:
    """Return the scope name that a session of this agent means."""
    return f"{AGENT}:{agent}" if scope == AGENT else scope


def users_of(row: SessionRow) -> list[str]:
    """Return the users that a session was opened with."""
    return [scope for scope in row.scopes if scope.startswith("user:")]


def is_family_root(row: SessionRow) -> bool:
    """Return True for the first session of a family.

    Facts of its forks stay theirs until adopted.
    """
    return row.family == row.id


class SharedScopes:
    """The shared scopes of one store, as loaded by this process."""

    def __init__(self, sessions: JournalServices) -> None:
        self._sessions = sessions
        self._current: dict[str, SharedScope] = {}
        self._at_commit: dict[bytes, list[SharedScope]] = {}
        self._pending_seals: dict[
            str, bytes
        ] = {}  # by name: journals stored for a commit that is not made yet
        self._epoch = (0, 0)

    def forget(self) -> None:
        """Drop loaded state, after an erasure or a failed store."""
        self._current, self._at_commit, self._pending_seals = {}, {}, {}

    def _forget_after_erasure(self) -> None:
        """Drop loaded state if another process has erased something."""
        objects = self._sessions.store.objects
        epoch = (objects.sweep_lock.epoch(), objects.epoch)
        if epoch != self._epoch:
            self.forget()
            self._epoch = epoch

    def row(self, name: str) -> tuple[ScopeRow | None, int]:
        found = self._sessions.store.catalog.row(SCOPE, name)
        return (decode(ScopeRow, found.value), found.version) if found else (None, 0)

    def all(self) -> list[SharedScope]:
        """Return all scopes as they are now."""
        found = (self.current(name) for name, _ in scope_rows(self._sessions.store.catalog))
        return [one for one in found if one is not None]

    def current(self, name: str) -> SharedScope | None:
        """Return a scope with all published events, or None if there is none."""
        self._forget_after_erasure()
        row, _ = self.row(name)
        if row is None:
            return None
        known = self._current.get(name)
        if known is None or known.line is None or known.line.timeline != row.timeline:
            known = self._current[name] = self._load(name, row)
        assert known.line is not None
        if self._sessions.store.catalog.last_seq(row.timeline) > known.tip.seq:
            for event in known.line.events(known.tip.seq):
                fold(known.mind, [event])
                known.tip = Tip(event.seq, event.hash, event.time)
            known.journal = b""
        return known

    def event_log(self, row: ScopeRow) -> EventLog:
        sessions, store = self._sessions, self._sessions.store
        base = (
            decode(JournalHead, store.objects.get(Oid(row.sealed))) if row.sealed else EMPTY_JOURNAL
        )
        return EventLog(
            store.catalog, store.objects, sessions.chain, timeline=row.timeline, base=base
        )

    def _load(self, name: str, row: ScopeRow) -> SharedScope:
        line = self.event_log(row)
        base = line.base
        mind = SessionState.load(self._sessions.maps, self._sessions.store.objects, base.fold)
        time = next((event.time for event in line.newest(1)), 0) if base.seq else 0
        return SharedScope(name, mind, Tip(base.seq, base.hash, time), row.sealed, line)

    def at_commit(self, memory: bytes) -> list[SharedScope]:
        """Return the scopes as a commit holds them."""
        if not memory:
            return []
        self._forget_after_erasure()
        if memory not in self._at_commit:
            store = self._sessions.store
            found = []
            for name, oid in decode(Memory, store.objects.get(Oid(memory))).scopes:
                journal = decode(JournalHead, store.objects.get(Oid(oid)))
                mind = SessionState.load(self._sessions.maps, store.objects, journal.fold)
                found.append(SharedScope(name, mind, Tip(journal.seq, journal.hash), oid))
            self._at_commit = {memory: found}
        return self._at_commit[memory]

    # commits

    def seal(self, names: Iterable[str]) -> bytes:
        """Store the scopes for the commit being made, and return the Memory record id."""
        if self._pending_seals:  # the last commit failed, and its stored objects may be lost
            self.forget()
        scopes = []
        for name in sorted(set(names)):
            known = self.current(name)
            if known is not None and known.tip.seq:
                scopes.append((name, known.journal or self._seal(known)))
        if not scopes:
            return b""
        return self._sessions.store.objects.put(Kind.MEMORY, encode(Memory(scopes)))

    def _seal(self, known: SharedScope) -> bytes:
        assert known.line is not None
        objects, tip = self._sessions.store.objects, known.tip
        # Not scanned for secrets: the publishing session has already committed the fact. A secret
        # that became known later would otherwise block all commits of sessions with this scope.
        search, objects.scanner = objects.scanner, None
        try:
            segment = known.line.seal(tip)
        finally:
            objects.scanner = search
        journal = JournalHead(segment, tip.seq, tip.hash, known.mind.save(objects))
        oid = objects.put(Kind.JOURNAL, encode(journal))
        self._pending_seals[known.name] = oid
        return oid

    def committed(self) -> None:
        """Accept that the commit being made is now stored."""
        for name, oid in self._pending_seals.items():
            known = self._current.get(name)
            if known is not None and known.line is not None:
                base = decode(JournalHead, self._sessions.store.objects.get(Oid(oid)))
                known.line.base = base
                known.mind.mark_committed()
                known.journal = oid if base.seq == known.tip.seq else b""
        self._pending_seals = {}

    # publishing

    def publish(
        self,
        name: str,
        drafts: Iterable[Draft],
        *,
        lease: Lease | None,
        rows: Iterable[RowChange],
        begin: bytes = b"",
    ) -> None:
        """Append events that the scope does not have yet, and write `rows`, in one transaction.

        Args:
            begin: for a scope that this store does not have: a Journal of a commit to continue
                from.
        """
        for _ in range(_TRIES):
            known, (row, version) = self.current(name), self.row(name)
            try:
                if known is None or row is None:
                    self._begin(name, list(drafts), lease=lease, rows=list(rows), begin=begin)
                else:
                    new, _ = self._make_events(known.tip, self._unknown_drafts(known.mind, drafts))
                    held = [*rows]
                    if known.journal and known.journal != row.sealed:
                        value = msgspec.structs.replace(row, sealed=known.journal)
                        held.append(RowChange(SCOPE, name, encode(value), expect=version))
                    failpoint("publish.before-append")
                    catalog = self._sessions.store.catalog
                    appends = [Append(row.timeline, new)] if new else []
                    catalog.move([], verb="publish", lease=lease, rows=held, appends=appends)
                failpoint("publish.after-append")
                return
            except Conflict as error:  # another session was first
                if error.kind not in ("seq_taken", "row_moved", "timeline_exists"):
                    raise
                taken = error
        raise taken

    def _begin(
        self,
        name: str,
        drafts: list[Draft],
        *,
        lease: Lease | None,
        rows: list[RowChange],
        begin: bytes,
    ) -> None:
        sessions, store = self._sessions, self._sessions.store
        base = decode(JournalHead, store.objects.get(Oid(begin))) if begin else EMPTY_JOURNAL
        mind = SessionState.load(sessions.maps, store.objects, base.fold)
        new, _ = self._make_events(Tip(base.seq, base.hash), self._unknown_drafts(mind, drafts))
        row = ScopeRow(sessions.new_id(), begin)
        store.catalog.move(
            [],
            verb="publish",
            lease=lease,
            rows=[*rows, RowChange(SCOPE, name, encode(row), expect=0)],
            timelines=[Timeline(row.timeline, "", base.seq)],
            appends=[Append(row.timeline, new)] if new else [],
        )

    def _make_events(self, tip: Tip, drafts: Iterable[Draft]) -> tuple[list[EventRow], Tip]:
        made: list[EventRow] = []
        for draft in drafts:
            row, event = self._sessions.chain.make(tip, draft, self._sessions.store.clock.now_ns())
            tip = Tip(event.seq, event.hash, event.time)
            made.append(row)
        return made, tip

    @staticmethod
    def _unknown_drafts(state: SessionState, drafts: Iterable[Draft]) -> Iterator[Draft]:
        """Iterate over the drafts that the scope does not have yet, each once."""
        told: set[tuple[str, bool]] = set()
        for draft in drafts:
            id_, gone = str(draft.data["id"]), bool(draft.data.get("gone"))
            if draft.kind == "episode":
                known = state.episodes.get(id_) is not None
            else:
                believed = state.facts.get(id_) is not None or (id_, False) in told
                known = not believed if gone else believed or state.past.get(id_) is not None
            if not known and (id_, gone) not in told:
                told.add((id_, gone))
                yield draft
