"""The life cycle of an open session: activate, pause, finish, release.

Every way out ends in `abandon`, which gives the lease back and drops what is not durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ortet._util.validation import check_text
from ortet.errors import Corrupt, Refused
from ortet.sessions.context import SessionContext
from ortet.sessions.environment.tracker import EnvironmentTracker
from ortet.sessions.history.navigation import Navigation
from ortet.sessions.machine.session_files import SessionFiles
from ortet.sessions.memory.episodes import episode_data, last_episode_seq
from ortet.sessions.table import ACTIVE, CLOSED, PAUSED, SessionTable, check_move
from ortet.sessions.writing.pipeline import VerbPipeline, exclusive_verb
from ortet.sessions.writing.state_cache import cache_writer_state
from ortet.workspaces.commit_participant import pending_restore

if TYPE_CHECKING:
    from ortet.backends.base import RowChange


class Lifecycle:
    """Begins and ends the work of one session handle.

    `forget` releases the lease and removes the handle from the manager. `epoch` is the sweep epoch
    from before the state was loaded.
    """

    def __init__(
        self,
        context: SessionContext,
        pipeline: VerbPipeline,
        navigation: Navigation,
        files: SessionFiles,
        environment: EnvironmentTracker,
        *,
        epoch: int,
        forget: Callable[[], None],
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._navigation = navigation
        self._files = files
        self._environment = environment
        self._epoch = epoch
        self._forget = forget

    def activate(self, alive_until: int = 0) -> None:
        """Set the status to active and repair what a killed process left behind.

        Args:
            alive_until: the time until which the previous holder was certainly alive.
        """
        context, pipeline = self._context, self._pipeline
        if context.status == ACTIVE:  # its process was killed
            pipeline.budget.count_lost_time(alive_until)
        self.set_status(ACTIVE, "")
        row = context.row
        if row.path and pending_restore(context.store.catalog, row.branch) is not None:
            # opening the workspace completes or rolls back the interrupted restore
            self._files.workspace()
        pipeline.effects.close_dangling()
        self._navigation.close_tool_calls()
        pipeline.drain_inbox()
        self._navigation.publish()

    @property
    def pipeline(self) -> VerbPipeline:
        return self._pipeline

    @exclusive_verb
    def end(self, status: str, why: str) -> None:
        """Set the status to paused, or to closed at its end, and release the lease."""
        check_text(why=why)
        pipeline = self._pipeline
        if pipeline.held_lease.is_released:
            return
        if self._context.is_replaying and pipeline.replay is not None:
            pipeline.replay.write_report()
            self.release()
            return
        try:
            pipeline.writer.repair()
            pipeline.drain_inbox()
            self._environment.probe_on_release()
            self._navigation.commit_before_release()
            auto_commit = pipeline.auto_commit
            if auto_commit.policy.commits_on_release and auto_commit.uncommitted.since:
                pipeline.commit_automatically()
            pipeline.budget.settle()
            if status == CLOSED:
                self._record_last_episode(why)
            if status != self._context.status:  # a session in the pool is already paused
                self.set_status(status, why)
            self._flush_and_cache()
            if status == CLOSED:
                self._navigation.publish(pipeline.writer.tip.seq)
        except Refused:
            pass  # another process holds the lease now, so the status is not ours to set
        finally:
            self.abandon()

    @exclusive_verb
    def release_for_handover(self) -> None:
        """Release the session for the next process, without a lifecycle event.

        A session that is not paused yet is paused once. Otherwise the next open would take its
        process for a killed one.
        """
        pipeline = self._pipeline
        if pipeline.held_lease.is_released:
            return
        if self._context.status != PAUSED:
            self.end(PAUSED, "")
            return
        try:
            pipeline.writer.repair()
            pipeline.drain_inbox()
            self._navigation.commit_before_release()
            pipeline.budget.settle()
            self.release()
        except Refused:  # another process has taken over
            self.abandon()

    def release(self) -> None:
        """Flush, release the lease and keep the status. Writes no lifecycle event."""
        try:
            self._flush_and_cache()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the lease and drop events that are not durable yet."""
        self._pipeline.writer.drop()
        self._forget()
        self._files.close()

    def set_status(self, status: str, why: str, rows: Sequence[RowChange] = ()) -> None:
        """Change the status and write `rows` in the same transaction."""
        context, pipeline = self._context, self._pipeline
        check_move(context.name, context.status, status)
        row = msgspec.structs.replace(context.row, status=status)
        data = {"from": context.status, "to": status, "why": why}
        pipeline.writer.add(
            pipeline.draft("lifecycle", data), rows=[SessionTable.update_change(row), *rows]
        )
        context.set_row(row)

    def _record_last_episode(self, why: str) -> None:
        """Record the last episode: the events since the previous episode."""
        context, pipeline = self._context, self._pipeline
        # a damaged event, which `verify` reports, must not prevent the end
        with suppress(Corrupt):
            events = context.events(last_episode_seq(context))
            told = episode_data(
                context, pipeline.new_id(), cause="closed", events=events, outcome=why
            )
            if told is not None:
                pipeline.writer.add(pipeline.draft("episode", told))

    def _flush_and_cache(self) -> None:
        """Make all events durable and cache the state for the next open."""
        self._pipeline.writer.close()
        cache_writer_state(self._context.services, self._pipeline.writer, self._epoch)
