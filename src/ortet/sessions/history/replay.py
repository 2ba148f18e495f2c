"""Replay of a session: actions return recorded outcomes, and nothing is written.

With `replay="live"`, the session becomes an ordinary one at the first step that was not recorded.
`SessionReplay` replaces three parts of an open session: its events, its effects and its budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import to_json
from ortet._util.structs import thread_safe_struct
from ortet.backends.base import RowChange
from ortet.errors import Diverged, Refused
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.kinds.registry import fold
from ortet.journal.replay.cursor import RecordedAction, ReplayCursor, failure_of, is_skipped
from ortet.journal.state.state import SessionState
from ortet.sessions.actions.actions import (
    Action,
    CallOptions,
    describe,
    is_opaque,
    unsettled,
)
from ortet.sessions.actions.budget import SessionBudget
from ortet.sessions.actions.budget_math import Amounts, BudgetLimits
from ortet.sessions.actions.effects import EffectLog, outcome_of
from ortet.sessions.history.event_commit import commit_at
from ortet.sessions.history.navigation import Navigation
from ortet.sessions.lifecycle import Lifecycle
from ortet.sessions.machine.session_files import replaying
from ortet.sessions.table import ACTIVE
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.pipeline import ActionRunner
from ortet.workspaces.results import ALL_PARTS

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo


class ReplayReport(msgspec.Struct, frozen=True):
    """How far a replay came.

    All events up to `upto` were replayed. `expected` is the next recorded event, and `got` is what
    the program did instead. Both are None if the program did all that was recorded. `waits` is the
    approval (id, what) for which the recorded session waited at the end.
    """

    upto: int
    expected: dict[str, Any] | None = None
    got: dict[str, Any] | None = None
    waits: dict[str, str] | None = None


def write_report(
    report: Path, cursor: ReplayCursor, diverged: Diverged | None, waits: dict[str, str] | None
) -> None:
    """Write the report atomically."""
    expected = cursor.expected
    then = None
    if expected is not None:
        then = {"seq": expected.seq, "kind": expected.kind, "data": expected.data}
    got = diverged.details["got"] if diverged is not None else None
    part = report.with_name(f"{report.name}.{os.getpid()}")
    part.write_text(to_json(ReplayReport(cursor.seq, then, got, waits)), encoding="utf-8")
    os.replace(part, report)


def read(report: Path) -> ReplayReport | None:
    """Return the report, or None if none was written."""
    try:
        return msgspec.json.decode(report.read_bytes(), type=thread_safe_struct(ReplayReport))
    except FileNotFoundError:
        return None


class ReplayWriter:
    """The recorded events of a replay; see `RecordedEvents`.

    `on_divergence` is called if a step was not recorded: it raises, or makes the session live.
    """

    def __init__(
        self,
        writer: EventWriter,
        cursor: ReplayCursor,
        *,
        goes_live: bool,
        on_divergence: Callable[[Diverged], None],
    ) -> None:
        self.cursor: ReplayCursor | None = cursor
        self.goes_live = goes_live
        self.on_divergence = on_divergence
        # the approval that the recorded session waited for
        self.pending_approval: dict[str, str] | None = None
        self._writer = writer

    @property
    def position(self) -> int:
        """The last event that was replayed."""
        return self.cursor.seq if self.cursor is not None else 0

    def add(
        self, *drafts: Draft, rows: Sequence[RowChange] = (), durable: bool = False
    ) -> list[Event]:
        with self._writer.exclusive():
            found: list[Event] = []
            for at, draft in enumerate(map(self._writer.redacted, drafts)):
                if self.cursor is None:
                    return [*found, *self._writer.add(*drafts[at:], rows=rows, durable=durable)]
                event = self.match_event(draft)
                if event is None and is_skipped(draft.kind):
                    event = Event(0, draft.kind, 0, draft.actor, draft.data, b"")
                if event is None:
                    self.on_divergence(self.cursor.divergence_error(draft.kind, draft.data))
                    return [*found, *self._writer.add(*drafts[at:], rows=rows, durable=durable)]
                found.append(event)
        return found

    def match_event(self, draft: Draft) -> Event | None:
        """Return the recorded event that matches a draft, or None."""
        with self._writer.exclusive():
            found = (
                self.cursor.match_event(draft.kind, draft.data) if self.cursor is not None else None
            )
            self.fold_passed_events()
        return found

    def match_call(self, name: str, digest: str) -> RecordedAction | None:
        with self._writer.exclusive():
            found = self.cursor.match_call(name, digest) if self.cursor is not None else None
            self.fold_passed_events()
        return found

    def fold_passed_events(self) -> None:
        """Fold the events that the cursor has passed into the state."""
        if self.cursor is not None:
            fold(self._writer.state, self.cursor.passed_events)
            self.cursor.passed_events.clear()
            self._writer.tip = Tip(self.cursor.seq)


class ReplayEffects:
    """Effects that return recorded outcomes. `live_runner` runs actions of the live session."""

    def __init__(
        self,
        effects: EffectLog,
        recorded: ReplayWriter,
        live_runner: Callable[[], ActionRunner],
    ) -> None:
        self._effects = effects
        self._recorded = recorded
        self._live_runner = live_runner

    def act(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Return the recorded outcome of an action, or run it; see `EffectLog.act`."""
        call = self._effects.prepare(describe(function, args, kwargs, options), args, kwargs)
        action, mark, approve = call.action, call.digest, options.approve
        recall = options.recall or (lambda outcome: outcome)
        recorded, live = self._recorded, self._effects.act
        if recorded.cursor is not None:
            found = recorded.match_call(action.name, mark)
            if found is not None and self._has_recorded_outcome(action, found):
                return recall(_recorded_outcome(found))
            if action.replay == "pure":
                return function(*args, **kwargs)
            done = self._effects.find_previous(call) if found is None else None
            if done is not None and done.row.effect.state == "done":
                return recall(outcome_of(action.name, done.row.outcome))
            if found is None and approve is not None:
                self._raise_if_waiting(approve, mark, recorded.cursor)
            if found is not None and not action.is_rerun:
                raise unsettled(msgspec.to_builtins(found.begun.data))
            data = {"name": action.name, "digest": mark, **call.arguments}
            recorded.on_divergence(recorded.cursor.divergence_error("begun", data))
            live = self._live_runner().act
        return live(function, args, kwargs, options)

    def _raise_if_waiting(self, why: str, mark: str, cursor: ReplayCursor) -> None:
        """Raise the recorded refusal of an approval.

        At the end of the record, a session that goes live looks for an answer instead.
        """
        if self._recorded.goes_live and cursor.expected is None:
            return
        refusal = self._effects.approvals.recorded_refusal(why, mark)
        if refusal is not None:
            if refusal.kind == "approval_pending":
                self._recorded.pending_approval = {
                    key: refusal.details[key] for key in ("id", "what")
                }
            raise refusal

    def _has_recorded_outcome(self, action: Action, found: RecordedAction) -> bool:
        """Return True if the outcome was recorded in a form that can be returned."""
        if _has_raised(found):
            return True
        opaque = found.ended is not None and is_opaque(found.ended.data.get("outcome"))
        return found.state == "done" and not (opaque and action.replay == "pure")


