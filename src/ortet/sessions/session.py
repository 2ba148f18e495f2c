"""The open session: journal, memory, files and lease of one agent session.

`Session` is the entry point of this package. Its verbs come from a chain of mixins; this module has
the actions, the machine and the life cycle. Each verb appends one or more events through
`EventWriter`. The durability policy of the profile says when an event reaches the disk.

Invariants: only the holder of the lease writes events; the in-memory state changes only by folding
events; files and session state are committed together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.failpoints import failpoint
from ortet._util.validation import check_text
from ortet.errors import Corrupt, Invalid, Refused
from ortet.journal.conversation.tool_calls import lost_result
from ortet.journal.events import Draft, Event
from ortet.machines.base import Command, Result
from ortet.sessions.actions.budget import Budget
from ortet.sessions.actions.effects import EffectLog
from ortet.sessions.history.commit import BranchWriter
from ortet.sessions.history.load import LoadedSession, is_bookkeeping_event, uncommitted_events
from ortet.sessions.history.participants import OpenSessionParticipant
from ortet.sessions.machine.kernels import KernelsMixin
from ortet.sessions.memory.episodes import episode_data, last_episode_seq
from ortet.sessions.profiles import Profile
from ortet.sessions.results import parse_command_result, record_command_result
from ortet.sessions.table import (
    ACTIVE,
    CLOSED,
    PAUSED,
    SCRATCH_FILES,
    SessionRow,
    SessionTable,
    check_move,
)
from ortet.sessions.writing.auto_commit import AutoCommit
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.idempotent_turns import key_row_change
from ortet.sessions.writing.inbox import Inbox
from ortet.sessions.writing.state_cache import cache_writer_state
from ortet.store.lease import WriterLease
from ortet.workspaces.commit_participant import pending_restore

if TYPE_CHECKING:
    from ortet.backends.base import RowChange
    from ortet.sessions.actions.actions import KeyScope, Replay
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.results import ArchiveRecord
    from ortet.workspaces.workspace import Workspace


class Session(KernelsMixin):
    """A session that is open for writing and holds its lease.

    Leaving the `with` block pauses the session.
    """

    def __init__(
        self,
        sessions: SessionManager,
        row: SessionRow,
        *,
        writer: EventWriter,
        branch: BranchWriter,
        held_lease: WriterLease,
        loaded: LoadedSession,
        profile: Profile,
        host: str,
    ) -> None:
        super().__init__(sessions, row, writer.event_log, writer.state)
        self._writer = writer
        self._branch = branch
        self.held_lease = held_lease
        # machine image of the head commit; used while no workspace is open
        self._head_image = loaded.machine
        self._epoch = loaded.epoch
        self._files: Workspace | None = None
        self._effects = EffectLog(sessions.store, row, writer)
        self._inbox = Inbox(sessions.store.catalog, row.id, writer)
        self._budget = Budget(sessions.store, row, writer, host=host)
        self.profile = profile
        self._note_ttl = profile.note_ttl
        new = (
            uncommitted_events(writer.event_log)
            if writer.tip.seq > writer.event_log.base.seq
            else iter(())
        )
        news = (e for e in new if not is_bookkeeping_event(e))
        first = next(news, None)
        self._auto_commit = AutoCommit(profile.commit, self._now())
        # a manual policy never reads these events
        if first is not None and profile.commit.when != "manual":
            self._auto_commit.count_events([first, *news])
        self._participant = OpenSessionParticipant(
            sessions,
            row,
            writer,
            lease=lambda: held_lease.lease,
            on_moved=self._on_moved,
            variables=self._command_variables,
            dirty=first is not None,
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def __repr__(self) -> str:
        return (
            f"<Session {self.name!r} of {self.agent}, {self.status}, {self._writer.tip.seq} events>"
        )

    # actions

    def act(
        self,
        function: Callable[..., Any],
        *args: Any,
        why: str = "",
        replay: Replay | None = None,
        key: str | None = None,
        scope: KeyScope | None = None,
        name: str | None = None,
        approve: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function and record it as an action.

        The intent is durable before the call, and the outcome is recorded after it.

        Args:
            function: the function to call with `args` and `kwargs`.
            why: the reason, recorded with the action.
            replay: how the action may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key. An action with a key runs once in its scope.
            scope: "family" for the session and all its forks, or "timeline".
            name: the recorded name; by default that of the function.
            approve: the reason to show to a human. The call then needs `hub.approve` first.

        Returns:
            The result of the function, or the recorded result if the key was used before.

        Raises:
            Refused: "approval_pending" while nobody has answered, in this process or the next one;
                "approval_denied"; "budget_spent".
            Unsettled: an earlier call with this key has no known outcome.
            Conflict: another session is running the action with this key.
        """
        with self._action_scope():
            return self._effects.act(
                function,
                args,
                kwargs,
                why=why,
                replay=replay,
                key=key,
                scope=scope,
                name=name,
                approve=approve,
            )

    def request_approval(self, what: str, *, why: str = "") -> str:
        """Ask a human for an approval and return its id. Read the answer with `approvals()`."""
        self._check_open()
        self._participant.dirty = True
        return self._effects.approvals.ask(what, why=why)

    # reading

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Return the events in order, including buffered ones; see `SessionReader.events`."""
        self._writer.flush()
        return super().events(after, upto)

    def _flush_writes(self) -> None:
        self._writer.flush()

    # machine and files

    @property
    def machine(self) -> Workspace:
        """Return the workspace with the files and processes of this session.

        The machine starts at first use. A session without a directory then gets an empty private
        workspace.
        """
        self._check_open()
        return self._workspace() or self._create_scratch_workspace()

    @property
    def attached_files(self) -> Workspace | None:
        """Return the workspace if this handle has already opened it, otherwise None.

        Starts nothing.
        """
        return self._files

    @property
    def path(self) -> Path:
        """Return the directory where the host can read the files of the session."""
        return self.machine.path

    def run(
        self,
        command: Command,
        *,
        why: str = "",
        replay: Replay | None = None,
        key: str | None = None,
        scope: KeyScope | None = None,
        **options: Any,
    ) -> Result:
        """Run a command in the machine and record it as an action.

        Output and exit code are the outcome of the action. A str goes to `sh -c`; a list is
        executed.

        Args:
            command: the command to run.
            why: the reason, recorded with the action.
            replay: how the command may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key. A command with a key runs once in its scope.
            scope: "family" for the session and all its forks, or "timeline".
            **options: options of `Workspace.run`, for example timeout or secrets.

        Returns:
            The result, with `exit_code`, `stdout` and `stderr`.

        Raises:
            Refused: "budget_spent" if the budget is used up.
        """
        from ortet.machines.command import check_run

        check_run(command, **options)
        said = command if isinstance(command, str) else list(command)
        with self._action_scope():
            if not key:
                self._start_machine()
            result: Result = self._effects.act(
                self._run_here,
                (said,),
                options,
                why=why,
                replay=replay,
                key=key,
                scope=scope,
                name="run",
                record=lambda result: record_command_result(self._redacted(result, options)),
                recall=parse_command_result,
            )
        return result

    def _start_machine(self) -> None:
        """Start the machine before the intent is written.

        A crash here leaves no dangling action.
        """
        _ = self.machine

    def _redacted(self, result: Result, options: Mapping[str, Any]) -> Result:
        if not options.get("secrets"):
            return result
        from ortet.vault.redaction import redact_result

        values: dict[str, str] = self.machine.programs.secret_values(options["secrets"])
        return redact_result(result, values)

    def _run_here(self, command: Command, **options: Any) -> Result:
        return self.machine.run(command, **options)

    def _workspace(self) -> Workspace | None:
        if self._files is None and self._row.has_files:
            self.attach_files(self._sessions.files_of(self._row))
        return self._files

    def _create_scratch_workspace(self) -> Workspace:
        files = self._sessions.files_of(self._row)
        failpoint("room.before-session")
        row = msgspec.structs.replace(self._row, files=SCRATCH_FILES)
        rows = [SessionTable.update_change(row)]
        self._store.catalog.move(
            [], verb="room", actor=self._store.author, lease=self.held_lease.lease, rows=rows
        )
        self._row = self._participant.row = row
        self.attach_files(files)
        return files

    def attach_files(self, files: Workspace) -> None:
        """Use `files` as the workspace of this session. They are committed and restored with it."""
        self._files = files
        files.files.branch.participant, files.files.generated_directory = (
            self._participant,
            self.generated_directory,
        )
        # take the baseline: later changes of the process environment count as changes
        _ = self._session_variables

    # life cycle

    def pause(self, why: str = "") -> None:
        """Pause the session and release its lease, so that any process can open it."""
        self._end(PAUSED, why)

    def close(self, why: str = "") -> None:
        """End the session. Its name stays taken; it can still be read and archived.

        Raises:
            Corrupt: the profile says `audit` and the event chain is damaged. The status does not
                change.
        """
        self._check_chain()
        self._end(CLOSED, why)

    def _end(self, status: str, why: str) -> None:
        check_text(why=why)
        if self.held_lease.is_released:
            return
        try:
            self._drain_inbox()
            self._probe_on_release()
            if self._auto_commit.policy.commits_on_release and self._auto_commit.uncommitted.since:
                self._commit_automatically()
            self._budget.settle()
            if status == CLOSED:
                self._record_last_episode(why)
            if status != self.status:  # a session in the pool is already paused
                self._set_status(status, why)
            self._flush_and_cache()
            if status == CLOSED:
                self._publish(self._writer.tip.seq)
        except Refused:
            pass  # another process holds the lease now, so the status is not ours to set
        finally:
            self.abandon()

    def _record_last_episode(self, why: str) -> None:
        """Record the last episode: the events since the previous episode."""
        # a damaged event, which `verify` reports, must not prevent the close
        with suppress(Corrupt):
            events = self.events(last_episode_seq(self))
            told = episode_data(self, self._new_id(), cause="closed", events=events, outcome=why)
            if told is not None:
                self._writer.add(self._draft("episode", told))

    def archive(self, why: str = "") -> ArchiveRecord:
        """Pause the session and move it into one bundle. `hub.unarchive` restores it."""
        self.pause(why)
        return self._sessions.hub.archive(self.id, why)

    def set_status(self, status: str, why: str, *, rows: Sequence[RowChange]) -> None:
        """Change the status and write `rows` in the same transaction."""
        self._set_status(status, why, rows)

    def drain_inbox(self) -> None:
        """Append the entries that other processes left in the inbox to the journal."""
        self._drain_inbox()

    def release(self) -> None:
        """Flush, release the lease and keep the status. Writes no lifecycle event."""
        try:
            self._flush_and_cache()
        finally:
            self.abandon()

    def _flush_and_cache(self) -> None:
        """Make all events durable and cache the state for the next open."""
        self._writer.close()
        cache_writer_state(self._sessions, self._writer, self._epoch)

    def abandon(self) -> None:
        """Release the lease and drop events that are not durable yet."""
        self._writer.drop()
        self._sessions.release(self)
        if self._files is not None:
            self._files.close()

    def _set_status(self, status: str, why: str, rows: Sequence[RowChange] = ()) -> None:
        check_move(self.name, self.status, status)
        row = msgspec.structs.replace(self._row, status=status)
        data = {"from": self.status, "to": status, "why": why}
        self._writer.add(
            self._draft("lifecycle", data), rows=[SessionTable.update_change(row), *rows]
        )
        self._row = self._participant.row = row

    def whatif(self, at: int, *, machine: bool = True, **change: Any) -> Session:
        """Create a session in which event `at` had another content.

        Args:
            at: the sequence number of the event to change.
            machine: fork the files too.
            **change: one of `message`, `result` or `error`: the new content.

        Returns:
            The new session. This session does not change.
        """
        from ortet.sessions.history.whatif import whatif

        self._check_open()
        self._writer.flush()
        return whatif(self._sessions, self, at, machine=machine, **change)

    def close_dangling_effects(self) -> None:
        """Record an outcome for each action that has an intent but no outcome."""
        self._effects.close_dangling()

    def close_tool_calls(self) -> None:
        """Add a result for each tool call that has none.

        Model APIs refuse a call without a result.
        """
        if calling := self._state.core.calling:
            self._participant.dirty = True
            self._writer.add(*(lost_result(call, self._store.author) for call in calling))

    def activate(self, alive_until: int = 0) -> None:
        """Set the status to active and repair what a killed process left behind.

        Args:
            alive_until: the time until which the previous holder was certainly alive.
        """
        killed = self.status == ACTIVE
        if killed:
            self._budget.count_lost_time(alive_until)
        self._set_status(ACTIVE, "")
        if self._row.path and pending_restore(self._store.catalog, self._row.branch) is not None:
            # opening the workspace completes or rolls back the interrupted restore
            self._workspace()
        self.close_dangling_effects()
        self.close_tool_calls()
        self._drain_inbox()
        self._publish()

    # private

    def _drain_inbox(self) -> None:
        if self._inbox.drain():
            self._participant.dirty = True

    def _switch_timeline(self, row: SessionRow) -> None:
        """Use the timeline and the state that the writer has switched to."""
        self._row = row
        self._event_log, self._state = self._writer.event_log, self._writer.state
        self._effects = EffectLog(self._store, row, self._writer)
        self._story = self._recorded_environment = None
        self._auto_commit.reset(self._now())

    def _on_moved(self, row: SessionRow) -> None:
        self._switch_timeline(row)
        self.close_tool_calls()  # the commit may lie between a call and its result

    def _add(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event:
        self._begin_change()
        event = self._writer.add(self._draft(kind, data, version))[0]
        self._auto_commit_if_due(kind, data)
        return event

    def _add_all(
        self, kind: str, several: Sequence[Mapping[str, Any]], key: str = ""
    ) -> list[Event]:
        self._begin_change()
        with self._writer.exclusive():
            row, after, store = self._row, self._writer.tip.seq, self._store
            rows = (
                [key_row_change(store.catalog, row, after, key=key, count=len(several))]
                if key
                else []
            )
            events = self._writer.add(*(self._draft(kind, data) for data in several), rows=rows)
        self._auto_commit_if_due(kind, several[-1])
        return events

    def _begin_change(self) -> None:
        self._check_open()
        self._participant.dirty = True

    def _draft(self, kind: str, data: Mapping[str, Any], version: int = 1) -> Draft:
        return Draft(kind, dict(data), self._store.author, version=version)

    def _check_open(self) -> None:
        if self.held_lease.is_released:
            raise Invalid(
                "closed", f"session {self.name!r} is not open any more: open it with the hub"
            )

    def _new_id(self) -> str:
        return self._sessions.new_id()
