"""Approvals: actions that wait for a human.

A request is an event in the journal. The answer comes through the inbox. An approval is used for
one effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import FLAG, check_text, require
from ortet.backends.base import Catalog, CatalogRow, RowChange
from ortet.errors import Conflict, Invalid, NotFound, OrtetError, Refused
from ortet.history.records import Fold
from ortet.ids import uuid7
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Approval, answer_approval
from ortet.journal.state.state import SessionState
from ortet.sessions.table import ARCHIVED, CLOSED, PENDING_APPROVALS, SessionRow, SessionTable
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.inbox import pending_events

if TYPE_CHECKING:
    from ortet.store.context import StoreContext


# Index of the sessions with open approval requests.
#
# It finds all open requests without loading every session.

# A row is written with each request, and with each timeline that inherits requests by a fork or a
# restore. A reader that finds no open request drops the row.
_INDEX_COMPLETE_ROW = ("store", PENDING_APPROVALS)
"""Row that says that the index is complete.

A store of an earlier release has no such row, until `_build_index` has read all sessions.
"""


def pending_approval_row(session: str) -> RowChange:
    return RowChange(PENDING_APPROVALS, session, b"")


def inherited_approval_rows(rows: Iterable[SessionRow], fold: Fold | None) -> list[RowChange]:
    """Return index rows for sessions that start from a fold with approvals."""
    asked = fold is not None and any(name == "approvals" for name, _ in fold.maps)
    return [pending_approval_row(row.id) for row in rows] if asked else []


class ApprovalSource(Protocol):
    """The sessions of a store, with their states."""

    store: StoreContext
    table: SessionTable

    def all(self) -> list[SessionRow]: ...

    def state_of(self, id_: str) -> SessionState: ...


def pending_approvals(
    sessions: ApprovalSource, sees: Callable[[str], bool] = lambda _agent: True
) -> list[tuple[SessionRow, Approval]]:
    """Return the open approval requests of all sessions, oldest session first.

    Args:
        sees: says which agents are included.
    """
    if sessions.store.catalog.row(*_INDEX_COMPLETE_ROW) is None:
        _build_index(sessions)
    found: list[tuple[SessionRow, Approval]] = []
    done: list[RowChange] = []
    for hint in _hints(sessions.store.catalog):
        try:
            row = sessions.table.get(hint.key)
        except NotFound:
            done.append(_drop_hint(hint))
            continue
        if not sees(row.agent):
            continue
        waiting = _open_approvals(sessions, row)
        found += [(row, one) for one in waiting]
        if not waiting:
            done.append(_drop_hint(hint))
    if done:
        with suppress(OrtetError):  # a new request came in; the next call drops the other rows
            sessions.store.catalog.move([], verb="answered", rows=done)
    found.sort(key=lambda pair: (pair[0].created, len(pair[0].name), pair[0].name))
    return unique_approvals(found)


def unique_approvals(
    pairs: Iterable[tuple[SessionRow, Approval]],
) -> list[tuple[SessionRow, Approval]]:
    """Return each request once, with the first of the given sessions that has it.

    Forks have the open requests of their parent. An answer counts for all of them.
    """
    found: dict[str, tuple[SessionRow, Approval]] = {}
    for row, approval in pairs:
        found.setdefault(approval.id, (row, approval))
    return list(found.values())


def _open_approvals(sessions: ApprovalSource, row: SessionRow) -> list[Approval]:
    """Return the open requests of a session. A closed or archived session has none."""
    if row.status in (CLOSED, ARCHIVED):
        return []
    state = sessions.state_of(row.id)
    found = approvals_of(sessions.store.catalog, row.id, state)
    return [one for one in found if one.state == "asked"]


def _drop_hint(hint: CatalogRow) -> RowChange:
    return RowChange(PENDING_APPROVALS, hint.key, None, expect=hint.version)


def _hints(catalog: Catalog) -> list[CatalogRow]:
    found: list[CatalogRow] = []
    while page := catalog.rows(PENDING_APPROVALS, found[-1].key if found else ""):
        found += page
    return found


def _build_index(sessions: ApprovalSource) -> None:
    """Build the index once for a store of an earlier release. New requests add their own rows."""
    asking = [
        pending_approval_row(row.id) for row in sessions.all() if _open_approvals(sessions, row)
    ]
    kind, key = _INDEX_COMPLETE_ROW
    with suppress(OrtetError):  # a read-only store is searched each time
        sessions.store.catalog.move([], verb="asks", rows=[*asking, RowChange(kind, key, b"")])


USED = "approval-used"
"""Row kind: which effect used an approval.

The rows survive restores and are shared by forks, so that an approval is used only once.
"""


_ANSWER = "approval-answer"
"""Row kind by approval id: the first answer.

