"""The session verbs that commit and move: commit, restore, undo, fork, swarm, merge, adopt, land.

State and files move together. Each verb commits the present state first, so that no uncommitted
work is lost. Effects stay done and budget stays spent after any move.
"""

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
from ortet.sessions.history.restore_report import effects_since_commit, unavailable_secrets
from ortet.sessions.memory.facts import publish
from ortet.sessions.table import SessionRow, SessionTable
from ortet.store.commit import check_message
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.results import (
    ALL_PARTS,
    MACHINE_PARTS,
    RestoreParts,
    RestoreResult,
    check_parts,
)

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
    """The verbs of Session that read or move its branch."""

    _branch: BranchWriter
    _head_image: bytes

    @property
    @abstractmethod
    def machine(self) -> Workspace: ...

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo:
        """Commit session state and files together.

        Args:
            message: the commit message.
            allow_secrets: commit even if the commit would hold a known secret.
            durable: where the commit is stored on return, in a store that several hosts share.
                "remote" is the bucket. "local" is the disk of this host, with a later upload; until
                then other hosts cannot read the commit, and it is lost with the disk. None takes
                the setting of the store.

        Returns:
            The new commit, or the head if there is nothing new.

        Raises:
            Refused: "secret_found" if the commit would hold a known secret.
        """
        check_text(message=message)
        require(FLAG, allow_secrets=allow_secrets)
        with self._store.secrets.allow(allow_secrets), self._store.objects.with_durability(durable):
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
        """Publish committed facts to the shared memory scopes."""
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
        """Follow the newest facts of shared memory scopes from now on.

        A restored session and each fork see the shared facts of their commit, until they publish a
        fact themselves.
        """
        self._check_open()
        if self._row.beliefs is not None:
            self._participant.dirty = self._participant.dirty or bool(self._row.beliefs)
            self._set_shared_memory(None)
            self._participant.dirty = self._participant.dirty or bool(self.shared())

    def _set_shared_memory(self, memory: bytes | None) -> None:
        """Use the shared facts of `memory`, or always the newest ones if it is None."""
        if self._row.beliefs != memory:
            row = msgspec.structs.replace(self._row, beliefs=memory)
            self._store.catalog.move(
                [],
                verb="refresh",
                lease=self.held_lease.lease,
                rows=[SessionTable.update_change(row)],
            )
            self._set_row(row)

    @contextmanager
    def _follow_shared_memory(self) -> Iterator[None]:
        """Keep following shared memory after merge or adopt.

        A session that saw the newest shared facts must not fall back to those of the adopted
        commit.
        """
        live = self._participant.follow_shared_memory = self._row.beliefs is None
        try:
            yield
        finally:
            self._participant.follow_shared_memory = False
        self._publish()
        if live:  # also if the session did not move
            self._set_shared_memory(None)

    def _record(self, message: str) -> CommitInfo:
        files = self._workspace()
        if files is not None:
            return files.commit(message)
        return self._record_state(message)

    def commit_all_events(self, message: str) -> CommitInfo:
        """Commit even if only lifecycle or environment events are new.

        If the workspace directory no longer exists, commit the session state with the head's files.
        """
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
            return self._store.history.info(at)
        with self._store.writing():
            check_message(self._store.objects, message)
            head = self._store.history.state(at) if at else State()
            journal = self._participant.seal_journal(head.journal)
            state = State(journal, self._participant.seal_memory(head.memory), self._head_image)
            info = self._branch.record(state, message, lease=self.held_lease.lease)
            self._participant.committed()
        return info

    def restore(
        self, ref: str, *, only: Collection[str] | None = None, restart: bool = False
    ) -> RestoreResult:
        """Restore a commit: session state, files and processes.

        Uncommitted work is committed first. Effects stay done and budget stays spent. Processes are
        restored with their files; if only files are restored, the running processes continue.

        Args:
            ref: the commit to restore.
            only: restore only these of "mind", "files" and "processes".
            restart: start services that ran at `ref` and do not run now.

        Returns:
            A report, with the effects since that commit and differences of the environment.
        """
        self._check_open()
        parts = check_parts(only)
        target = self._store.refs.resolve(ref, default_branch=self._row.branch)
        if restart and (files := self._workspace()) is not None:
            files.programs.check_restart(target)
        found = self._restore_commit(target, "restore", parts, may_be_unreferenced=True)
        if not restart or self._files is None:
            return found
        report = self._files.programs.restart(target, found.files)
        return msgspec.structs.replace(found, files=report)

    def rewind(self, n: int = 1) -> RestoreResult:
        """Restore the n-th ancestor of the head on this branch, state and files together.

        Raises:
            NotFound: "no_commit" if the session has no commit yet.
        """
        self._check_open()
        require(POSITIVE_COUNT, n=n)
        head = self.head
        if head is None:
            raise NotFound("no_commit", f"{self.name!r} has no commit yet: commit first")
        target = self._store.history.nth_parent(from_hex(head.oid), n)
        return self._restore_commit(target, "rewind", ALL_PARTS)

    def undo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Undo the last n operations that moved the branch, state and files together.

        Uncommitted files count as the first operation. Without files, uncommitted events do.
        Effects stay done; the report lists them. `redo` reverts an undo.

        Args:
            n: the number of operations.
            dry_run: return what would happen, without changing anything.
        """
        return self._undo_or_redo("undo", n, dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Redo the last n undone operations, unless another operation followed the undo.

        Args:
            n: the number of operations.
            dry_run: return what would happen, without changing anything.
        """
        return self._undo_or_redo("redo", n, dry_run)

    def _undo_or_redo(self, direction: UndoDirection, n: int, dry_run: bool) -> UndoResult:
        from ortet.workspaces.undo import UndoFiles, plan_undo

        require(POSITIVE_COUNT, n=n)
        require(FLAG, dry_run=dry_run)
        self._check_open()
        self._require_live(direction)
        store, branch, machine = self._store, self._row.branch, self._workspace()
        files = (
            UndoFiles(machine.files.current_image(), machine.files.branch.image_at)
            if machine is not None
            else None
        )
        found = plan_undo(store, branch, direction, n, files=files, dirty=self._participant.dirty)
        if dry_run:
            self._flush_writes()
            return found.preview(store, branch, self._participant)
        was = self.commit(found.message).oid
        restored = self._restore_commit(found.target, direction, ALL_PARTS, detail=found.detail)
        return found.result(self._participant, from_hex(was), restored, kept=found.dirty)

    def _restore_commit(
        self,
        target: Oid,
        verb: str,
        parts: RestoreParts,
        *,
        detail: str = "",
        may_be_unreferenced: bool = False,
    ) -> RestoreResult:
        self._budget.count()  # if the process is killed, its lost time counts from here
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
                report = files.files.checkout_files(target, processes=processes)
        elif target != safety and "mind" in parts:
            self._restore_state(
                target,
                verb,
                detail,
                move_branch="files" in parts,
                may_be_unreferenced=may_be_unreferenced,
            )
        elif "mind" in parts:
            self._set_shared_memory(self._store.history.state(target).memory)
        deeds = effects_since_commit(self._store, self._row, target)
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
        """Hook: end what belongs only to the state that the session leaves.

        That state is committed.
        """

    @retry_on_sweep
    def _restore_files(
        self, target: Oid, verb: str, detail: str, *, processes: bool, may_be_unreferenced: bool
    ) -> Report:
        with self.machine.files.exclusive_access():
            return self.machine.files.restore_commit(
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
        with self._store.writing():
            if may_be_unreferenced:
                pin_commit(
                    self._store, target, reachable_from=self._branch.head, branch=self._row.branch
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
                self._head_image = self._store.history.state(target).machine
            else:
                rows, lines, lease = together.rows, together.timelines, together.lease
                self._store.catalog.move([], verb=verb, lease=lease, rows=rows, timelines=lines)
            self._participant.finish_move()
            if not move_branch:
                self._participant.dirty = True

    def fork(self, n: int = 1, *, machine: bool = True) -> list[Session]:
        """Create n sessions that continue from the present state.

        The present state is committed first. Either all n forks are created or none.

        Args:
            n: the number of forks.
            machine: False forks only the session state, without files.
        """
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
            self._budget.return_unspent()  # return reserved budget so that the forks can use it
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
        """Run n attempts at a task, score them and adopt the best.

        Each attempt runs in a process and a fork of its own. An attempt that fails, dies or exceeds
        `timeout` does not affect the others. A swarm whose process was killed continues when it is
        called again with the same `name`.

        Args:
            task: an importable function `task(session, i)`, or a command for the machine.
            n: the number of attempts.
            score: a function or a command; a higher score is better. The score of a command is the
                last number that it prints, else 0 for exit code 0 and less for other codes. None
                takes what the task returned or printed.
            keep: 1 adopts the best attempt. k > 1 leaves the k best as sessions. 0 keeps none.
                "merge" merges all attempts, "merge:K" the K best.
            parallel: the number of attempts at the same time.
            budget: the share of the family's budget for each attempt.
            stop_when: a score, or a function called after each attempt; if reached, the swarm ends.
            timeout: the limit for one attempt, in seconds.
            harvest: learn the facts that the losers learned.
            losers: "drop" removes attempts that are not kept, "keep" leaves them as sessions.
            name: the name of the swarm, for continuing it.
            at: the commit to start from; the present state by default.
            interrupted: "again" repeats the attempts of a killed process, "count" counts them as
                failed.
            on: "ray" or "ray://HOST:PORT" runs the attempts on Ray nodes.
            needs: the resources of one attempt on Ray, for example {"cpu": 2}.
            progress: called with the swarm as attempts proceed.
            halt: lets another thread end the swarm.

        Returns:
            The swarm with all attempts and their scores.
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
        return self._sessions.swarms.run(cast("Session", self), wish)

    def merge(
        self, other: SessionReader | Ref, *, message: str = "", favor: Favor | None = None
    ) -> SessionMergeResult:
        """Merge another session, branch or commit into this session, as one commit.

        Conversation, plan and processes stay ours. Facts, lessons, decisions and artifacts are
        united, and files are merged. The report lists contradictions.

        Args:
            other: an open session, or a branch, tag or commit.
            message: the commit message; empty for a default.
            favor: "ours" or "theirs" settles file conflicts for that side.

        Raises:
            Conflict: "merge_conflict" if files conflict. Nothing has changed.
        """
        from ortet.sessions.history.merge import merge

        check_text(message=message)
        self._check_open()
        self._drain_inbox()
        self._require_live("merge")
        with self._follow_shared_memory():
            return merge(self, self._sessions, other, message=message, favor=favor)

    def adopt(self, other: SessionReader | Ref) -> RestoreResult:
        """Replace state and files by those of another session, branch or commit.

        The present state is committed first and stays in the reflog. Effects stay done. If `other`
        has no files, only its state is adopted.
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
        """Hook: in a replay, refuse the verb or make the session live."""

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply the file changes of this session to its original directory, all or nothing.

        Args:
            favor: "ours" or "theirs" settles every conflict for that side.
        """
        return self.machine.land(favor=favor)

    def diff(self, ref: str = "HEAD", other: str | None = None) -> list[TreeChange]:
        """Return the file changes from `ref` to `other`.

        Args:
            ref: the older side; the head by default.
            other: the newer side. None means the present files, committed or not.
        """
        return self.machine.diff(ref, other)