class ReplayBudget:
    """A budget that does not spend recorded amounts again. `live` is that of the live session."""

    def __init__(
        self, live: SessionBudget, writer: EventWriter, recorded: ReplayWriter, author: str
    ) -> None:
        self._author = author
        self._live = live
        self._writer = writer
        self._recorded = recorded

    def spend(
        self,
        amounts: Amounts,
        *,
        model: str = "",
        drafts: Sequence[Draft] = (),
        extra_rows: Sequence[RowChange] = (),
        at: int = 0,
    ) -> tuple[list[Event], Refused | None]:
        recorded, found = self._recorded, list[Event]()
        data = {"amounts": amounts, **({"model": model} if model else {})}
        for number, draft in enumerate([*drafts, Draft("spend", data)]):
            event = recorded.match_event(draft)
            if event is None and recorded.cursor is not None:
                recorded.on_divergence(recorded.cursor.divergence_error(draft.kind, draft.data))
            if event is None:
                events, refusal = self._live.spend(
                    amounts, model=model, drafts=drafts[number:], extra_rows=extra_rows, at=at
                )
                return [*found, *events], refusal
            found.append(event)
        return found, None

    def limit(self, limits: BudgetLimits) -> Event:
        data = {"limits": dict(limits.hard), "soft": dict(limits.soft)}
        return self._writer.add(Draft("budget", data, self._author))[0]

    def remaining(self) -> dict[str, float]:
        return self._live.remaining()

    def refusal_if_spent(self) -> None:
        """Never refuse: a replay pays nothing."""

    def count_lost_time(self, alive_until: int) -> None: ...

    def settle(self) -> None: ...

    def count(self) -> None: ...

    def return_unspent(self) -> None: ...


