"""The steps that every writing verb of an open session goes through.

A verb checks that the session is open, appends its events, and commits if the commit policy says
so. An action also drains the inbox and checks the budget first, and pauses the session afterwards
if the budget is spent.

Invariant: no automatic commit is made during an action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from ortet.errors import Invalid, OrtetError, Refused
from ortet.history.commits import CommitInfo
from ortet.journal.events import Draft, Event
from ortet.sessions.actions.actions import CallOptions
from ortet.sessions.actions.budget import SessionBudget
from ortet.sessions.actions.effects import EffectLog
from ortet.sessions.context import SessionContext
from ortet.sessions.table import PAUSED
from ortet.sessions.writing.auto_commit import AutoCommit
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.idempotent_turns import key_row_change
from ortet.sessions.writing.inbox import Inbox
from ortet.store.lease import WriterLease

_SPENT = "the budget is spent"


class _Verbs(Protocol):
    """A part of the session whose verbs move the branch."""

    @property
    def pipeline(self) -> VerbPipeline: ...


_P = ParamSpec("_P")
_V = TypeVar("_V", bound=_Verbs)
_R = TypeVar("_R")


def exclusive_verb(
    verb: Callable[Concatenate[_V, _P], _R],
) -> Callable[Concatenate[_V, _P], _R]:
    """Decorate a verb that moves the branch: verbs of other threads wait until it has ended.

    If it is interrupted, the next verb loads the session from the store.
    """

    @wraps(verb)
    def run(part: _V, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        writer = part.pipeline.writer
        with writer.moves:
            try:
                return verb(part, *args, **kwargs)
            except OrtetError:
                raise
            except BaseException:
                writer.mark_torn()
                raise

    return run


class ActionRunner(Protocol):
    """Runs actions: an `EffectLog`, or in a replay the recorded outcomes."""

    def act(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any: ...


class ReplayControl(Protocol):
    """The replay that a session is in, or was in before it went live."""

    @property
    def is_going_live(self) -> bool: ...

    def ensure_live(self, verb: str) -> None:
        """Make the session live, or raise Refused("replaying")."""

    def replayed_head(self, verb: str) -> CommitInfo | None:
        """Return the head while replaying, or make the session live and return None."""

    def write_report(self) -> None:
        """Write how far the replay came."""


class VerbPipeline:
    """The writing side of one session handle: writer, lease, effects, budget and commit policy.

    `commit` and `end` are the verbs of other collaborators that a policy may call.
    """

    def __init__(
        self,
        context: SessionContext,
        writer: EventWriter,
        held_lease: WriterLease,
        *,
        budget: SessionBudget,
        inbox: Inbox,
        auto_commit: AutoCommit,
    ) -> None:
        self.context = context
        self.writer = writer
        self.held_lease = held_lease
        self.budget = budget
        self.auto_commit = auto_commit
        self.effects = _effect_log(context, writer)
        self.runner: ActionRunner = self.effects
        self.replay: ReplayControl | None = None
        self.commit: Callable[[str], object]
        self.end: Callable[[str, str], None]
        self._inbox = inbox
        self._pause_pending = False  # the budget is spent: pause after the running actions end

    # one event

    def add(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event:
        """Append one event."""
        self.begin_change()
        event = self.writer.add(self.draft(kind, data, version))[0]
        self.auto_commit_if_due(kind, data)
        return event

    def add_all(
        self, kind: str, several: Sequence[Mapping[str, Any]], key: str = ""
    ) -> list[Event]:
        """Append several events in one write, under an idempotency key if one is given."""
        self.begin_change()
        with self.writer.exclusive():
            row, after, store = self.context.row, self.writer.tip.seq, self.context.store
            rows = (
                [key_row_change(store.catalog, row, after, key=key, count=len(several))]
                if key
                else []
            )
            events = self.writer.add(*(self.draft(kind, data) for data in several), rows=rows)
        self.auto_commit_if_due(kind, several[-1])
        return events

    def draft(self, kind: str, data: Mapping[str, Any], version: int = 1) -> Draft:
        return Draft(kind, dict(data), self.context.store.author, version=version)

    def new_id(self) -> str:
        return self.context.store.new_id()

    def begin_change(self) -> None:
        """Check that the session is open, and mark it as changed."""
        self.check_open()
        self.context.dirty = True

    def check_open(self) -> None:
        if self.held_lease.is_released:
            raise Invalid(
                "closed",
                f"session {self.context.name!r} is not open any more: open it with the hub",
            )
        self.writer.repair()

    def replayed_head(self, verb: str) -> CommitInfo | None:
        """Return the head for a commit in a replay, or None if the session is live now."""
        return self.replay.replayed_head(verb) if self.replay is not None else None

    def ensure_live(self, verb: str) -> None:
        """In a replay, refuse the verb or make the session live."""
        if self.replay is not None:
            self.replay.ensure_live(verb)

    def drain_inbox(self) -> None:
        """Append the entries of the inbox.

        A replay leaves them alone: its messages belong to the live session.
        """
        if self.replay is not None and (self.context.is_replaying or self.replay.is_going_live):
            return
        if self._inbox.drain():
            self.context.dirty = True

    # actions

    def act(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Run a function as an action, with the steps around it; see `EffectLog.act`."""
        with self.action_scope():
            return self.runner.act(function, args, kwargs, options)

    @contextmanager
    def action_scope(self) -> Iterator[None]:
        """Run the steps around an action: budget check before; commit or pause after it."""
        for hook in self.context.hooks:
            hook.before_action()
        if self.context.is_replaying:
            self.check_open()
            try:
                yield
            finally:
                self.auto_commit_if_due("ended", {})
            return
        self.prepare_action()
        before = self.writer.tip.seq
        try:
            yield
        finally:
            if self.writer.tip.seq != before:
                self.auto_commit_if_due("ended", {})
            if self._pause_pending and not self.effects.in_progress:
                self.end(PAUSED, _SPENT)

    def prepare_action(self) -> None:
        """Drain the inbox, and refuse the action if the budget is spent."""
        self.begin_change()
        self.drain_inbox()
        refusal = self.budget.refusal_if_spent()
        if refusal is not None:
            self.stop(refusal)

    def stop(self, refusal: Refused) -> NoReturn:
        """Pause the session as soon as no action is in progress, and raise the refusal."""
        if self.effects.in_progress:
            self._pause_pending = True
        else:
            self.end(PAUSED, _SPENT)
        raise refusal

    # automatic commits

    def auto_commit_if_due(self, kind: str, data: Mapping[str, Any]) -> None:
        """Commit if the policy says so, but never during an action or a replay."""
        if self.auto_commit.policy.when == "manual" or self.context.is_replaying:
            return
        now = self.context.now()
        self.auto_commit.count_event(kind, data, now)
        if self.auto_commit.is_due(now) and not self.effects.in_progress:
            self.commit_automatically()

    def commit_automatically(self) -> None:
        """Commit automatically.

        A failure is recorded as a warning, and the commit is retried later.
        """
        try:
            self.commit(f"by policy: {self.auto_commit.policy.when}")
        except OrtetError as error:
            self.auto_commit.postpone(self.context.now())
            with suppress(OrtetError):
                self.warn("commit", error.kind, str(error))

    def warn(self, what: str, kind: str, error: str) -> None:
        """Record a warning."""
        self.writer.add(self.draft("warning", {"what": what, "kind": kind, "error": error}))

    def switch_timeline(self) -> None:
        """Use the timeline and the state that the writer has switched to."""
        context = self.context
        context.switch(context.row, self.writer.event_log, self.writer.state)
        self.effects = _effect_log(context, self.writer)
        self.runner = self.effects
        self.auto_commit.reset(context.now())


def _effect_log(context: SessionContext, writer: EventWriter) -> EffectLog:
    return EffectLog(context.store, context.row, writer, context.services.ledger_indexes)


def need_writer(pipeline: VerbPipeline | None) -> VerbPipeline:
    """Return the pipeline of an open session.

    Raises:
        Refused: "read_only" if the session was opened for reading.
    """
    if pipeline is None:
        raise Refused(
            "read_only", "this session was opened for reading: open it with hub.session to write"
        )
    return pipeline
