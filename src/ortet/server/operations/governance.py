"""Audit, holds, retention policies and erasure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import msgspec

from ortet.errors import NotFound
from ortet.hub.governance.audit import AuditLine
from ortet.hub.governance.legal_holds import Hold, hold_of
from ortet.hub.governance.retention import RetainReport, RetentionPolicy, policies, policy_of
from ortet.hub.governance.tombstones import ErasedEvent, ErasureReceipt, receipts
from ortet.hub.hub import Hub, hub_of
from ortet.server.auth.tokens import Caller
from ortet.server.operations.registry import operation
from ortet.server.operations.sessions import Agent
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import (
    Number,
    OperationRequest,
    Why,
    check_agent_visible,
    visible_sessions,
)
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.table import SessionRow

Days = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
User = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class Audit(OperationRequest, frozen=True):
    """`since`: the number of the first event whose line is returned. `limit`: the maximum number of
    lines. The whole hash chain is checked in any case.
    """

    since: Number = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1000


class AuditInfo(msgspec.Struct, frozen=True):
    """`head`: the hash of the last event. If you store it elsewhere, it proves later that no
    earlier event was changed. `sealed`: the number of events that are also part of a commit.
    `next`: the `since` of the next lines, or null if there are none.
    """

    session: str
    name: str
    agent: str
    status: str
    events: int
    erased: int
    sealed: int
    head: str
    lines: list[AuditLine]
    next: int | None
    erasures: list[ReceiptInfo]


class ReceiptInfo(msgspec.Struct, frozen=True):
    """The receipt of an erasure. If `complete` is false, another process still holds a copy of the
    objects in `left`: repeat the request after that process has ended. `replaced`: the destroyed
    objects and their replacements. `signature`: the signature of the store, in base64.
    """

    id: str
    time: int
    by: str
    session: str
    events: list[ErasedEvent]
    replaced: dict[str, str]
    left: list[str]
    signature: bytes
    complete: bool


def _receipt_info(receipt: ErasureReceipt) -> ReceiptInfo:
    data = {**msgspec.structs.asdict(receipt), "replaced": dict(receipt.replaced)}
    return ReceiptInfo(**data, complete=receipt.complete)


@operation("GET", "/sessions/{session}/audit")
def audit(view: SessionReader, ask: Audit) -> AuditInfo:
    """Check every link and every seal of a session's hash chain. The lines say who did what, when
    and why.
    """
    report = hub_of(view).audit(view.id)
    behind = [line for line in report.lines if line.seq >= ask.since]
    lines = behind[: ask.limit]
    return AuditInfo(
        session=report.session,
        name=report.name,
        agent=report.agent,
        status=report.status,
        events=report.events,
        erased=report.erased,
        sealed=report.sealed,
        head=report.head,
        lines=lines,
        next=behind[len(lines)].seq if len(behind) > len(lines) else None,
        erasures=list(map(_receipt_info, report.erasures)),
    )


class HoldInfo(Hold, frozen=True):
    """A hold on a session. `name`: the name of the session."""

    name: str


@operation("GET", "/holds", filtered=True)
def list_holds(hub: Hub, ask: Paged, caller: Caller) -> Page[HoldInfo]:
    """List the sessions that are on hold. Nothing of a session on hold can be deleted."""
    holds = [
        HoldInfo(**msgspec.structs.asdict(held), name=row.name)
        for row in visible_sessions(hub, caller)
        if (held := hold_of(hub.store, row.id)) is not None
    ]
    return paginate(holds, ask, lambda one: one.session)


@operation("PUT", "/sessions/{session}/hold", needs="admin")
def hold(view: SessionReader, ask: Why) -> Hold:
    """Put a session on hold. No policy and no erasure deletes anything of it."""
    return hub_of(view).governance.hold(view.id, ask.why)


@operation("DELETE", "/sessions/{session}/hold", needs="admin")
def release(view: SessionReader) -> Hold:
    """End the hold of a session."""
    held = hold_of(hub_of(view).store, view.id)
    if held is None:
        raise NotFound("no_hold", f"{view.name} is not on hold: GET /holds lists what is")
    hub_of(view).governance.release(view.id)
    return held


class PolicyInfo(RetentionPolicy, frozen=True):
    """The retention policy of an agent. `keep_messages`: the number of days for which messages are
    kept, or null for ever. `archive_after`: the number of idle days after which a session is
    archived, or null for never.
    """

    agent: str = ""


@operation("GET", "/retention", filtered=True)
def list_retention(hub: Hub, ask: Paged, caller: Caller) -> Page[PolicyInfo]:
    """List the retention policies of all agents that have one."""
    listed = [
        PolicyInfo(policy.keep_messages, policy.archive_after, agent)
        for agent, policy in policies(hub.store).items()
        if caller.sees(agent)
    ]
    return paginate(listed, ask, lambda one: one.agent)


class OfAgent(OperationRequest, frozen=True):
    agent: Agent


@operation("GET", "/retention/{agent}", filtered=True)
def show_retention(hub: Hub, ask: OfAgent, caller: Caller) -> PolicyInfo:
    """Show the retention policy of an agent. Without a policy, everything is kept for ever."""
    policy = policy_of(hub.store, check_agent_visible(caller, ask.agent))
    return PolicyInfo(policy.keep_messages, policy.archive_after, ask.agent)


class SetRetention(OfAgent, frozen=True):
    """`keep_messages`: the number of days for which messages are kept; without it, for ever.
    `archive_after`: the number of idle days after which a session is archived; without it, never.
    """

    keep_messages: Days | None = None
    archive_after: Days | None = None


@operation("PUT", "/retention/{agent}", needs="admin", filtered=True)
def set_retention(hub: Hub, ask: SetRetention, caller: Caller) -> PolicyInfo:
    """Set the retention policy of an agent. The operation `retain` applies it."""
    check_agent_visible(caller, ask.agent)
    policy = hub.governance.retention(
        ask.agent, keep_messages=ask.keep_messages, archive_after=ask.archive_after
    )
    return PolicyInfo(policy.keep_messages, policy.archive_after, ask.agent)


class Retain(OperationRequest, frozen=True):
    """`dry_run`: only report the changes."""

    dry_run: bool = False


@operation("POST", "/retain", needs="admin")
def retain(hub: Hub, ask: Retain) -> RetainReport:
    """Apply all retention policies: erase, archive and trim. Sessions in use are not changed."""
    return hub.governance.retain(dry_run=ask.dry_run)


class EraseOf(OperationRequest, frozen=True):
    """Without fields, everything that the session did itself. `seqs`: only the events with these
    numbers. `user`: only the actions and messages of this user.
    """

    session: str
    seqs: Annotated[list[Number], msgspec.Meta(min_length=1, max_length=100_000)] | None = None
    user: User | None = None


@operation("POST", "/sessions/{session}/erase", needs="admin", filtered=True)
def erase(pool: SessionPool, ask: EraseOf, caller: Caller) -> ReceiptInfo:
    """Erase the content of events in rows, objects and archives. The events stay in the journal
    without content, also in forks that share them.
    """
    row = pool.row(ask.session, caller.sees)
    with pool.hub() as hub:
        family = [one for one in hub.sessions() if one.family == row.family]
    with _with_sessions_closed(pool, family) as hub:
        return _receipt_info(hub.erase(row.id, seqs=ask.seqs, user=ask.user))


class EraseUser(OperationRequest, frozen=True):
    user: User


@operation("POST", "/erase", needs="admin")
def erase_user(pool: SessionPool, ask: EraseUser) -> ReceiptInfo:
    """Erase the actions and messages of a user in all sessions."""
    with pool.hub() as hub:
        rows = hub.sessions()
    with _with_sessions_closed(pool, rows) as hub:
        return _receipt_info(hub.erase(user=ask.user))


@operation("GET", "/erasures", needs="admin")
def list_erasures(hub: Hub, ask: Paged) -> Page[ReceiptInfo]:
    """List the receipts of all erasures, the oldest first."""
    return paginate(list(receipts(hub.catalog)), ask, lambda one: one.id).map_items(_receipt_info)


@contextmanager
def _with_sessions_closed(pool: SessionPool, rows: Iterable[SessionRow]) -> Iterator[Hub]:
    """Yield a hub while those sessions that are open here are closed.

    An erasure is refused if one of its sessions is in use.
    """
    with ExitStack() as held:
        hub = held.enter_context(pool.hub())
        for row in sorted(rows, key=lambda one: one.id):
            if hub.is_open(row.id):
                held.enter_context(pool.with_session_closed(row))
        yield hub
