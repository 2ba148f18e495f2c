"""Rebuilds rows of a catalog from the recovery log and from the packs.

`ortet.config.repair` opens the store for this and decides what happens to the damaged file. Nothing
is guessed: a branch gets the commit that it had last, a session goes on at the head of its branch,
and each commit that nothing refers to gets a branch `lost/…` of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Move, RowChange, Timeline
from ortet.errors import OrtetError
from ortet.history.records import Commit, JournalHead, State
from ortet.history.transfer.bundle_file import BundleFile, BundleLimits
from ortet.hub.effect_check import repair_ledgers
from ortet.hub.governance.archive import ARCHIVE_KIND
from ortet.ids import Oid, from_hex, to_hex
from ortet.objects.base import Kind
from ortet.sessions.history.load import row_on_new_timeline, start_of
from ortet.sessions.manager import SessionManager
from ortet.sessions.memory.shared_scopes import SCOPE, ScopeRow
from ortet.sessions.results import ArchiveRecord
from ortet.sessions.table import ACTIVE, ARCHIVED, PAUSED, SessionRow, SessionTable

_HEAD, _SESSION = "head", "session"
_BRANCH = "branch:"
_ACTOR = "repair"


class RepairReport(msgspec.Struct):
    """What a repair did, or with a dry run would do.

    Attributes:
        applied: False for a dry run.
        catalog: How the catalog was found: "sound", "missing", "damaged" or "behind".
        rows: Number of rows that were read from the damaged catalog.
        branches: Branches and tags that were set again, with their commits.
        sessions: Names of sessions that were built again from their last commit.
        found: Branches of commits that nothing referred to.
        rebuilt: Indexes and rows of effects that were built again.
        lost: What is lost for good, one text each.
    """

    applied: bool
    catalog: str
    rows: int = 0
    branches: dict[str, str] = {}
    sessions: list[str] = []
    found: dict[str, str] = {}
    rebuilt: list[str] = []
    lost: list[str] = []


Logged = Mapping[tuple[str, str], bytes]
"""(kind, key) -> value, as the recovery log has them."""


class Rebuilder:
    """Brings the rows of an open catalog up to what the recovery log and the packs have."""

    def __init__(self, sessions: SessionManager, logged: Logged, report: RepairReport) -> None:
        self._sessions = sessions
        self._services = sessions.services
        self._store = sessions.store
        self._logged = logged
        self._report = report

    def run(self) -> None:
        """Write all rows that can be written."""
        with self._store.writing():
            self._restore_rows()
            self._restore_heads()
            self._restore_sessions()
            self._restore_scopes()
            self._keep_lost_commits()

    def rebuild_effects(self) -> None:
        """Write the rows of effects again that the journals contradict."""
        try:
            self._report.rebuilt += repair_ledgers(self._sessions)
        except OrtetError as error:  # a journal that cannot be read
            self._report.lost.append(f"effects that the journals cannot tell: {error.message}")

    def _restore_rows(self) -> None:
        for (kind, key), value in self._logged.items():
            if kind in (_HEAD, _SESSION, SCOPE):
                continue
            row = self._store.catalog.row(kind, key)
            if row is None or row.value != value:
                self._store.catalog.put_row(kind, key, value)

    def _restore_heads(self) -> None:
        for (kind, name), raw in self._logged.items():
            if kind != _HEAD:
                continue
            oid, head = Oid(raw), self._store.catalog.head(name)
            if head is not None and (head.oid == oid or not self._is_behind(head.oid, oid)):
                continue
            if not self._has_commit(oid):
                self._report.lost.append(f"{name}: its commit {to_hex(oid)[:12]} is in no pack")
                continue
            move = Move(name, head.oid if head else None, oid)
            self._store.catalog.move([move], verb="repair", actor=_ACTOR)
            self._report.branches[name.partition(":")[2]] = to_hex(oid)

    def _is_behind(self, old: Oid, new: Oid) -> bool:
        try:
            return self._store.history.is_ancestor(old, new)
        except OrtetError:
            return not self._has_commit(old)

    def _has_commit(self, oid: Oid) -> bool:
        try:
            self._store.history.state(oid)
        except OrtetError:
            return False
        return True

    # sessions

    def _restore_sessions(self) -> None:
        known = {row.id: row for row in self._sessions.table.all()}
        logged = [
            decode(SessionRow, value)
            for (kind, _), value in self._logged.items()
            if kind == _SESSION
        ]
        for row in logged:
            if row.id not in known:
                self._insert_session(row)
        for row in known.values():
            if self._is_whole(row):
                self._write(_insert_changes(row)[:-1])  # its name and its branch
            else:
                new = self._at_head(row)
                changes = [*_insert_changes(new)[:-1], *SessionTable.move_changes(row, new)]
                self._write(changes, self._start_of(new))
                self._report_session(new)

    def _is_whole(self, row: SessionRow) -> bool:
        """Return True if all events of a session can be read and follow one another."""
        if row.status == ARCHIVED:
            return True
        try:
            line = self._services.load(row).line
            if self._store.catalog.last_seq(row.timeline) < line.base.seq:
                return False
            for span in line.timeline_spans():
                for _ in line.events(span.after, span.upto):
                    pass
        except OrtetError:
            return False
        return True

    def _insert_session(self, row: SessionRow) -> None:
        has_timeline = self._store.catalog.timeline(row.timeline) is not None
        if row.status == ARCHIVED or (has_timeline and self._is_whole(row)):
            start = None if has_timeline else Timeline(row.timeline, "", self._archived_seq(row))
            self._write(_insert_changes(row), start)
            self._report.sessions.append(row.name)
            return
        new = self._at_head(row)
        self._write(_insert_changes(new), self._start_of(new))
        self._report_session(new)

    def _at_head(self, row: SessionRow) -> SessionRow:
        """Return the row on a new timeline behind its last commit.

        The timeline is new, because events after the commit may exist elsewhere.
        """
        row = msgspec.structs.replace(row, status=PAUSED if row.status == ACTIVE else row.status)
        head = self._store.catalog.head(f"{_BRANCH}{row.branch}")
        if head is not None:
            return row_on_new_timeline(self._services, row, head.oid)
        sealed = row.sealed if row.sealed and self._store.objects.has(Oid(row.sealed)) else b""
        return msgspec.structs.replace(row, timeline=self._services.new_id(), sealed=sealed)

    def _archived_seq(self, row: SessionRow) -> int:
        """Return the number of the last event in the bundle of an archived session."""
        value = self._logged.get((ARCHIVE_KIND, row.id))
        if value is None:
            return 0
        record = decode(ArchiveRecord, value)
        path = self._store.bucket.local_path(record.key)
        if path is None:
            return 0
        try:
            with BundleFile(path, BundleLimits()) as file:
                state = decode(
                    State, file.get(decode(Commit, file.get(from_hex(record.commit))).state)
                )
                return decode(JournalHead, file.get(Oid(state.journal))).seq
        except (OrtetError, KeyError):
            return 0

    def _start_of(self, row: SessionRow) -> Timeline:
        """Return the timeline of a new row, without a parent that has lost its events."""
        start = start_of(self._services, row)
        if start.parent and self._store.catalog.last_seq(start.parent) < start.at:
            return Timeline(start.id, "", start.at)
        return start

    def _write(self, rows: list[RowChange], start: Timeline | None = None) -> None:
        self._store.catalog.move(
            [], verb="repair", actor=_ACTOR, rows=rows, timelines=[start] if start else []
        )

    def _report_session(self, row: SessionRow) -> None:
        self._report.sessions.append(row.name)
        self._report.lost.append(
            f"session {row.name}: what came after its last commit was only in the catalog"
        )

    def _restore_scopes(self) -> None:
        """Give shared memory whose timeline is lost a new one, behind its last sealed facts."""
        for (kind, name), value in self._logged.items():
            if kind != SCOPE:
                continue
            row = self._store.catalog.row(SCOPE, name)
            scope = decode(ScopeRow, row.value if row else value)
            if row is not None and self._store.catalog.timeline(scope.timeline) is not None:
                continue
            sealed = scope.sealed if scope.sealed and self._has(scope.sealed) else b""
            seq = decode(JournalHead, self._store.objects.get(Oid(sealed))).seq if sealed else 0
            new = ScopeRow(self._services.new_id(), sealed)
            self._write([RowChange(SCOPE, name, encode(new))], Timeline(new.timeline, "", seq))
            self._report.lost.append(f"memory of {name}: facts that no commit holds")

    def _has(self, oid: bytes) -> bool:
        return self._store.objects.has(Oid(oid))

    # commits that nothing refers to

    def _keep_lost_commits(self) -> None:
        commits = dict(self._commits())
        parents = {parent for commit in commits.values() for parent in commit.parents}
        reached = set(self._reached(commits))
        names = not self._sessions.table.all()
        for oid in sorted(commits.keys() - parents - reached):
            branch = f"lost/{to_hex(oid)[:12]}"
            if self._store.catalog.head(_BRANCH + branch) is None:
                move = Move(_BRANCH + branch, None, oid)
                self._store.catalog.move([move], verb="repair", actor=_ACTOR)
            self._report.found[branch] = to_hex(oid)
            if names:
                self._found_session(branch, oid)

    def _commits(self) -> Iterator[tuple[Oid, Commit]]:
        packs = self._store.objects.pack_set
        packs.refresh()
        for oid, kind in packs.iter_range(bytes(32), b"\xff" * 32):
            if kind == Kind.COMMIT:
                try:
                    yield oid, decode(Commit, self._store.objects.get(oid))
                except OrtetError as error:
                    self._report.lost.append(f"commit {to_hex(oid)[:12]}: {error.message}")

    def _reached(self, commits: Mapping[Oid, Commit]) -> Iterator[Oid]:
        stack = [head.oid for head in self._store.refs.branches()]
        stack += [head.oid for head in self._store.refs.tags()]
        seq = 0
        while ops := self._store.catalog.ops(after=seq):
            stack += [Oid(oid) for op in ops for oid in (op.old, op.new) if oid]
            seq = ops[-1].seq
        seen: set[Oid] = set()
        while stack:
            oid = stack.pop()
            if oid not in seen and oid in commits:
                seen.add(oid)
                stack += commits[oid].parents
        return iter(seen)

    def _found_session(self, branch: str, oid: Oid) -> None:
        """Make a session of a commit whose session nobody knows any more."""
        if not self._store.history.state(oid).journal:
            return
        id_ = self._services.new_id()
        row = SessionRow(
            id=id_,
            name=f"found-{to_hex(oid)[:12]}",
            agent="default",
            timeline=self._services.new_id(),
            branch=branch,
            status=PAUSED,
            created=self._store.clock.now_ns(),
            family=id_,
        )
        new = row_on_new_timeline(self._services, row, oid)
        self._write(_insert_changes(new), self._start_of(new))
        self._report_session(new)


def _insert_changes(row: SessionRow) -> list[RowChange]:
    """Return the rows of a session, the session row last. Some of them may exist already."""
    changes = SessionTable.insert_changes(row)
    return [msgspec.structs.replace(change, expect=None) for change in changes]
