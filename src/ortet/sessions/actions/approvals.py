"""Actions that wait for a human: asked in the journal, answered beside it, used for one deed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from ortet._util.validation import FLAG, check_text, require
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.ids import uuid7
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Approval
from ortet.journal.state.reducers import answer_approval
from ortet.journal.state.state import SessionState
from ortet.sessions.actions.asking import pending_approval_row
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.inbox import pending_events

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

USED = "approval-used"
"""Rows of this kind say which deed took an approval. They outlive restores and are shared by forks:
what was allowed once is done once."""


def approvals_of(catalog: Catalog, session: str, state: SessionState) -> list[Approval]:
    """All of a session, oldest first, with answers that are not in the journal yet."""
    found = {approval.id: approval for approval in state.approvals}
    for event in pending_events(catalog, session):
        asked = found.get(event.data.get("id", "")) if event.kind == "given" else None
        if asked is not None and asked.state == "asked":
            found[asked.id] = msgspec.structs.replace(answer_approval(asked, event), waiting=True)
    return sorted(found.values(), key=lambda approval: approval.seq)


def need(approvals: Iterable[Approval], id_: str) -> Approval:
    for approval in approvals:
        if approval.id == id_:
            return approval
    raise NotFound(
        "no_approval", f"no approval {id_!r} was asked for here: s.approvals() lists them"
    )


def draft_answer(approval: str, *, by: str, ok: bool, why: str) -> Draft:
    require(FLAG._replace(kind="bad_answer"), ok=ok)
    check_text(approval=approval, by=by, why=why)
    return Draft("given", {"id": approval, "ok": ok, "why": why}, by)


class Approvals:
    """What one session asks for and may use."""

    def __init__(self, hub: Hub, row: SessionRow, writer: EventWriter) -> None:
        self._hub = hub
        self._row = row
        self._writer = writer

    def ask(self, what: str, *, why: str = "", digest: str = "") -> str:
        """Put a request before whoever may answer it; returns its id."""
        if not what or not isinstance(what, str):
            raise Invalid("bad_request", f"{what!r}: say in words what is to be allowed")
        check_text(why=why)
        data = {"id": uuid7(self._hub.clock, self._hub.random), "what": what, "why": why}
        if digest:
            data["digest"] = digest
        draft, rows = Draft("asked", data, self._hub.author), [pending_approval_row(self._row.id)]
        event: Event = self._writer.add(draft, rows=rows, durable=True)[0]
        return str(event.data["id"])

    def allow(self, what: str, *, why: str, digest: str, effect: str) -> tuple[str, RowChange]:
        """The approval for a call, and what marks it as used by the deed `effect`.

        The first call asks and is Refused("approval_pending"), as all are until a human answered.
        An approval is good for one deed; a deed that is taken up again keeps the one it had. What
        was denied stays so for the same call and the same reason; a better reason asks again.
        """
        if not isinstance(why, str) or not why:
            raise Invalid("bad_request", f"approve={why!r}: give the reason a human should read")
        for approval in sorted(self._writer.state.approvals, key=lambda a: -a.seq):
            if approval.digest != digest:
                continue
            key = f"{self._row.family}/{approval.id}"
            used = self._hub.catalog.row(USED, key)
            if used is not None and used.value.decode() != effect:
                continue
            if approval.state == "asked":
                raise _pending(approval.id, approval.what)
            if approval.state == "denied":
                if approval.why != why:
                    break  # another reason is another request
                raise _denied(approval)
            expect = used.version if used is not None else 0
            return approval.id, RowChange(USED, key, effect.encode(), expect=expect)
        raise _pending(self.ask(what, why=why, digest=digest), what)

    def recorded_refusal(self, why: str, digest: str) -> Refused | None:
        """What a call that was never done was told, as the mind knows it: to wait, or no."""
        same = [one for one in self._writer.state.approvals if one.digest == digest]
        last = max(same, key=lambda one: one.seq, default=None)
        if last is None or (last.state == "denied" and last.why != why):
            return None
        return _denied(last) if last.state == "denied" else _pending(last.id, last.what)


def is_used(error: Conflict) -> bool:
    """Whether a transaction failed because another deed was faster to take the approval."""
    return error.kind == "row_moved" and str(error.details.get("name")).startswith(USED)


def used_up(name: str) -> Conflict:
    return Conflict(
        "approval_used",
        f"the approval for {name!r} was just used by another deed: repeat the call to ask again",
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
