"""Replay of a session: actions return recorded outcomes, and nothing is written.

With `replay="live"`, the session becomes an ordinary one at the first step that was not recorded.
`ReplaySession` replaces three parts of a session: its writer, its effects and its budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import to_json
from ortet._util.structs import thread_safe_struct
from ortet.backends.base import RowChange
from ortet.errors import Diverged, Refused
from ortet.journal.environment import EMPTY_ENVIRONMENT, Environment
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.replay.cursor import RecordedAction, ReplayCursor, failure_of, is_skipped
from ortet.journal.state.fold import fold
from ortet.journal.state.records import Fact
from ortet.journal.state.state import SessionState
from ortet.sessions.actions.actions import (
    Action,
    KeyScope,
    Replay,
    arguments,
    describe,
    is_opaque,
    plain,
    unsettled,
)
from ortet.sessions.actions.budget import Budget
from ortet.sessions.actions.budget_math import Amounts, BudgetLimits
from ortet.sessions.actions.effects import EffectLog, outcome_of
from ortet.sessions.environment.environments import recorded_environments
from ortet.sessions.history.rewind import commit_at
from ortet.sessions.history.whatif import whatif
from ortet.sessions.session import Session
from ortet.sessions.table import ACTIVE, SessionRow
from ortet.sessions.writing.event_writer import EventWriter
from ortet.workspaces.results import ALL_PARTS, RestoreResult

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.ids import Oid
    from ortet.objects.store import Durability
    from ortet.sessions.results import RecallHit
    from ortet.workspaces.workspace import Workspace


# The report of a replay, written to a file for the process that asked for it.
#
# It is a module of its own because the command line reads what the replaying process writes.


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


_RERUN = ("pure", "idempotent")


class ReplayWriter(EventWriter):
    """An event writer that returns recorded events and writes nothing while it has a cursor.

    `on_divergence` is called if a step was not recorded: it raises, or makes the session live.
    """

    cursor: ReplayCursor | None = None
    goes_live = False
    pending_approval: dict[str, str] | None = (
        None  # the approval that the recorded session waited for
    )
    on_divergence: Callable[[Diverged], None]

    def add(
        self, *drafts: Draft, rows: Sequence[RowChange] = (), durable: bool = False
    ) -> list[Event]:
        with self._lock:
            found: list[Event] = []
            for at, draft in enumerate(map(self.redacted, drafts)):
                if self.cursor is None:
                    return [*found, *super().add(*drafts[at:], rows=rows, durable=durable)]
                event = self.match_event(draft)
                if event is None and is_skipped(draft.kind):
                    event = Event(0, draft.kind, 0, draft.actor, draft.data, b"")
                if event is None:
                    self.on_divergence(self.cursor.divergence_error(draft.kind, draft.data))
                    return [*found, *super().add(*drafts[at:], rows=rows, durable=durable)]
                found.append(event)
        return found

    def match_event(self, draft: Draft) -> Event | None:
        """Return the recorded event that matches a draft, or None."""
        with self._lock:
            found = (
                self.cursor.match_event(draft.kind, draft.data) if self.cursor is not None else None
            )
            self.fold_passed_events()
        return found

    def match_call(self, name: str, digest: str) -> RecordedAction | None:
        with self._lock:
            found = self.cursor.match_call(name, digest) if self.cursor is not None else None
            self.fold_passed_events()
        return found

    def fold_passed_events(self) -> None:
        """Fold the events that the cursor has passed into the state."""
        if self.cursor is not None:
            fold(self.state, self.cursor.passed_events)
            self.cursor.passed_events.clear()
            self.tip = Tip(self.cursor.seq)


class ReplayEffects(EffectLog):
    """Effects that return recorded outcomes. `live_effects` gives those of the live session."""

    _writer: ReplayWriter
    live_effects: Callable[[], EffectLog]

    def act(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        why: str = "",
        replay: Replay | None = None,
        key: str | None = None,
        scope: KeyScope | None = None,
        name: str | None = None,
        approve: str | None = None,
        record: Callable[[Any], Any] = plain,
        recall: Callable[[Any], Any] = lambda outcome: outcome,
    ) -> Any:
        action = describe(function, args, kwargs, name=name, replay=replay, key=key, scope=scope)
        stage, live = self._writer, super().act
        if stage.cursor is not None:
            said = self._store.secrets.redact(arguments(args, kwargs))
            mark = self.digest_call(action, said)
            found = stage.match_call(action.name, mark)
            if found is not None and self._has_recorded_outcome(action, found):
                return recall(_recorded_outcome(found))
            if action.replay == "pure":
                return function(*args, **kwargs)
            done = self._find_previous(action)[0] if found is None else None
            if done is not None and done.effect.state == "done":
                return recall(outcome_of(action.name, done.outcome))
            if found is None and approve is not None:
                self._raise_if_waiting(approve, mark, stage.cursor)
            if found is not None and action.replay not in _RERUN:
                raise unsettled(msgspec.to_builtins(found.begun.data))
            data = {"name": action.name, "digest": mark, **said}
            stage.on_divergence(stage.cursor.divergence_error("begun", data))
            live = self.live_effects().act
        return live(
            function,
            args,
            kwargs,
            why=why,
            replay=replay,
            key=key,
            scope=scope,
            name=name,
            approve=approve,
            record=record,
            recall=recall,
        )

    def _raise_if_waiting(self, why: str, mark: str, cursor: ReplayCursor) -> None:
        """Raise the recorded refusal of an approval.

        At the end of the record, a session that goes live looks for an answer instead.
        """
        if self._writer.goes_live and cursor.expected is None:
            return
        refusal = self.approvals.recorded_refusal(why, mark)
        if refusal is not None:
            if refusal.kind == "approval_pending":
                self._writer.pending_approval = {
                    key: refusal.details[key] for key in ("id", "what")
                }
            raise refusal

    def _has_recorded_outcome(self, action: Action, found: RecordedAction) -> bool:
        """Return True if the outcome was recorded in a form that can be returned."""
        if found.state == "failed":
            return True
        opaque = found.ended is not None and is_opaque(found.ended.data.get("outcome"))
        return found.state == "done" and not (opaque and action.replay == "pure")


class ReplayBudget(Budget):
    """A budget that does not spend recorded amounts again. `live_budget` gives the live one."""

    _writer: ReplayWriter
    live_budget: Callable[[], Budget]

    def spend(
        self, amounts: Amounts, *, model: str = "", drafts: Sequence[Draft] = (), **more: Any
    ) -> tuple[list[Event], Refused | None]:
        stage, found = self._writer, list[Event]()
        data = {"amounts": amounts, **({"model": model} if model else {})}
        for at, draft in enumerate([*drafts, Draft("spend", data)]):
            event = stage.match_event(draft)
            if event is None and stage.cursor is not None:
                stage.on_divergence(stage.cursor.divergence_error(draft.kind, draft.data))
            if event is None:
                rest = {"drafts": drafts[at:], **more}
                events, refusal = self.live_budget().spend(amounts, model=model, **rest)
                return [*found, *events], refusal
            found.append(event)
        return found, None

    def limit(self, limits: BudgetLimits) -> Event:
        data = {"limits": dict(limits.hard), "soft": dict(limits.soft)}
        return self._writer.add(self._draft("budget", data))[0]

    def refusal_if_spent(self) -> None:
        """Never refuse: a replay pays nothing."""

    def settle(self) -> None: ...

    def return_unspent(self) -> None: ...


class ReplaySession(Session):
    """A session that replays its events.

    With `live`, the first step that was not recorded makes it an ordinary session on a new
    timeline. The old timeline is kept. `restored` then lists the effects that stay done.
    """

    _writer: ReplayWriter
    _is_going_live = False
    restored: RestoreResult | None = None

    def start(self, *, live: bool, report: Path | None = None) -> None:
        """Start the replay at the first event.

        Args:
            live: continue as an ordinary session after the first difference.
            report: a file to write the report to.
        """
        self._goes_live = self._writer.goes_live = live
        self._report_path = report
        self._writer.on_divergence = self._on_divergence
        self._live_budget = self._budget
        self._writer.state = self._state = SessionState(self._sessions.maps)
        self._writer.cursor = ReplayCursor(self._writer.event_log.events())
        self._writer.fold_passed_events()
        self._install_replay_parts()

    @property
    def is_replaying(self) -> bool:
        return self._writer.cursor is not None

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        cursor = self._writer.cursor
        if cursor is not None:
            upto = cursor.seq if upto is None else min(upto, cursor.seq)
        return super().events(after, upto)

    def _require_fact(self, fact: str | Fact | RecallHit) -> Fact:
        """Return a fact as known then: it may have been retracted since in a shared scope."""
        if self.is_replaying:
            return self.fact(fact)
        return super()._require_fact(fact)

    def _start_machine(self) -> None:
        if not self.is_replaying:
            super()._start_machine()

    def whatif(self, at: int, *, machine: bool = True, **change: Any) -> Session:
        if not self.is_replaying:
            return super().whatif(at, machine=machine, **change)
        return whatif(self._sessions, self._sessions.get(self.id), at, machine=machine, **change)

    @property
    def machine(self) -> Workspace:
        if self.is_replaying:
            raise _replaying("use a machine")
        return super().machine

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo:
        """Return the head while replaying, otherwise commit."""
        cursor, head = self._writer.cursor, self.head
        if cursor is not None:
            if head is not None and (cursor.expected is not None or not self._goes_live):
                return head
            self._ensure_live("commit")
        return super().commit(message, allow_secrets=allow_secrets, durable=durable)

    def _require_live(self, verb: str) -> None:
        self._ensure_live(verb)

    def fork(self, n: int = 1, *, machine: bool = True) -> list[Session]:
        self._ensure_live("fork")
        return super().fork(n, machine=machine)

    def _restore_commit(
        self, target: Oid, verb: str, parts: frozenset[str], **given: Any
    ) -> RestoreResult:
        self._ensure_live(verb)
        return super()._restore_commit(target, verb, parts, **given)

    # going live

    def _ensure_live(self, verb: str) -> None:
        if self.is_replaying:
            if not self._goes_live:
                raise _replaying(verb)
            self._switch_to_live()

    def _on_divergence(self, diverged: Diverged) -> None:
        if not self._goes_live:
            self._write_report(diverged)
            raise diverged
        self._switch_to_live()

    def _switch_to_live(self) -> None:
        stage, timeline = self._writer, self._row.timeline
        cursor, mind, tip = stage.cursor, stage.state, stage.tip
        assert cursor is not None
        expected, stage.cursor = cursor.expected, None
        self._is_going_live = True
        try:
            where = self._sessions.load(self._row)
            stage.switch_to(where.line, where.mind, where.tip)
            self._switch_timeline(self._row)
            self._budget = self._live_budget
            if expected is not None:
                with self._store.writing():
                    point = commit_at(self._sessions, self._row, where.line, expected.seq - 1)
                    self.restored = super()._restore_commit(point, "replay", ALL_PARTS)
        except BaseException:
            if self._row.timeline == timeline:  # the move has not happened
                stage.cursor = cursor
                stage.switch_to(self._event_log, mind, tip)
                self._switch_timeline(self._row)
                self._install_replay_parts()
            raise
        finally:
            self._is_going_live = False
        self._participant.dirty = True  # the step that made it live is recorded next
        self._set_status(ACTIVE, "replay")
        self.close_dangling_effects()
        self._drain_inbox()
        refusal = self._live_budget.refusal_if_spent()
        if refusal is not None:
            self._stop(refusal)

    def _write_report(self, diverged: Diverged | None) -> None:
        """Write how far the replay came. Only the first difference is reported."""
        if self._report_path is not None and self._writer.cursor is not None:
            write_report(
                self._report_path, self._writer.cursor, diverged, self._writer.pending_approval
            )
            self._report_path = None if diverged else self._report_path

    def _on_moved(self, row: SessionRow) -> None:
        """Switch the timeline but keep open tool calls: the next step gives their results."""
        self._switch_timeline(row)

    def _install_replay_parts(self) -> None:
        self._effects = deeds = ReplayEffects(self._store, self._row, self._writer)
        deeds.live_effects = lambda: self._effects
        self._budget = unpaid = ReplayBudget(self._store, self._row, self._writer, host="")
        unpaid.live_budget = lambda: self._live_budget

    @contextmanager
    def _action_scope(self) -> Iterator[None]:
        """Skip the budget check while replaying."""
        if self.is_replaying:
            self._check_open()
            try:
                yield
            finally:
                self._auto_commit_if_due("ended", {})
        else:
            with super()._action_scope():
                yield

    def _start_machine_for_probe(self) -> None:
        if not self.is_replaying:
            super()._start_machine_for_probe()

    def _known_environment(self) -> Environment | None:
        return recorded_environments(self)[1] if self.is_replaying else super()._known_environment()

    def _probe_environment(self, *, on_request: bool) -> Environment:
        """Return the environment recorded up to the present position of the replay."""
        if self.is_replaying:
            return self._known_environment() or EMPTY_ENVIRONMENT
        return super()._probe_environment(on_request=on_request)

    def _auto_commit_if_due(self, kind: str, data: Mapping[str, Any]) -> None:
        if not self.is_replaying:
            super()._auto_commit_if_due(kind, data)

    def _drain_inbox(self) -> None:
        """Leave the inbox alone while replaying: its messages belong to the live session."""
        if not self.is_replaying and not self._is_going_live:
            super()._drain_inbox()

    def _end(self, status: str, why: str) -> None:
        if not self.is_replaying:
            super()._end(status, why)
        elif not self.held_lease.is_released:
            self._write_report(None)
            self.release()


def _recorded_outcome(found: RecordedAction) -> Any:
    name = found.begun.data["name"]
    data = found.ended.data if found.ended is not None else {}
    if found.state == "failed":
        raise failure_of(name, data)
    return outcome_of(name, data.get("outcome"))


def _replaying(verb: str) -> Refused:
    return Refused(
        "replaying",
        f"a replay cannot {verb}: it changes nothing; open the session without replay=, or with "
        "replay='live' to go on from where it differs",
    )
