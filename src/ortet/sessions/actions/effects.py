"""Effects: what actions do outside the store, recorded once for the whole family.

Each action writes a `begun` event before it runs and an `ended` event after it. A row in the
catalog holds the same effect for all sessions of the family, and survives restores. The row of an
idempotency key points to its effect, so that a key is used once.

States: `begun`, then `done` or `failed`. An action whose process died is `unsettled` until `settle`
says what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.log import get_logger
from ortet._util.validation import check_text
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, Unsupported
from ortet.ids import uuid7
from ortet.journal.conversation.text import clip, command_text
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Effect
from ortet.sessions.actions.actions import (
    Action,
    KeyScope,
    Replay,
    arguments,
    describe,
    digest,
    in_flight,
    is_opaque,
    key_taken,
    no_effect,
    plain,
    unsettled,
)
from ortet.sessions.actions.approvals import Approvals, is_used, used_up
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.event_writer import EventWriter

if TYPE_CHECKING:
    from ortet.store.context import StoreContext

_MAX_COMMAND_CHARS = 500
_RERUN = ("pure", "idempotent")
_INTENT = ("id", "name", "replay", "key", "scope", "why", "digest")
_DONE, _FAILED, _BEGUN, _UNSETTLED = "done", "failed", "begun", "unsettled"


class EffectRow(msgspec.Struct, frozen=True):
    """The catalog row of an effect. It belongs to the family and survives every restore."""

    effect: Effect
    session: str
    outcome: Any = None
    error: str = ""


def effect_rows(catalog: Catalog, family: str) -> list[EffectRow]:
    """Return all effects of a family, in the order they began."""
    found: list[EffectRow] = []
    after = ""
    while page := catalog.rows(f"deed/{family}", after):
        found += [decode(EffectRow, row.value) for row in page]
        after = page[-1].key
    return found


def effects_since(catalog: Catalog, row: SessionRow, seq: int) -> list[Effect]:
    """Return the effects of a session after event `seq`, on any timeline, except failed ones."""
    mine = (
        effect_row
        for effect_row in effect_rows(catalog, row.family)
        if effect_row.session == row.id
    )
    return [
        effect_row.effect
        for effect_row in mine
        if effect_row.effect.state != _FAILED and effect_row.effect.begun > seq
    ]


def carried_effect_rows(row: SessionRow, effects: Sequence[EffectRow]) -> list[RowChange]:
    """Return the rows of effects that were done or begun in another store, for a new family."""
    found: list[RowChange] = []
    for effect_row in effects:
        effect = effect_row.effect
        kept = msgspec.structs.replace(effect_row, session=row.id)
        found.append(RowChange(f"deed/{row.family}", effect.id, encode(kept), expect=0))
        if effect.key:
            key = key_of(row, effect.scope, effect.key)
            found.append(RowChange("deed-key", key, effect.id.encode(), expect=0))
    return found


def key_of(row: SessionRow, scope: str, key: str) -> str:
    home = row.timeline if scope == "timeline" else row.family
    return f"{home}/{key}"


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
    """Runs and records the actions of one session."""

    def __init__(self, store: StoreContext, row: SessionRow, writer: EventWriter) -> None:
        self._store = store
        self._row = row
        self._writer = writer
        self.approvals = Approvals(store, row, writer)
        self.in_progress: dict[str, int] = {}  # id of each action in progress -> its thread

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
        """Run a function as an action; see `Session.act`.

        Args:
            record: turns the result into plain data for the journal.
            recall: turns recorded plain data into a result.
        """
        action = describe(function, args, kwargs, name=name, replay=replay, key=key, scope=scope)
        effect_row = self._intend(action, args, kwargs, why=why, approve=approve)
        if effect_row.effect.state == _DONE:
            return recall(outcome_of(effect_row.effect.name, effect_row.outcome))
        try:
            value = function(*args, **kwargs)
        except BaseException as error:
            self._end(effect_row, _FAILED, error=error_text(error), code=getattr(error, "kind", ""))
            raise
        failpoint("action.done")
        self._end(effect_row, _DONE, outcome=record(value))
        return value

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
        effect_row = self._intend(action, tuple(args), dict(kwargs), why=why, approve=approve)
        if effect_row.effect.state == _DONE:
            return Intent(
                effect_row.effect, True, outcome_of(effect_row.effect.name, effect_row.outcome)
            )
        self.in_progress.pop(effect_row.effect.id, None)
        return Intent(effect_row.effect)

    def _intend(
        self,
        action: Action,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        why: str,
        approve: str | None,
    ) -> EffectRow:
        """Write the intent durably, or return the effect that was done under the same key."""
        check_text(why=why)
        said, why = (
            self._store.secrets.redact(arguments(args, kwargs)),
            self._store.secrets.redact(why),
        )
        before, version = self.find_previous(action)
        if before is not None and before.effect.state == _DONE:
            return before
        with self._writer.exclusive():
            return self._begin(
                action, said, why=why, before=before, version=version, approve=approve
            )

    def current(self) -> str:
        """Return the id of the action that this thread runs, or ""."""
        mine = get_ident()
        return next(
            (id_ for id_ in reversed(self.in_progress) if self.in_progress[id_] == mine), ""
        )

    def settle(self, effect: str, outcome: Any, *, failed: bool, error: str = "") -> Event:
        """Record the outcome of an effect that has none."""
        row = self._store.catalog.row(self._kind, effect)
        if row is None:
            raise no_effect(effect)
        effect_row = decode(EffectRow, row.value)
        if effect_row.effect.state not in (_BEGUN, _UNSETTLED):
            known = effect_row.effect
            raise Conflict("settled", f"action {known.name!r} is {known.state}: nothing to settle")
        state = _FAILED if failed or error else _DONE
        return self._end(effect_row, state, outcome=outcome, error=error, settled=True)

    def _is_mine(self, effect_row: EffectRow) -> bool:
        return effect_row.session == self._row.id and effect_row.effect.state != _FAILED

    def close_dangling(self) -> None:
        """Record an outcome for each action that a killed process had begun.

        On a timeline that forked off during an action, the outcome is copied from the family's row,
        which stays unchanged.
        """
        for effect in list(self._writer.state.effects):
            if effect.state == _BEGUN:
                row = self._store.catalog.row(self._kind, effect.id)
                effect_row = decode(EffectRow, row.value) if row is not None else None
                if effect_row is None:
                    continue
                if effect_row.effect.state == _BEGUN and effect_row.session == self._row.id:
                    self._end(effect_row, _UNSETTLED, synthetic=True)
                    get_logger(__name__).warning(
                        "effect %s of session %s is unsettled: its process ended during it",
                        effect.id,
                        self._row.id,
                    )
                else:
                    self._record_end_elsewhere(effect_row)

    def _record_end_elsewhere(self, effect_row: EffectRow) -> None:
        """Record the outcome of an effect that another session performed."""
        state = _UNSETTLED if effect_row.effect.state == _BEGUN else effect_row.effect.state
        data = {"id": effect_row.effect.id, "state": state, "synthetic": True}
        if effect_row.outcome is not None:
            data["outcome"] = effect_row.outcome
        if effect_row.error:
            data["error"] = effect_row.error
        self._writer.add(Draft("ended", data, self._store.author))

    def find_previous(self, action: Action) -> tuple[EffectRow | None, int]:
        """Return the effect that was done or begun under the same key, and the version of its row.

        Raises:
            Conflict: another action has the key, or the effect is in progress.
            Unsettled: its outcome is not known, and it must not be run again.
        """
        effect_row, version = self._find_by_key(self._key(action)) if action.key else (None, 0)
        if effect_row is None and action.key and action.scope == "timeline":
            effect_row, version = self._inherited(action.key)
        if effect_row is None:
            return None, 0
        if effect_row.effect.name != action.name:
            raise key_taken(action, effect_row.effect.name)
        if effect_row.effect.state in (_BEGUN, _UNSETTLED):
            if effect_row.session != self._row.id or effect_row.effect.id in self.in_progress:
                raise in_flight(action.key, effect_row.session)
            if effect_row.effect.replay not in _RERUN:
                raise unsettled(msgspec.to_builtins(effect_row.effect))
        return effect_row, version

    def _inherited(self, key: str) -> tuple[EffectRow | None, int]:
        """Find an effect under a key of an earlier timeline of this session.

        A merge, or a restore to a commit that knows the effect, does not make it undone.
        """
        for span in reversed(self._writer.event_log.timeline_spans()[:-1]):
            effect_row, version = self._find_by_key(f"{span.timeline}/{key}")
            if effect_row is None or self._writer.state.effects.get(effect_row.effect.id) is None:
                continue
            if self._is_mine(effect_row) or effect_row.effect.state == _DONE:
                return effect_row, version
        return None, 0

    def _find_by_key(self, key: str) -> tuple[EffectRow | None, int]:
        row = self._store.catalog.row("deed-key", key)
        found = self._store.catalog.row(self._kind, row.value.decode()) if row else None
        return (decode(EffectRow, found.value), found.version) if found else (None, 0)

    def _begin(
        self,
        action: Action,
        call_arguments: dict[str, Any],
        *,
        why: str,
        before: EffectRow | None,
        version: int,
        approve: str | None,
    ) -> EffectRow:
        """Write the intent of an effect.

        `version` is that of the row of `before`. If two processes retry the effect, the first one
        wins.
        """
        store = self._store
        id_ = before.effect.id if before else uuid7(store.clock)
        mark = self.digest_call(action, call_arguments)
        approval, rows = "", []
        if approve is not None:
            approval, used = self.approvals.allow(
                format_call(action.name, call_arguments), why=approve, digest=mark, effect=id_
            )
            rows.append(used)
        effect = Effect(
            id=id_,
            name=action.name,
            replay=action.replay,
            state=_BEGUN,
            key=action.key,
            scope=action.scope,
            why=store.secrets.redact(why),
            digest=mark,
            begun=self._writer.tip.seq + 1,
            time=store.clock.now_ns(),
            actor=store.author,
            command=command_of(store, {"name": action.name, **call_arguments}),
        )
        effect_row = EffectRow(effect, self._row.id)
        rows.append(RowChange(self._kind, id_, encode(effect_row), expect=version))
        if action.key and before is None:
            rows.append(RowChange("deed-key", self._key(action), id_.encode(), expect=0))
        data = {name: getattr(effect, name) for name in _INTENT} | call_arguments
        if approval:
            data["approval"] = approval
        self._declare(effect_row, data, rows)
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
                change = RowChange(self._kind, effect.id, encode(ended))
                return self._writer.add(Draft("ended", data, self._store.author), rows=[change])[0]
        finally:
            self.in_progress.pop(effect_row.effect.id, None)

    def digest_call(self, action: Action, call_arguments: dict[str, Any]) -> str:
        """Return the digest of a call: equal for equal name and arguments."""
        return digest(self._store.objects.hasher.oid, action.name, call_arguments)

    @property
    def _kind(self) -> str:
        return f"deed/{self._row.family}"

    def _key(self, action: Action) -> str:
        return key_of(self._row, action.scope, action.key)


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


def format_call(name: str, call_arguments: dict[str, Any]) -> str:
    """Return a call as readable text."""
    args = [repr(arg) for arg in call_arguments["args"]]
    args += [f"{key}={value!r}" for key, value in call_arguments["kwargs"].items()]
    return f"{name}({', '.join(args)})"[:1000]