class SessionReplay:
    """The replay of a session, from its first event on.

    With `live`, the first step that was not recorded makes it an ordinary session on a new
    timeline. The old timeline is kept.
    """

    def __init__(
        self,
        navigation: Navigation,
        lifecycle: Lifecycle,
        *,
        live: bool,
        report: Path | None = None,
    ) -> None:
        """Put the parts of a replay into an open session.

        Args:
            navigation: moves the session when it goes live.
            lifecycle: sets its status then.
            live: continue as an ordinary session after the first difference.
            report: a file to write the report to.
        """
        self.is_going_live = False
        self._navigation = navigation
        self._lifecycle = lifecycle
        self._context = navigation.context
        self._pipeline = pipeline = navigation.pipeline
        self._goes_live = live
        self._report_path = report
        self._live_budget = pipeline.budget
        writer = pipeline.writer
        self._recorded = ReplayWriter(
            writer,
            ReplayCursor(writer.event_log.events()),
            goes_live=live,
            on_divergence=self._on_divergence,
        )
        writer.state = self._context.state = SessionState(self._context.services.maps)
        writer.recorded = self._recorded
        self._recorded.fold_passed_events()
        navigation.keeps_tool_calls = True
        pipeline.replay = self
        self._install_parts()

    def ensure_live(self, verb: str) -> None:
        if self._context.is_replaying:
            if not self._goes_live:
                raise replaying(verb)
            self._switch_to_live()

    def replayed_head(self, verb: str) -> CommitInfo | None:
        cursor = self._recorded.cursor
        if cursor is None:
            return None
        head = self._context.head
        if head is not None and (cursor.expected is not None or not self._goes_live):
            return head
        self.ensure_live(verb)
        return None

    def write_report(self, diverged: Diverged | None = None) -> None:
        """Write how far the replay came. Only the first difference is reported."""
        recorded = self._recorded
        if self._report_path is not None and recorded.cursor is not None:
            write_report(self._report_path, recorded.cursor, diverged, recorded.pending_approval)
            self._report_path = None if diverged else self._report_path

    def _on_divergence(self, diverged: Diverged) -> None:
        if not self._goes_live:
            self.write_report(diverged)
            raise diverged
        self._switch_to_live()

    def _switch_to_live(self) -> None:
        context, pipeline, recorded = self._context, self._pipeline, self._recorded
        services, writer, timeline = context.services, pipeline.writer, context.row.timeline
        cursor, mind, tip, line = recorded.cursor, writer.state, writer.tip, context.event_log
        assert cursor is not None
        expected, recorded.cursor, writer.recorded = cursor.expected, None, None
        self.is_going_live = True
        try:
            where = services.load(context.row)
            writer.switch_to(where.line, where.mind, where.tip)
            self._navigation.switch_timeline()
            pipeline.budget = self._live_budget
            if expected is not None:
                with context.store.writing():
                    point = commit_at(services, context.row, where.line, expected.seq - 1)
                    self._navigation.restore_commit(point, "replay", ALL_PARTS)
        except BaseException:
            if context.row.timeline == timeline:  # the move has not happened
                recorded.cursor, writer.recorded = cursor, recorded
                writer.switch_to(line, mind, tip)
                self._navigation.switch_timeline()
                self._install_parts()
            raise
        finally:
            self.is_going_live = False
        context.dirty = True  # the step that made it live is recorded next
        self._lifecycle.set_status(ACTIVE, "replay")
        pipeline.effects.close_dangling()
        pipeline.drain_inbox()
        refusal = self._live_budget.refusal_if_spent()
        if refusal is not None:
            pipeline.stop(refusal)

    def _install_parts(self) -> None:
        pipeline = self._pipeline
        pipeline.runner = ReplayEffects(pipeline.effects, self._recorded, lambda: pipeline.effects)
        pipeline.budget = ReplayBudget(
            self._live_budget, pipeline.writer, self._recorded, self._context.store.author
        )


def _has_raised(found: RecordedAction) -> bool:
    """Return True if the function raised. A `once` action is unsettled then."""
    data = found.ended.data if found.ended is not None else {}
    left = found.state == "unsettled" and not data.get("synthetic")
    return found.state == "failed" or left


def _recorded_outcome(found: RecordedAction) -> Any:
    name = found.begun.data["name"]
    data = found.ended.data if found.ended is not None else {}
    if _has_raised(found):
        raise failure_of(name, data)
    return outcome_of(name, data.get("outcome"))