Forks that have the same open request find it there. The reason is only in the journal.
"""


class _Answer(msgspec.Struct, frozen=True):
    """The first answer to a request."""

    ok: bool
    by: str
    time: int


def record_answer(catalog: Catalog, draft: Draft, time: int) -> None:
    """Store an answer for all sessions that have the request. The first answer counts."""
    answer = _Answer(draft.data["ok"], draft.actor, time)
    with suppress(Conflict):
        catalog.put_row(_ANSWER, draft.data["id"], encode(answer), expect=0)


def _with_answer(catalog: Catalog, approval: Approval) -> Approval:
    """Return an open request with the answer that another session of the family got."""
    row = catalog.row(_ANSWER, approval.id) if approval.state == "asked" else None
    if row is None:
        return approval
    answer = decode(_Answer, row.value)
    return msgspec.structs.replace(
        approval,
        state="given" if answer.ok else "denied",
        by=answer.by,
        answered=answer.time,
        waiting=True,
    )


def approvals_of(catalog: Catalog, session: str, state: SessionState) -> list[Approval]:
    """Return all approvals of a session, oldest first, with answers that are still in the inbox."""
    found = {approval.id: approval for approval in state.approvals}
    for event in pending_events(catalog, session):
        asked = found.get(event.data.get("id", "")) if event.kind == "given" else None
        if asked is not None and asked.state == "asked":
            found[asked.id] = msgspec.structs.replace(answer_approval(asked, event), waiting=True)
    answered = (_with_answer(catalog, approval) for approval in found.values())
    return sorted(answered, key=lambda approval: approval.seq)


def need(approvals: Iterable[Approval], id_: str) -> Approval:
    for approval in approvals:
        if approval.id == id_:
            return approval
    raise NotFound(
        "no_approval", f"no approval {id_!r} was asked for here: s.actions.approvals() lists them"
    )


def draft_answer(approval: str, *, by: str, ok: bool, why: str) -> Draft:
    require(FLAG._replace(kind="bad_answer"), ok=ok)
    check_text(approval=approval, by=by, why=why)
    return Draft("given", {"id": approval, "ok": ok, "why": why}, by)


class Approvals:
    """The approvals that one session requests and uses."""

    def __init__(self, store: StoreContext, row: SessionRow, writer: EventWriter) -> None:
        self._store = store
        self._row = row
        self._writer = writer

    def ask(self, what: str, *, why: str = "", digest: str = "") -> str:
        """Record a request for an approval and return its id."""
        if not what or not isinstance(what, str):
            raise Invalid("bad_request", f"{what!r}: say in words what is to be allowed")
        check_text(why=why)
        data = {"id": uuid7(self._store.clock, self._store.random), "what": what, "why": why}
        if digest:
            data["digest"] = digest
        draft, rows = Draft("asked", data, self._store.author), [pending_approval_row(self._row.id)]
        event: Event = self._writer.add(draft, rows=rows, durable=True)[0]
        return str(event.data["id"])

    def allow(self, what: str, *, why: str, digest: str, effect: str) -> tuple[str, RowChange]:
        """Return the approval for a call and the row change that marks it as used by `effect`.

        The first call records a request. An approval is good for one effect; an effect that is
        retried keeps its approval. A denial stays valid for the same call and reason; another
        reason makes a new request.

        Raises:
            Refused: "approval_pending" until a human answers, or "approval_denied".
        """
        if not isinstance(why, str) or not why:
            raise Invalid("bad_request", f"approve={why!r}: give the reason a human should read")
        for asked in sorted(self._writer.state.approvals, key=lambda a: -a.seq):
            if asked.digest != digest:
                continue
            approval = _with_answer(self._store.catalog, asked)
            key = f"{self._row.family}/{approval.id}"
            used = self._store.catalog.row(USED, key)
            if used is not None and used.value.decode() != effect:
                continue
            if approval.state == "asked":
                raise _pending(approval.id, approval.what)
            if asked.state == "asked":  # another session of the family got the answer
                ok = approval.state == "given"
                self._writer.add(draft_answer(approval.id, by=approval.by, ok=ok, why=""))
            if approval.state == "denied":
                if approval.why != why:
                    break  # another reason is a new request
                raise _denied(approval)
            expect = used.version if used is not None else 0
            return approval.id, RowChange(USED, key, effect.encode(), expect=expect)
        raise _pending(self.ask(what, why=why, digest=digest), what)

    def recorded_refusal(self, why: str, digest: str) -> Refused | None:
        """Return the refusal of a call as the journal has it, or None. Used in a replay."""
        same = [one for one in self._writer.state.approvals if one.digest == digest]
        last = max(same, key=lambda one: one.seq, default=None)
        if last is None or (last.state == "denied" and last.why != why):
            return None
        return _denied(last) if last.state == "denied" else _pending(last.id, last.what)


def is_used(error: Conflict) -> bool:
    """Return True if a transaction failed because another effect used the approval first."""
    return error.kind == "row_moved" and str(error.details.get("name")).startswith(USED)


def used_up(name: str) -> Conflict:
    return Conflict(
        "approval_used",
        f"the approval for {name!r} was just used by another effect: repeat the call to ask again",
    )


def _pending(id_: str, what: str) -> Refused:
    return Refused(
        "approval_pending",
        f"{what} waits for approval {id_}: have it answered with `ortet act approve {id_[-8:]}` or "
        f"hub.approve(session, {id_!r}, by=…), then repeat the call",
        id=id_,
        what=what,
    )


def _denied(approval: Approval) -> Refused:
    reason = f": {approval.because}" if approval.because else ""
    return Refused(
        "approval_denied",
        f"{approval.what} was denied by {approval.by}{reason}; do something else, or give another "
        "reason in approve= to ask again",
        id=approval.id,
        what=approval.what,
        by=approval.by,
        why=approval.because,
    )
