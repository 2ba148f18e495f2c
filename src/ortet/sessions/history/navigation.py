"""The verbs of a session that lead to another state of mind and files: commit, restore, fork."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

import msgspec

from ortet._util.validation import FLAG, POSITIVE_COUNT, check_text, require
from ortet.errors import NotFound
from ortet.history.commits import CommitInfo
from ortet.history.records import State
from ortet.ids import Oid, from_hex, to_hex
from ortet.machines.base import Report
from ortet.sessions.environment.environments import environment_at_commit, recorded_environments
from ortet.sessions.environment.external_state import surviving_collaborations
from ortet.sessions.environment.tracker import EnvironmentMixin
from ortet.sessions.history.commit import BranchWriter
from ortet.sessions.history.lapsed import effects_since_commit, unavailable_secrets
from ortet.sessions.memory.believing import publish
from ortet.sessions.results import (
    ALL_PARTS,
    MACHINE_PARTS,
    RestoreParts,
    RestoreResult,
    check_parts,
)
from ortet.sessions.table import SessionRow, SessionTable
from ortet.store.commit import check_message
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep

if TYPE_CHECKING:
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.merge.text_merge import Favor
    from ortet.history.refs import Ref
    from ortet.objects.store import Durability
    from ortet.sessions.history.merge import SessionMergeResult
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.sessions.swarm_api import (
        Interrupted,
        Losers,
        ProgressCallback,
        SwarmResult,
        SwarmStopSignal,
        Task,
    )
    from ortet.workspaces.undo import UndoDirection, UndoResult
    from ortet.workspaces.workspace import Workspace


class NavigationMixin(EnvironmentMixin):
    """The half of Session that knows its branch."""

    _branch: BranchWriter
    _head_image: bytes

    @property
    @abstractmethod
    def machine(self) -> Workspace: ...

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo:
        """Record mind and files together; with nothing new, the head is returned. One that would
        hold a secret that is known is Refused("secret_found"), unless you allow it.

        `durable` is where it is on return, in a store that hosts share: "remote", in its bucket, or
        "local", on this host's disk, from where it is uploaded later; None: as the store was
        opened. Until then other hosts cannot read it, and it is lost with this disk."""
        check_text(message=message)
        require(FLAG, allow_secrets=allow_secrets)
        with self._hub.allow_secrets(allow_secrets), self._hub.objects.with_durability(durable):
            return self._commit(message)

    def _commit(self, message: str) -> CommitInfo:
        self._check_open()
        self._drain_inbox()
        began = self._now()
        self._before_commit()
        info = self._record(message)
        self._publish()
        now = self._now()
        self._auto_commit.committed(now, now - began)
        return info

    def _publish(self, upto: int | None = None) -> None:
        """Tell others what was learned for them, and is committed."""
        ledger = self._writer
        seq = ledger.event_log.base.seq if upto is None else upto
        lease = self.held_lease.lease
        self._set_row(
            publish(
                self._sessions,
                self._row,
                event_log=ledger.event_log,
                state=ledger.state,
                upto=seq,
                lease=lease,
            )
        )

    def _set_row(self, row: SessionRow) -> None:
        self._row = self._participant.row = row

    def refresh(self) -> None:
        """Believe what the memories that it shares say now: a session that was restored, and each
        fork, believes what they said then, until it tells them something itself."""
        self._check_open()
        if self._row.beliefs is not None:
            self._participant.dirty = self._participant.dirty or bool(self._row.beliefs)
            self._set_shared_memory(None)
            self._participant.dirty = self._participant.dirty or bool(self.shared())

    def _set_shared_memory(self, memory: bytes | None) -> None:
        """Of what is shared: as that Memory says, or all there is."""
        if self._row.beliefs != memory:
            row = msgspec.structs.replace(self._row, beliefs=memory)
            self._hub.catalog.move(
                [],
                verb="refresh",
                lease=self.held_lease.lease,
                rows=[SessionTable.update_change(row)],
            )
            self._set_row(row)

    @contextmanager
    def _follow_shared_memory(self) -> Iterator[None]:
        """Who knew all there is goes on to: what is taken over from another is no way back."""
        live = self._participant.follow_shared_memory = self._row.beliefs is None
        try:
            yield
        finally:
            self._participant.follow_shared_memory = False
        self._publish()
        if live:  # also where nothing moved
            self._set_shared_memory(None)

    def _record(self, message: str) -> CommitInfo:
        files = self._workspace()
        if files is not None:
            return files.commit(message)
        return self._record_state(message)

    def commit_all_events(self, message: str) -> CommitInfo:
        """The same with what alone is no reason for a commit. When the directory is gone, files
        are those of the head."""
        self._participant.dirty = (
            self._participant.dirty or self._writer.tip.seq != self.event_log.base.seq
        )
        try:
            return self.commit(message)
        except NotFound as error:
            if error.kind != "no_directory":
                raise
            return self._record_state(message)

    @retry_on_sweep
    def _record_state(self, message: str) -> CommitInfo:
        at = self._branch.head
        if at is not None and self._participant.is_unchanged(at, self._head_image):
            return self._hub.history.info(at)
        with self._hub.writing():
            check_message(self._hub.objects, message)
            head = self._hub.history.state(at) if at else State()
            journal = self._participant.seal_journal(head.journal)
            state = State(journal, self._participant.seal_memory(head.memory), self._head_image)
            info = self._branch.record(state, message, lease=self.held_lease.lease)
            self._participant.committed()
        return info

    def restore(
        self, ref: str, *, only: Collection[str] | None = None, restart: bool = False
    ) -> RestoreResult:
        """Go to a commit: mind, files and processes, or `only` some; what is uncommitted is kept
        first. Processes come with the files they were frozen with; those that run stay where only
        files are asked for. With `restart`, services that ran then and do not run now are started.

        Deeds stay done and money stays spent: the report says which deeds.
        """
        self._check_open()
        parts = check_parts(only)
        target = self._hub.refs.resolve(ref, default_branch=self._row.branch)
        if restart and (files := self._workspace()) is not None:
            files.check_restart(target)
        found = self._restore_commit(target, "restore", parts, may_be_unreferenced=True)
        if not restart or self._files is None:
            return found
        report = self._files.restart(target, found.files)
        return msgspec.structs.replace(found, files=report)

    def rewind(self, n: int = 1) -> RestoreResult:
        """Restore the n-th commit back on this branch, mind and files together."""
        self._check_open()
        require(POSITIVE_COUNT, n=n)
        head = self.head
        if head is None:
            raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
        target = self._hub.history.nth_parent(from_hex(head.oid), n)
        return self._restore_commit(target, "rewind", ALL_PARTS)

    def undo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Go back to before the last n things that moved this session's branch, mind and files
        together; files that are not committed are the first of them, or without files what was
        said since. Deeds stay done: the report says which. `redo` goes forth again."""
        return self._undo_or_redo("undo", n, dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Do the last n things again that were undone, unless something else was done since."""
        return self._undo_or_redo("redo", n, dry_run)

    def _undo_or_redo(self, direction: UndoDirection, n: int, dry_run: bool) -> UndoResult:
        from ortet.workspaces.undo import UndoFiles, plan_undo

        require(POSITIVE_COUNT, n=n)
        require(FLAG, dry_run=dry_run)
        self._check_open()
        self._require_live(direction)
        hub, branch, machine = self._hub, self._row.branch, self._workspace()
        files = (
            UndoFiles(machine.current_image(), machine.image_at) if machine is not None else None
        )
        found = plan_undo(hub, branch, direction, n, files=files, dirty=self._participant.dirty)
        if dry_run:
            self._flush_writes()
            return found.preview(hub, branch)
        was = self.commit(found.message).oid
        restored = self._restore_commit(found.target, direction, ALL_PARTS, detail=found.detail)
        return found.result(hub, from_hex(was), restored, kept=found.dirty)

    def _restore_commit(
        self,
        target: Oid,
        verb: str,
        parts: RestoreParts,
        *,
        detail: str = "",
        may_be_unreferenced: bool = False,
    ) -> RestoreResult:
        self._budget.count()  # a killed process's time is counted from here on
        safety = from_hex(self.commit(f"before {verb}").oid)
        files, report = self._workspace(), Report()
        if target != safety and "mind" in parts:
            self._before_move(verb)
        processes = "processes" in parts
        if target != safety and files is not None and parts & MACHINE_PARTS:
            if "mind" in parts:
                report = self._restore_files(
                    target,
                    verb,
                    detail,
                    processes=processes,
                    may_be_unreferenced=may_be_unreferenced,
                )
            else:
                report = files.checkout_files(target, processes=processes)
        elif target != safety and "mind" in parts:
            self._restore_state(
                target,
                verb,
                detail,
                move_branch="files" in parts,
                may_be_unreferenced=may_be_unreferenced,
            )
        elif "mind" in parts:
            self._set_shared_memory(self._hub.history.state(target).memory)
        deeds = effects_since_commit(self._hub, self._row, target)
        around = self._differences_after_restore(with_state="mind" in parts)
        then = (
            recorded_environments(self)[1]
            if "mind" in parts
            else environment_at_commit(self._sessions, target)
        )
        secrets = unavailable_secrets(self._sessions, target, then)
        return RestoreResult(
            to_hex(target), report, deeds, surviving_collaborations(self, deeds), around, secrets
        )

    def _before_move(self, verb: str) -> None:
        """What belongs to the state that it is in, and to no other: that is committed."""

    @retry_on_sweep
    def _restore_files(
        self, target: Oid, verb: str, detail: str, *, processes: bool, may_be_unreferenced: bool
    ) -> Report:
        with self.machine.exclusive_access():
            return self.machine.restore_commit(
                target,
                verb,
                processes=processes,
                detail=detail,
                may_be_unreferenced=may_be_unreferenced,
            )

    @retry_on_sweep
    def _restore_state(
        self,
        target: Oid,
        verb: str,
        detail: str = "",
        *,
        move_branch: bool,
        may_be_unreferenced: bool = False,
    ) -> None:
        with self._hub.writing():
            if may_be_unreferenced:
                pin_commit(
                    self._hub, target, reachable_from=self._branch.head, branch=self._row.branch
                )
            together = self._participant.prepare_move(target)
            if move_branch:
                self._branch.move(
                    target,
                    verb,
                    detail or to_hex(target),
                    lease=together.lease,
                    rows=together.rows,
                    timelines=together.timelines,
                    appends=together.appends,
                )
                self._branch.refresh_head()
                self._head_image = self._hub.history.state(target).machine
            else:
                rows, lines, lease = together.rows, together.timelines, together.lease
                self._hub.catalog.move([], verb=verb, lease=lease, rows=rows, timelines=lines)
            self._participant.finish_move()
            if not move_branch:
                self._participant.dirty = True

    def fork(self, n: int = 1, *, machine: bool = True) -> list[Session]:
        """n sessions that go on from here, with minds of their own, and files unless `machine` is
        False; all or none."""
        from ortet.sessions.history.forking import fork_files, fork_state_only

        require(FLAG, machine=machine)
        require(POSITIVE_COUNT, n=n)
        self._check_open()
        self._drain_inbox()
        files = self._workspace()
        point = self._branch.head if files is None else None
        fork = fork_files if machine and files is not None else fork_state_only
        with files.announce_forks(n) if fork is fork_files and files is not None else nullcontext():
            if point is None or not self._participant.is_unchanged(point, self._head_image):
                point = from_hex(self.commit("fork point").oid)
            self._budget.return_unspent()  # so that the forks find it
            forks = fork(self._sessions, self, point, n)
        for one in forks:
            one.inherit_variables(self)
        return forks

    def swarm(
        self,
        task: Task | None = None,
        n: int = 8,
        *,
        score: Task | None = None,
        keep: int | str = 1,
        parallel: int = 2,
        budget: Mapping[str, float] | None = None,
        stop_when: Callable[[SwarmResult], bool] | float | None = None,
        timeout: float | None = None,
        harvest: bool = False,
        losers: Losers = "drop",
        name: str | None = None,
        at: Ref | None = None,
        interrupted: Interrupted = "again",
        on: str | None = None,
        needs: Mapping[str, float] | None = None,
        progress: ProgressCallback | None = None,
        halt: SwarmStopSignal | None = None,
    ) -> SwarmResult:
        """n attempts at a task from here, or from the commit `at`: each in a process and a fork of
        its own, `parallel` at once; scored, and the best adopted.

        `task(session, i)` is a function that can be imported, or a command for the machine. `score`
        likewise, higher is better; a command's is the number it prints last, else 0 for exit code 0
        and less for others; without one it is what the task returned or printed. `keep`: 1 adopts
        the best, k > 1 leaves the k best as sessions, 0 none, "merge" (or "merge:K") brings all (or
        the K best) together here. `budget` is each attempt's share of the family's; `stop_when`, a
        score or asked after each, ends the others. An attempt that fails, dies or takes longer than
        `timeout` seconds costs itself only. `harvest`: learn what the losers learned. `on`
        "ray" or "ray://HOST:PORT" they run on nodes that have what one `needs`, as {"cpu": 2}.

        A swarm whose process was killed goes on when it is called again with the same `name`;
        attempts that were `interrupted` are repeated, or "count". `halt`: another thread ends it.
        """
        from ortet.sessions.swarm_api import SwarmRequest

        wish = SwarmRequest(
            task=task,
            n=n,
            score=score,
            keep=keep,
            parallel=parallel,
            budget=budget,
            stop_when=stop_when,
            timeout=timeout,
            harvest=harvest,
            losers=losers,
            name=name,
            at=at,
            interrupted=interrupted,
            on=on,
            needs=needs,
            progress=progress,
            halt=halt,
        )
        self._check_open()
        self._require_live("swarm")
        return self._hub.swarms.run(cast("Session", self), wish)

    def merge(
        self, other: SessionReader | Ref, *, message: str = "", favor: Favor | None = None
    ) -> SessionMergeResult:
        """Bring in what another session, branch or commit knows and changed: one commit of both.

        Conversation, plan and processes stay ours; facts, lessons, decisions and artifacts are
        united, files merged. Contradictions are in the report; file conflicts are
        Conflict("merge_conflict"), and nothing was changed, unless `favor` says who wins.
        """
        from ortet.sessions.history.merge import merge

        check_text(message=message)
        self._check_open()
        self._drain_inbox()
        self._require_live("merge")
        with self._follow_shared_memory():
            return merge(self, self._sessions, other, message=message, favor=favor)

    def adopt(self, other: SessionReader | Ref) -> RestoreResult:
        """Take the state of another session, branch or commit, mind and files: it is ours now.

        What was here is committed first and stays in the reflog; deeds stay done. Of a session
        without files only the mind is taken.
        """
        from ortet.sessions.history.merge import resolve_merge_source

        self._check_open()
        self._require_live("adopt")
        found = resolve_merge_source(self, self._sessions, other)
        mind_only = self._workspace() is not None and not found.has_files
        with self._follow_shared_memory():
            parts = frozenset({"mind"}) if mind_only else ALL_PARTS
            report = self._restore_commit(
                found.commit, "adopt", parts, may_be_unreferenced=found.row is None
            )
            if mind_only:
                self.commit(f"adopted {found.label}")
        return report

    def _require_live(self, verb: str) -> None:
        """A session that is replayed stays where it is."""

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply what this session changed to the original directory, all or nothing."""
        return self.machine.land(favor=favor)

    def diff(self, ref: str = "HEAD", other: str | None = None) -> list[TreeChange]:
        """Files, from `ref` to `other`, or to the present ones when `other` is not given."""
        return self.machine.diff(ref, other)
