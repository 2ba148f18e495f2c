"""Commits and moves of an open session: commit, restore, rewind, undo, merge and adopt.

State and files move together. Each verb commits the present state first, so that no uncommitted
work is lost. Effects stay done and budget stays spent after any move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from ortet._util.validation import FLAG, POSITIVE_COUNT, check_text, require
from ortet.errors import NotFound, OrtetError
from ortet.history.commits import CommitInfo
from ortet.history.records import State
from ortet.history.refs import Ref, ref_text
from ortet.ids import Oid, from_hex, to_hex
from ortet.journal.conversation.tool_calls import lost_result
from ortet.machines.base import Report
from ortet.sessions.context import SessionContext
from ortet.sessions.environment.environments import environment_at_commit, recorded_environments
from ortet.sessions.environment.external_state import surviving_collaborations
from ortet.sessions.environment.handover import HandoverWriter
from ortet.sessions.environment.tracker import EnvironmentTracker
from ortet.sessions.history.commit import BranchWriter
from ortet.sessions.history.participants import OpenSessionParticipant
from ortet.sessions.history.restore_report import effects_since_commit, unavailable_secrets
from ortet.sessions.machine.session_files import SessionFiles
from ortet.sessions.memory.facts import publish_context, set_shared_memory
from ortet.sessions.writing.pipeline import VerbPipeline, exclusive_verb
from ortet.store.commit import check_message
from ortet.store.pin_commit import pin_commit
from ortet.store.sweep_retry import retry_on_sweep
from ortet.workspaces.files import RECORDED_VERBS
from ortet.workspaces.results import (
    ALL_PARTS,
    MACHINE_PARTS,
    RestoreParts,
    RestoreResult,
    check_parts,
)

if TYPE_CHECKING:
    from ortet.objects.placement import Durability
    from ortet.workspaces.undo import UndoDirection, UndoResult, UndoUnit

UNDO_UNIT = POSITIVE_COUNT._replace(
    description="'move' or 'turn'", accepts=lambda value: value in ("move", "turn")
)

_RELEASE_MESSAGE = "let go on this host"
"""Message of the commit that a host makes before it releases a session with private files."""


class Navigation:
    """Commits an open session and moves its branch.

    `head_image` is the machine image of the head commit; it is used while no workspace is open.
    `keeps_tool_calls` is True after a replay: the next step gives the results of open tool calls.
    """

    def __init__(
        self,
        context: SessionContext,
        pipeline: VerbPipeline,
        branch: BranchWriter,
        participant: OpenSessionParticipant,
        files: SessionFiles,
        *,
        environment: EnvironmentTracker,
        handover: HandoverWriter,
        head_image: bytes,
    ) -> None:
        self.store = context.store
        self.branch = branch
        self.participant = participant
        self.head_image = head_image
        self.keeps_tool_calls = False
        self._context = context
        self._pipeline = pipeline
        self._files = files
        self._environment = environment
        self._handover = handover

    @property
    def context(self) -> SessionContext:
        return self._context

    @property
    def pipeline(self) -> VerbPipeline:
        return self._pipeline

    @property
    def files(self) -> SessionFiles:
        return self._files

    @exclusive_verb
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
        head = self._pipeline.replayed_head("commit")
        if head is not None:
            return head
        check_text(message=message)
        require(FLAG, allow_secrets=allow_secrets)
        with self.store.secrets.allow(allow_secrets), self.store.objects.with_durability(durable):
            return self._commit(message)

    def _commit(self, message: str) -> CommitInfo:
        self._pipeline.check_open()
        self._pipeline.drain_inbox()
        began = self._context.now()
        for hook in self._context.hooks:
            hook.before_commit()
        info = self._record(message)
        self.publish()
        now = self._context.now()
        self._pipeline.auto_commit.committed(now, now - began)
        return info

    @exclusive_verb
    def commit_all_events(self, message: str) -> CommitInfo:
        """Commit even if only lifecycle or environment events are new.

        If the workspace directory no longer exists, commit the session state with the head's files.
        """
        self._context.dirty = (
            self._context.dirty or self._pipeline.writer.tip.seq != self._context.event_log.base.seq
        )
        try:
            return self.commit(message)
        except NotFound as error:
            if error.kind != "no_directory":
                raise
            return self._record_state(message)

    def _record(self, message: str) -> CommitInfo:
        files = self._files.workspace()
        if files is not None:
            return files.commit(message)
        return self._record_state(message)

    @retry_on_sweep
    def _record_state(self, message: str) -> CommitInfo:
        at = self.branch.head
        if at is not None and self.participant.is_unchanged(at, self.head_image):
            return self.store.history.info(at)
        with self.store.writing():
            check_message(self.store.objects, message)
            head = self.store.history.state(at) if at else State()
            with self.participant.exclusive():
                journal = self.participant.seal_journal(head.journal)
                state = State(journal, self.participant.seal_memory(head.memory), self.head_image)
                info = self.branch.record(state, message, lease=self._pipeline.held_lease.lease)
                self.participant.committed()
        return info

    def reload(self, head_image: bytes) -> None:
        """Read the head again, after a verb was interrupted."""
        self.participant.reset()
        self.branch.refresh_head()
        self.head_image = head_image
        if self._files.attached is not None:
            self._files.attached.files.reload()
        self._context.dirty = True

    @exclusive_verb
    def restore(
        self, ref: Ref, *, only: Collection[str] | None = None, restart: bool = False
    ) -> RestoreResult:
        """Restore a commit: session state, files and processes.

        Uncommitted work is committed first. Effects stay done and budget stays spent. Processes are
        restored with their files; if only files are restored, the running processes continue.

        Args:
            ref: the commit to restore: its id, a branch or tag, or a commit record.
            only: restore only these of "mind", "files" and "processes".
            restart: start services that ran at `ref` and do not run now.

        Returns:
            A report, with the effects since that commit and differences of the environment.
        """
        self._pipeline.check_open()
        parts = check_parts(only)
        target = self.store.refs.resolve(ref_text(ref), default_branch=self._context.row.branch)
        if restart and (files := self._files.workspace()) is not None:
            files.programs.check_restart(target)
        found = self.restore_commit(target, "restore", parts, may_be_unreferenced=True)
        attached = self._files.attached
        if not restart or attached is None:
            return found
        report = attached.programs.restart(target, found.files)
        return msgspec.structs.replace(found, files=report)

    @exclusive_verb
    def rewind(self, n: int = 1) -> RestoreResult:
        """Restore the n-th ancestor of the head on this branch, state and files together.

        Raises:
            NotFound: "no_commit" if the session has no commit yet.
        """
        self._pipeline.check_open()
        require(POSITIVE_COUNT, n=n)
        head = self._context.head
        if head is None:
            raise NotFound("no_commit", f"{self._context.name!r} has no commit yet: commit first")
        target = self.store.history.nth_parent(from_hex(head.oid), n)
        return self.restore_commit(target, "rewind", ALL_PARTS)

    def undo(self, n: int = 1, *, by: UndoUnit = "move", dry_run: bool = False) -> UndoResult:
        """Undo the last n operations that moved the branch, state and files together.

        An operation that changed neither files nor conversation is not counted. Uncommitted files
        count as the first operation. Without files, uncommitted events do. Effects stay done; the
        report lists them. `redo` reverts an undo.

        Args:
            n: the number of operations, or of turns.
            by: "turn" restores the state before the n-th last message of the user, with the files
                of the last commit before it.
            dry_run: return what would happen, without changing anything.

        Raises:
            NotFound: "nothing_to_undo" if there are fewer operations or turns.
        """
        require(UNDO_UNIT, by=by)
        return self._undo_or_redo("undo", n, dry_run, by=by)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Redo the last n undone operations, unless another operation followed the undo.

        Args:
            n: the number of operations.
            dry_run: return what would happen, without changing anything.
        """
        return self._undo_or_redo("redo", n, dry_run)

    @exclusive_verb
    @retry_on_sweep
    def _undo_or_redo(
        self, direction: UndoDirection, n: int, dry_run: bool, *, by: UndoUnit = "move"
    ) -> UndoResult:
        from ortet.sessions.history.event_commit import find_turn_start
        from ortet.workspaces.undo import UndoFiles, plan_undo

        require(POSITIVE_COUNT, n=n)
        require(FLAG, dry_run=dry_run)
        self._pipeline.check_open()
        self._pipeline.ensure_live(direction)
        store, branch, machine = self.store, self._context.row.branch, self._files.workspace()
        files = (
            UndoFiles(machine.files.current_image(), machine.files.branch.image_at)
            if machine is not None
            else None
        )
        dirty, context = self._context.dirty, self._context
        with store.writing():  # until the head moves, only its id refers to the start of a turn
            turn = None
            if by == "turn":
                context.flush()
                log = self._pipeline.writer.event_log
                turn = find_turn_start(context.services, context.row, log, n)
            found = plan_undo(store, branch, direction, n, files=files, dirty=dirty, turn=turn)
            if dry_run:
                context.flush()
                return found.preview(store, branch, self.participant)
            was = self.commit(found.message).oid
            restored = self.restore_commit(found.target, direction, ALL_PARTS, detail=found.detail)
            return found.result(self.participant, from_hex(was), restored, kept=found.dirty)

    @exclusive_verb
    def restore_commit(
        self,
        target: Oid,
        verb: str,
        parts: RestoreParts,
        *,
        detail: str = "",
        may_be_unreferenced: bool = False,
    ) -> RestoreResult:
        """Commit the present state, then move to `target`.

        Args:
            target: the commit to restore.
            verb: the name of the operation, for the reflog.
            parts: the parts to restore.
            detail: the detail of the reflog entry; by default the id of the commit.
            may_be_unreferenced: True if only its id refers to the commit.
        """
        self._pipeline.ensure_live(verb)
        self._pipeline.budget.count()  # if the process is killed, its lost time counts from here
        safety = from_hex(self.commit(f"before {verb}").oid)
        files, report = self._files.workspace(), Report()
        moves = target != safety or verb in RECORDED_VERBS
        if moves and "mind" in parts:
            for hook in self._context.hooks:
                hook.before_move(verb)
        processes = "processes" in parts
        if moves and files is not None and parts & MACHINE_PARTS:
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
        elif moves and "mind" in parts:
            self.restore_state(
                target,
                verb,
                detail,
                move_branch="files" in parts,
                may_be_unreferenced=may_be_unreferenced,
            )
        elif "mind" in parts:
            set_shared_memory(
                self._context,
                self._pipeline.held_lease.lease,
                self.store.history.state(target).memory,
            )
        effects = effects_since_commit(self._context.services, self._context.row, target)
        around = self._environment.differences_after_restore(with_state="mind" in parts)
        then = (
            recorded_environments(self._context)[1]
            if "mind" in parts
            else environment_at_commit(self._context.services, target)
        )
        secrets = unavailable_secrets(self._context.services, target, then)
        return RestoreResult(
            to_hex(target),
            report,
            effects,
            surviving_collaborations(self._context, effects),
            around,
            secrets,
        )

    @retry_on_sweep
    def _restore_files(
        self, target: Oid, verb: str, detail: str, *, processes: bool, may_be_unreferenced: bool
    ) -> Report:
        with self._files.machine.files.exclusive_access():
            return self._files.machine.files.restore_commit(
                target,
                verb,
                processes=processes,
                detail=detail,
                may_be_unreferenced=may_be_unreferenced,
            )

    @retry_on_sweep
    def restore_state(
        self,
        target: Oid,
        verb: str,
        detail: str = "",
        *,
        move_branch: bool,
        may_be_unreferenced: bool = False,
    ) -> None:
        with self.store.writing():
            if may_be_unreferenced:
                pin_commit(
                    self.store,
                    target,
                    reachable_from=self.branch.head,
                    branch=self._context.row.branch,
                )
            together = self.participant.prepare_move(target)
            if move_branch:
                self.branch.move(
                    target,
                    verb,
                    detail or to_hex(target),
                    lease=together.lease,
                    rows=together.rows,
                    timelines=together.timelines,
                    appends=together.appends,
                )
                self.branch.refresh_head()
                self.head_image = self.store.history.state(target).machine
            else:
                rows, lines, lease = together.rows, together.timelines, together.lease
                self.store.catalog.move([], verb=verb, lease=lease, rows=rows, timelines=lines)
            self.participant.finish_move()
            if not move_branch:
                self._context.dirty = True

    def is_unchanged(self, head: Oid) -> bool:
        """Return True if a commit now would equal the head."""
        return self.participant.is_unchanged(head, self.head_image)

    def publish(self, upto: int | None = None) -> None:
        """Publish committed facts to the shared memory scopes, those up to event `upto`."""
        writer = self._pipeline.writer
        publish_context(
            self._context,
            writer.event_log,
            writer.state,
            upto=writer.event_log.base.seq if upto is None else upto,
            lease=self._pipeline.held_lease.lease,
        )

    @contextmanager
    def following_shared_memory(self) -> Iterator[None]:
        """Keep following shared memory after merge or adopt.

        A session that saw the newest shared facts must not fall back to those of the adopted
        commit.
        """
        live = self.participant.follow_shared_memory = self._context.row.beliefs is None
        try:
            yield
        finally:
            self.participant.follow_shared_memory = False
        self.publish()
        if live:  # also if the session did not move
            set_shared_memory(self._context, self._pipeline.held_lease.lease, None)

    def switch_timeline(self) -> None:
        """Use the timeline and the state that the writer has switched to."""
        self._pipeline.switch_timeline()
        self._environment.switch_timeline()
        self._handover.switch_timeline()

    def on_moved(self) -> None:
        """Continue after the session has moved to another commit."""
        self.switch_timeline()
        if not self.keeps_tool_calls:  # the commit may lie between a call and its result
            self.close_tool_calls()

    def close_tool_calls(self) -> None:
        """Add a result for each tool call that has none.

        Model APIs refuse a call without a result.
        """
        if calling := self._context.state.core.calling:
            self._context.dirty = True
            self._pipeline.writer.add(*(lost_result(call, self.store.author) for call in calling))

    def commit_before_release(self) -> None:
        """Commit files and running programs that only this host has, before a release.

        If the commit is refused, the files stay here and are found when the session returns.
        """
        files = self._files.attached
        if files is not None and files.row.files == "private" and self.store.is_shared:
            with suppress(OrtetError):
                self.commit(_RELEASE_MESSAGE)

    def commit_for_other_hosts(self) -> None:
        """Commit files that other processes of this host changed, and raise if that fails."""
        store, row = self.store, self._context.row
        workspaces = self._context.services.workspaces
        known = workspaces.table.get(row.branch) if row.has_files and store.is_shared else None
        if known is not None and known.files == "private" and store.is_local_host(known.host):
            self.commit(_RELEASE_MESSAGE)
