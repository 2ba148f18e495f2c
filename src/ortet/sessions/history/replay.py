"""A session that re-enacts what it did: nothing runs and nothing is written until it goes live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ortet.backends.base import RowChange
from ortet.errors import Diverged, Refused
from ortet.journal.environment import NOTHING, Environment
from ortet.journal.events import Draft, Event, Tip
from ortet.journal.replay.cursor import AROUND, Cursor, Recorded, failure_of
from ortet.journal.state.records import Fact
from ortet.journal.state.reducers import fold
from ortet.journal.state.state import Mind
from ortet.sessions.actions.actions import (
    Action,
    Replay,
    Scope,
    arguments,
    describe,
    is_opaque,
    plain,
    unsettled,
)
from ortet.sessions.actions.budget import Budget
from ortet.sessions.actions.budget_math import Amounts, Limits
from ortet.sessions.actions.effects import Deeds, outcome_of
from ortet.sessions.environment.environments import recorded_of
from ortet.sessions.history.played import tell
from ortet.sessions.history.rewind import commit_at
from ortet.sessions.history.whatif import whatif
from ortet.sessions.results import PARTS, Restored
from ortet.sessions.session import Session
from ortet.sessions.table import ACTIVE, SessionRow
from ortet.sessions.writing.event_writer import Ledger

if TYPE_CHECKING:
    from pathlib import Path

    from ortet.history.commits import CommitInfo
    from ortet.ids import Oid
    from ortet.objects.store import Durable
    from ortet.sessions.hits import Hit
    from ortet.workspaces.workspace import Workspace

_RERUN = ("pure", "idempotent")


class Stage(Ledger):
    """A ledger that, while it has a cursor, gives back what was recorded and writes nothing.

    `left` is called with the error when a step was not recorded: it raises, or goes live.
    """

    cursor: Cursor | None = None
    live_then = False
    waits: dict[str, str] | None = None  # the approval that the program was told to wait for
    left: Callable[[Diverged], None]

    def add(self, *drafts: Draft, rows: Sequence[RowChange] = (), now: bool = False) -> list[Event]:
        with self._lock:
            found: list[Event] = []
            for at, draft in enumerate(map(self.hidden, drafts)):
                if self.cursor is None:
                    return [*found, *super().add(*drafts[at:], rows=rows, now=now)]
                event = self.tell(draft)
                if event is None and draft.kind in AROUND:
                    event = Event(0, draft.kind, 0, draft.actor, draft.data, b"")
                if event is None:
                    self.left(self.cursor.diverged(draft.kind, draft.data))
                    return [*found, *super().add(*drafts[at:], rows=rows, now=now)]
                found.append(event)
        return found

    def tell(self, draft: Draft) -> Event | None:
        """What was recorded of such a step."""
        with self._lock:
            found = self.cursor.say(draft.kind, draft.data) if self.cursor is not None else None
            self.pass_by()
        return found

    def recall(self, name: str, digest: str) -> Recorded | None:
        with self._lock:
            found = self.cursor.call(name, digest) if self.cursor is not None else None
            self.pass_by()
        return found

    def pass_by(self) -> None:
        """Know what the cursor has passed."""
        if self.cursor is not None:
            fold(self.mind, self.cursor.news)
            self.cursor.news.clear()
            self.tip = Tip(self.cursor.seq)


class Recalled(Deeds):
    """Actions that are given their recorded outcomes. `now` gives those of the session that went
    live."""

    _ledger: Stage
    now: Callable[[], Deeds]

    def act(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        why: str = "",
        replay: Replay | None = None,
        key: str | None = None,
        scope: Scope | None = None,
        name: str | None = None,
        approve: str | None = None,
        record: Callable[[Any], Any] = plain,
        recall: Callable[[Any], Any] = lambda outcome: outcome,
    ) -> Any:
        action = describe(function, args, kwargs, name=name, replay=replay, key=key, scope=scope)
        stage, live = self._ledger, super().act
        if stage.cursor is not None:
            said = self._hub.hidden(arguments(args, kwargs))
            mark = self.mark(action, said)
            found = stage.recall(action.name, mark)
            if found is not None and self._is_known(action, found):
                return recall(_again(found))
            if action.replay == "pure":
                return function(*args, **kwargs)
            done = self._before(action)[0] if found is None else None
            if done is not None and done.effect.state == "done":
                return recall(outcome_of(action.name, done.outcome))
            if found is None and approve is not None:
                self._wait(approve, mark, stage.cursor)
            if found is not None and action.replay not in _RERUN:
                raise unsettled(msgspec.to_builtins(found.begun.data))
            data = {"name": action.name, "digest": mark, **said}
            stage.left(stage.cursor.diverged("begun", data))
            live = self.now().act
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

    def _wait(self, why: str, mark: str, cursor: Cursor) -> None:
        """For a human, as then; at the end of the record one that goes live looks for an answer."""
        if self._ledger.live_then and cursor.expected is None:
            return
        refusal = self.approvals.told(why, mark)
        if refusal is not None:
            if refusal.kind == "approval_pending":
                self._ledger.waits = {key: refusal.details[key] for key in ("id", "what")}
            raise refusal

    def _is_known(self, action: Action, found: Recorded) -> bool:
        """Whether what became of it was recorded, so that it can be told."""
        if found.state == "failed":
            return True
        opaque = found.ended is not None and is_opaque(found.ended.data.get("outcome"))
        return found.state == "done" and not (opaque and action.replay == "pure")


class Unpaid(Budget):
    """What was spent then is not spent again. `now` gives the budget of the session that went
    live."""

    _ledger: Stage
    now: Callable[[], Budget]

    def spend(
        self, amounts: Amounts, *, model: str = "", drafts: Sequence[Draft] = (), **more: Any
    ) -> tuple[list[Event], Refused | None]:
        stage, found = self._ledger, list[Event]()
        data = {"amounts": amounts, **({"model": model} if model else {})}
        for at, draft in enumerate([*drafts, Draft("spend", data)]):
            event = stage.tell(draft)
            if event is None and stage.cursor is not None:
                stage.left(stage.cursor.diverged(draft.kind, draft.data))
            if event is None:
                rest = {"drafts": drafts[at:], **more}
                events, refusal = self.now().spend(amounts, model=model, **rest)
                return [*found, *events], refusal
            found.append(event)
        return found, None

    def limit(self, asked: Limits) -> Event:
        data = {"limits": dict(asked.hard), "soft": dict(asked.soft)}
        return self._ledger.add(self._draft("budget", data))[0]

    def gate(self) -> None:
        """Nothing is to be paid."""

    def settle(self) -> None: ...

    def give_back(self) -> None: ...


class Rehearsal(Session):
    """With `live`, the first step that was not recorded makes it an ordinary session, on a new
    timeline from there; the old one stays. `restored` then says what stays done."""

    _ledger: Stage
    _as_it_was = False
    restored: Restored | None = None

    def start(self, *, live: bool, report: Path | None = None) -> None:
        """With `report`, a file is written there that says how it went."""
        self._live_then = self._ledger.live_then = live
        self._report = report
        self._ledger.left = self._leave
        self._paid = self._budget
        self._ledger.mind = self._mind = Mind(self._sessions.maps)
        self._ledger.cursor = Cursor(self._ledger.line.events())
        self._ledger.pass_by()
        self._recall()

    @property
    def replaying(self) -> bool:
        return self._ledger.cursor is not None

    def events(self, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        cursor = self._ledger.cursor
        if cursor is not None:
            upto = cursor.seq if upto is None else min(upto, cursor.seq)
        return super().events(after, upto)

    def _believed(self, fact: str | Fact | Hit) -> Fact:
        """What was believed then may have been given up since, in a memory that it shares."""
        if self.replaying:
            return self.fact(fact)
        return super()._believed(fact)

    def _get_ready(self) -> None:
        if not self.replaying:
            super()._get_ready()

    def whatif(self, at: int, *, machine: bool = True, **change: Any) -> Session:
        if not self.replaying:
            return super().whatif(at, machine=machine, **change)
        return whatif(self._sessions, self._hub.get(self.id), at, machine=machine, **change)

    @property
    def machine(self) -> Workspace:
        if self.replaying:
            raise _replaying("use a machine")
        return super().machine

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durable | None = None
    ) -> CommitInfo:
        """While replaying nothing is new: the head."""
        cursor, head = self._ledger.cursor, self.head
        if cursor is not None:
            if head is not None and (cursor.expected is not None or not self._live_then):
                return head
            self._must_be_live("commit")
        return super().commit(message, allow_secrets=allow_secrets, durable=durable)

    def _must_move(self, verb: str) -> None:
        self._must_be_live(verb)

    def fork(self, n: int = 1, *, machine: bool = True) -> list[Session]:
        self._must_be_live("fork")
        return super().fork(n, machine=machine)

    def _go(self, target: Oid, verb: str, parts: frozenset[str], **given: Any) -> Restored:
        self._must_be_live(verb)
        return super()._go(target, verb, parts, **given)

    # going live

    def _must_be_live(self, verb: str) -> None:
        if self.replaying:
            if not self._live_then:
                raise _replaying(verb)
            self._go_live()

    def _leave(self, diverged: Diverged) -> None:
        if not self._live_then:
            self._tell(diverged)
            raise diverged
        self._go_live()

    def _go_live(self) -> None:
        stage, timeline = self._ledger, self._row.timeline
        cursor, mind, tip = stage.cursor, stage.mind, stage.tip
        assert cursor is not None
        expected, stage.cursor = cursor.expected, None
        self._as_it_was = True
        try:
            where = self._sessions.standing(self._row)
            stage.go(where.line, where.mind, where.tip)
            self._moved(self._row)
            self._budget = self._paid
            if expected is not None:
                with self._hub.writing():
                    point = commit_at(self._sessions, self._row, where.line, expected.seq - 1)
                    self.restored = super()._go(point, "replay", PARTS)
        except BaseException:
            if self._row.timeline == timeline:  # it has not gone there
                stage.cursor = cursor
                stage.go(self._line, mind, tip)
                self._moved(self._row)
                self._recall()
            raise
        finally:
            self._as_it_was = False
        self._host.dirty = True  # the step that led here is about to be recorded
        self._turn(ACTIVE, "replay")
        self.tie_up()
        self._take_in()
        refusal = self._paid.gate()
        if refusal is not None:
            self._stop(refusal)

    def _tell(self, diverged: Diverged | None) -> None:
        """How far it came. Only the first difference counts: a program may go on behind it."""
        if self._report is not None and self._ledger.cursor is not None:
            tell(self._report, self._ledger.cursor, diverged, self._ledger.waits)
            self._report = None if diverged else self._report

    def _arrived(self, row: SessionRow) -> None:
        """In the middle of a call it is about to go on with: its result is yet to be said."""
        self._moved(row)

    def _recall(self) -> None:
        self._deeds = deeds = Recalled(self._hub, self._row, self._ledger)
        deeds.now = lambda: self._deeds
        self._budget = unpaid = Unpaid(self._hub, self._row, self._ledger, host="")
        unpaid.now = lambda: self._paid

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """What nobody does costs nothing."""
        if self.replaying:
            self._live()
            try:
                yield
            finally:
                self._keep_pace("ended", {})
        else:
            with super()._acting():
                yield

    def _meet(self) -> None:
        if not self.replaying:
            super()._meet()

    def _known(self) -> Environment | None:
        return recorded_of(self)[1] if self.replaying else super()._known()

    def _look_around(self, *, asked: bool) -> Environment:
        """What was there then, as far as the replay has come."""
        if self.replaying:
            return self._known() or NOTHING
        return super()._look_around(asked=asked)

    def _keep_pace(self, kind: str, data: Mapping[str, Any]) -> None:
        if not self.replaying:
            super()._keep_pace(kind, data)

    def _take_in(self) -> None:
        """Letters are for what comes now, not for what is left behind."""
        if not self.replaying and not self._as_it_was:
            super()._take_in()

    def _end(self, status: str, why: str) -> None:
        if not self.replaying:
            super()._end(status, why)
        elif not self.holding.ended:
            self._tell(None)
            self.let_go()


def _again(found: Recorded) -> Any:
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
