"""Effects: what actions do outside the store, recorded once for the whole family.

Each action writes a `begun` event before it runs and an `ended` event after it. A row of the ledger
(`ledger.py`) holds the same effect for all sessions of the family, and survives restores.

States: `begun`, then `done`, `failed` or `unsettled`. An effect is unsettled if nobody can know
whether it happened: its process died, or it is a `once` action that raised an exception. `settle`
says what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ortet._util.failpoints import failpoint
from ortet._util.log import get_logger
from ortet._util.validation import check_text
from ortet.backends.base import RowChange
from ortet.errors import Conflict, Unsupported
from ortet.ids import uuid7
from ortet.journal.conversation.text import clip, command_text
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Effect
from ortet.sessions.actions.actions import (
    Action,
    CallOptions,
    arguments,
    describe,
    digest,
    format_call,
    has_opaque,
    in_flight,
    is_opaque,
    key_by_arguments,
    key_reused,
    key_taken,
    no_effect,
    plain,
    unsettled,
)
from ortet.sessions.actions.approvals import Approvals, is_used, used_up
from ortet.sessions.actions.ledger import (
    BEGUN,
    DONE,
    FAILED,
    OPEN_STATES,
    UNSETTLED,
    EffectRow,
    Ledger,
    LedgerIndex,
    StoredEffect,
    effect_change,
    key_change,
    ledgers_of,
)
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.event_writer import EventWriter

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

_MAX_COMMAND_CHARS = 500
_MAX_CALL_CHARS = 300
_INTENT = ("id", "name", "replay", "key", "scope", "why", "digest")


def carried_effect_rows(
    row: SessionRow, ledger: str, effects: Sequence[EffectRow]
) -> list[RowChange]:
    """Return the rows of effects that were done or begun in another store, for a new session."""
    found: list[RowChange] = []
    for effect_row in effects:
        effect = effect_row.effect
        kept = msgspec.structs.replace(effect_row, session=row.id, ledger=ledger)
        found.append(effect_change(kept, expect=0))
        if effect.key:
            home = row.timeline if effect.scope == "timeline" else ledger
            found.append(key_change(home, effect.key, kept))
    return found


class PreparedCall(NamedTuple):
    """A call of an action as it is recorded: arguments as plain data, and their digest."""

    action: Action
    arguments: dict[str, Any]
    digest: str

    @property
    def key(self) -> str:
        """The idempotency key; "" for none. `pure` actions have none."""
        return str(self.action.key) if self.action.replay != "pure" else ""

    @property
    def text(self) -> str:
        return format_call(self.action.name, self.arguments)[:_MAX_CALL_CHARS]


class Intent(msgspec.Struct, frozen=True):
    """An effect that the caller performs now and then settles.

    Attributes:
        effect: The effect.
        done: True if it was performed before under the same key.
        outcome: The recorded outcome, if it was performed before.
    """

    effect: Effect
    done: bool = False
    outcome: Any = None


class EffectLog:
    """Runs and records the actions of one session.

    `indexes` are shared by the sessions of a hub, so that the rows of a family are read once.
    """

    def __init__(
        self,
        store: StoreContext,
        row: SessionRow,
        writer: EventWriter,
        indexes: dict[str, LedgerIndex],
    ) -> None:
        self._store = store
        self._row = row
        self._writer = writer
        self._ledger = Ledger(store.catalog, ledgers_of(store.catalog, row), indexes)
        self._timeline_keys: dict[str, str] | None = None
        self._checked_state = False
        self.approvals = Approvals(store, row, writer)
        self.in_progress: dict[str, int] = {}  # id of each action in progress -> its thread

    def act(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Any:
        """Run a function as an action; see `Session.act`."""
        call = self.prepare(describe(function, args, kwargs, options), args, kwargs)
        effect_row = self._intend(call, why=options.why, approve=options.approve)
        if effect_row.effect.state == DONE:
            found = outcome_of(effect_row.effect.name, effect_row.outcome)
            return options.recall(found) if options.recall is not None else found
        try:
            value = function(*args, **kwargs)
        except BaseException as error:
            state = call.action.state_after(error)
            self._end(effect_row, state, error=error_text(error), code=getattr(error, "kind", ""))
            raise
        failpoint("action.done")
        self._end(effect_row, DONE, outcome=(options.record or plain)(value))
        return value

    def prepare(
        self, action: Action, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PreparedCall:
        """Return a call as it is recorded, without secrets."""
        said = self._store.secrets.redact(arguments(tuple(args), dict(kwargs)))
        mark = digest(self._store.objects.hasher.oid, action.name, said)
        return PreparedCall(key_by_arguments(action, mark, said), said, mark)

    def intend(
        self,
        action: Action,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        why: str,
        approve: str | None,
    ) -> Intent:
        """Record the intent of an effect that another process performs."""
        effect_row = self._intend(self.prepare(action, args, kwargs), why=why, approve=approve)
        if effect_row.effect.state == DONE:
            return Intent(
                effect_row.effect, True, outcome_of(effect_row.effect.name, effect_row.outcome)
            )
        self.in_progress.pop(effect_row.effect.id, None)
        return Intent(effect_row.effect)

    def _intend(self, call: PreparedCall, *, why: str, approve: str | None) -> EffectRow:
        """Write the intent durably, or return the effect that was done under the same key."""
        check_text(why=why)
        before = self.find_previous(call)
        if before is not None and before.row.effect.state == DONE:
            return before.row
        with self._writer.exclusive():
            return self._begin(
                call, why=self._store.secrets.redact(why), before=before, approve=approve
            )

    def current(self) -> str:
        """Return the id of the action that this thread runs, or ""."""
        mine = get_ident()
        return next(
            (id_ for id_ in reversed(self.in_progress) if self.in_progress[id_] == mine), ""
        )

    def settle(self, effect: str, outcome: Any, *, failed: bool, error: str = "") -> Event:
        """Record the outcome of an effect that has none."""
        found = self._ledger.find(effect)
        if found is None:
            raise no_effect(effect)
        known = found.row.effect
        if known.state not in OPEN_STATES:
            raise Conflict("settled", f"action {known.name!r} is {known.state}: nothing to settle")
        state = FAILED if failed or error else DONE
        return self._end(found.row, state, outcome=outcome, error=error, settled=True)

    def close_dangling(self) -> None:
        """Record an outcome for each action that a killed process had begun.

        On a timeline that forked off during an action, the outcome is copied from the family's row,
        which stays unchanged.
        """
        for effect in list(self._writer.state.effects):
            if effect.state == BEGUN:
                found = self._ledger.find(effect.id)
                if found is None:
                    continue
                if found.row.effect.state == BEGUN and found.row.session == self._row.id:
                    self._end(found.row, UNSETTLED, synthetic=True)
                    get_logger(__name__).warning(
                        "effect %s of session %s is unsettled: its process ended during %r; find "
                        "out what happened, then call s.actions.settle()",
                        effect.id,
                        self._row.id,
                        effect.name,
                    )
                else:
                    self._record_end_elsewhere(found.row)

    def _record_end_elsewhere(self, effect_row: EffectRow) -> None:
        """Record the outcome of an effect that another session performed."""
        state = UNSETTLED if effect_row.effect.state == BEGUN else effect_row.effect.state
        data = {"id": effect_row.effect.id, "state": state, "synthetic": True}
        if effect_row.outcome is not None:
            data["outcome"] = effect_row.outcome
        if effect_row.error:
            data["error"] = effect_row.error
        self._writer.add(Draft("ended", data, self._store.author))

    def find_previous(self, call: PreparedCall) -> StoredEffect | None:
        """Return the effect that was done or begun under the same key, and its version.

        Raises:
            Conflict: another call has the key, or the effect is in progress.
            Unsettled: its outcome is not known, and it must not be run again.
            Corrupt: the rows of effects are damaged.
        """
        found = self._find_by_key(call) if call.key else None
        if found is not None:
            self._check_previous(call, found.row)
            if found.row.effect.state == DONE:
                return found
        self._check_open_calls(call)
        return found

    def _check_previous(self, call: PreparedCall, before: EffectRow) -> None:
        """Raise an error if the effect under the key is another one, or must not run again."""
        effect, action = before.effect, call.action
        if effect.name != action.name:
            raise key_taken(action, effect.name)
        is_same = effect.digest in ("", call.digest) or has_opaque(call.arguments)
        if not is_same:
            raise key_reused(action, call.text, before.call)
        if effect.state == BEGUN and self._is_in_progress(before):
            raise in_flight(effect.key, before.session)
        if effect.state in OPEN_STATES and effect.replay not in ("pure", "idempotent"):
            raise unsettled(msgspec.to_builtins(effect))

    def _is_in_progress(self, effect_row: EffectRow) -> bool:
        """Return True if a process may be performing the effect now."""
        return effect_row.session != self._row.id or effect_row.effect.id in self.in_progress

    def _check_open_calls(self, call: PreparedCall) -> None:
        """Raise Unsettled if an effect of the same name and arguments has no known outcome.

        After a crash, a model often repeats a call under another tool call id. An effect in the
        workspace is no reason: a restore undoes it.
        """
        if call.action.is_rerun or call.action.where == "workspace":
            return
        if not self._checked_state:
            self._check_state()
        if not self._ledger.has_open_calls(call.digest):
            return
        for found in self._ledger.open_calls(call.digest):
            effect = found.row.effect
            if effect.replay not in ("recorded", "once") or effect.where == "workspace":
                continue
            if effect.state == BEGUN and self._is_in_progress(found.row):
                continue
            if effect.scope == "timeline" and self._writer.state.effects.get(effect.id) is None:
                continue  # of a timeline that a restore has left
            raise unsettled(msgspec.to_builtins(effect))

    def _find_by_key(self, call: PreparedCall) -> StoredEffect | None:
        if not self._checked_state:
            self._check_state()
        if call.action.scope != "timeline":
            return self._ledger.find_by_key(call.key)
        found = self._ledger.find_in(self._row.timeline, call.key)
        return found or self._inherited(call.key)

    def _inherited(self, key: str) -> StoredEffect | None:
        """Find an effect under a key of an earlier timeline of this history.

        A merge, or a restore to a commit that knows the effect, does not make it undone.
        """
        if self._timeline_keys is None:
            effects = sorted(self._writer.state.effects, key=lambda effect: effect.begun)
            self._timeline_keys = {
                effect.key: effect.id
                for effect in effects
                if effect.key and effect.scope == "timeline"
            }
        id_ = self._timeline_keys.get(key)
        found = self._ledger.find(id_) if id_ else None
        if found is None or self._writer.state.effects.get(found.row.effect.id) is None:
            return None
        is_mine = found.row.session == self._row.id and found.row.effect.state != FAILED
        return found if is_mine or found.row.effect.state == DONE else None

    def _check_state(self) -> None:
        """Compare the rows with the effects of the journal, before the first key is looked up.

        An effect without a row was lost, or comes from a commit that an earlier release copied
        here. Its row is made again from the journal, so that the effect is not taken for new.
        """
        lost = self._ledger.missing(self._writer.state.effects)
        self._checked_state = True
        if lost:
            self._recover(lost)

    def _recover(self, lost: Sequence[Effect]) -> None:
        from ortet.sessions.actions.effect_recovery import recovered_rows

        rows = recovered_rows(self._writer.event_log.events(), lost, self._ledger.home)
        changes = [change for one in rows for change in self._row_changes(one)]
        self._store.catalog.move([], verb="recover", actor=self._store.author, rows=changes)
        for row in rows:
            self._ledger.note(row)
        get_logger(__name__).warning(
            "%d effects of session %s had no row and were read from the journal",
            len(rows),
            self._row.id,
        )

    def _row_changes(self, row: EffectRow) -> Iterable[RowChange]:
        yield effect_change(row)
        if row.effect.key and row.effect.scope != "timeline":
            yield key_change(self._ledger.home, row.effect.key, row, expect=None)

    def _begin(
        self,
        call: PreparedCall,
        *,
        why: str,
        before: StoredEffect | None,
        approve: str | None,
    ) -> EffectRow:
        """Write the intent of an effect.

        If two processes retry the effect `before`, its version lets only the first one win.
        """
        store, action = self._store, call.action
        id_ = before.row.effect.id if before else uuid7(store.clock)
        approval, rows = "", []
        if approve is not None:
            what = format_call(action.name, call.arguments)
            approval, used = self.approvals.allow(what, why=approve, digest=call.digest, effect=id_)
            rows.append(used)
        effect = Effect(
            id=id_,
            name=action.name,
            replay=action.replay,
            state=BEGUN,
            key=call.key,
            scope=action.scope or "",
            why=why,
            digest=call.digest,
            begun=self._writer.tip.seq + 1,
            time=store.clock.now_ns(),
            actor=store.author,
            command=command_of(store, {"name": action.name, **call.arguments}),
            where=action.where or "outside",
        )
        ledger = before.row.ledger if before else self._ledger.home
        effect_row = EffectRow(
            effect, self._row.id, ledger=ledger, call=call.text if call.key else ""
        )
        rows.append(effect_change(effect_row, expect=before.version if before else 0))
        if call.key and before is None:
            rows += self._ledger.key_changes(effect_row, self._row.timeline)
        data = {name: getattr(effect, name) for name in _INTENT} | call.arguments
        if effect.where != "outside":
            data["where"] = effect.where
        if approval:
            data["approval"] = approval
        self._declare(effect_row, data, rows)
        self._ledger.note(effect_row)
        failpoint("action.begun")
        return effect_row

    def _declare(self, effect_row: EffectRow, data: dict[str, Any], rows: list[RowChange]) -> None:
        """Write the `begun` event durably, or raise if another process performs the effect."""
        id_, me = effect_row.effect.id, get_ident()
        # set before another thread can see the event
        if self.in_progress.setdefault(id_, me) != me:
            raise in_flight(effect_row.effect.key, self._row.id)
        try:
            self._writer.add(Draft("begun", data, self._store.author), rows=rows)
        except BaseException as error:
            del self.in_progress[id_]
            if isinstance(error, Conflict) and is_used(error):
                raise used_up(effect_row.effect.name) from error
            if isinstance(error, Conflict) and error.kind == "row_moved":  # a sibling was first
                raise in_flight(effect_row.effect.key, "another") from error
            raise

    def _end(
        self,
        effect_row: EffectRow,
        state: str,
        *,
        outcome: Any = None,
        error: str = "",
        code: str = "",
        settled: bool = False,
        synthetic: bool = False,
    ) -> Event:
        outcome, error = self._store.secrets.redact(outcome), self._store.secrets.redact(error)
        data: dict[str, Any] = {"id": effect_row.effect.id, "state": state}
        if outcome is not None:
            data["outcome"] = outcome
        if error:
            data["error"] = error
        if isinstance(code, str) and code:
            data["code"] = code
        if settled:
            data["settled"] = True
        if synthetic:
            data["synthetic"] = True
        try:
            with self._writer.exclusive():
                at = self._writer.tip.seq + 1
                effect = msgspec.structs.replace(effect_row.effect, state=state, ended=at)
                ended = msgspec.structs.replace(
                    effect_row, effect=effect, outcome=outcome, error=error
                )
                draft, rows = Draft("ended", data, self._store.author), [effect_change(ended)]
                event = self._writer.add(draft, rows=rows)[0]
            self._ledger.note(ended)
            return event
        finally:
            self.in_progress.pop(effect_row.effect.id, None)


def command_of(store: StoreContext, data: dict[str, Any]) -> str:
    """Return the command of an action for display, shortened. The journal has the full text."""
    found: str = store.secrets.redact(command_text(data))
    return clip(found, _MAX_COMMAND_CHARS)


def outcome_of(name: str, outcome: Any) -> Any:
    """Return the recorded outcome. Raise Unsupported if it was recorded as text only."""
    if is_opaque(outcome):
        raise Unsupported(
            "opaque_outcome",
            f"action {name!r} was done, but its result is no plain data and was recorded as text "
            "only: return JSON from actions with a key",
            shown=outcome["opaque"],
        )
    return outcome


def error_text(error: BaseException) -> str:
    """Return the recorded text of a failure."""
    try:
        text = f"{type(error).__name__}: {error}"[:2000]
    except Exception:
        text = type(error).__name__
    return text.encode("utf-8", "replace").decode()
