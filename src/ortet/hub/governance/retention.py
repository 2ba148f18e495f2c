"""Retention policies by agent, and their application to all sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet._util.validation import NUMBER, optional
from ortet.backends.sweep_epoch import EpochFencedCatalog
from ortet.errors import Refused
from ortet.hub.governance.archive import archive, trim_rows
from ortet.hub.governance.erase import erase
from ortet.hub.governance.legal_holds import hold_of
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of
from ortet.sessions.profiles import find_profile
from ortet.sessions.table import ARCHIVED, CLOSED, PAUSED, SessionRow, check_agent

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.store.context import StoreContext

_POLICY_KIND = "retention"
_DAY_NS = 86_400 * 10**9


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Retention policy of one agent.

    Attributes:
        keep_messages: Days after which messages are erased. None keeps them forever.
        archive_after: Idle days after which sessions are archived. None never archives.
    """

    keep_messages: float | None = None
    archive_after: float | None = None


class RetentionAction(msgspec.Struct, frozen=True):
    """One action on one session, done or with `dry_run` only planned.

    `what` is "erase", "archive", "trim" or "keep".
    """

    what: str
    session: str
    name: str
    why: str
    events: int = 0


class RetainReport(msgspec.Struct, frozen=True):
    """The result of `Governance.retain`.

    Attributes:
        dry_run: True if nothing was changed.
        deeds: One action for each change or kept session.
    """

    dry_run: bool
    deeds: list[RetentionAction]


def set_policy(store: StoreContext, agent: str, policy: RetentionPolicy) -> RetentionPolicy:
    """Store the policy of an agent; see `Governance.retention`."""
    days = NUMBER._replace(kind="bad_age", description="a number of days from 0, or None for never")
    optional(days, keep_messages=policy.keep_messages, archive_after=policy.archive_after)
    store.catalog.put_row(_POLICY_KIND, check_agent(agent), encode(policy))
    return policy


def policy_of(store: StoreContext, agent: str) -> RetentionPolicy:
    """Return the policy of an agent; by default everything is kept."""
    row = store.catalog.row(_POLICY_KIND, check_agent(agent))
    return decode(RetentionPolicy, row.value) if row else RetentionPolicy()


def policies(store: StoreContext) -> dict[str, RetentionPolicy]:
    """Return the policies of all agents that have one."""
    found: dict[str, RetentionPolicy] = {}
    after = ""
    while page := store.catalog.rows(_POLICY_KIND, after):
        found |= {row.key: decode(RetentionPolicy, row.value) for row in page}
        after = page[-1].key
    return found


def retain(sessions: SessionManager, *, dry_run: bool) -> RetainReport:
    """Apply all policies; see `Governance.retain`."""
    actions: list[RetentionAction] = []
    for row in sessions.all():
        actions += _apply_policy(sessions, row, dry_run=dry_run)
        failpoint("retain.session")
    if not dry_run and any(action.what != "keep" for action in actions):
        sessions.store.catalog.reclaim()
    return RetainReport(dry_run, actions)


def _apply_policy(
    sessions: SessionManager, row: SessionRow, *, dry_run: bool
) -> list[RetentionAction]:
    store = sessions.store
    held = hold_of(store, row.id)
    if held is not None:
        return [RetentionAction("keep", row.id, row.name, f"on hold: {held.why}")]
    if find_profile(row.profile).hold:
        return [RetentionAction("keep", row.id, row.name, f"its profile is {row.profile}")]
    if row.status not in (PAUSED, CLOSED, ARCHIVED):
        return [RetentionAction("keep", row.id, row.name, "in use")]
    try:
        return _erase_archive_trim(sessions, row, dry_run=dry_run)
    except Refused as error:  # the session or a fork that shares events is open or on hold
        return [RetentionAction("keep", row.id, row.name, error.message)]


def _erase_archive_trim(
    sessions: SessionManager, row: SessionRow, *, dry_run: bool
) -> list[RetentionAction]:
    store, now = sessions.store, sessions.store.clock.now_ns()
    policy = policy_of(store, row.agent)
    events = list(sessions.services.load(row).line.events())
    actions: list[RetentionAction] = []
    old = _expired_seqs(events, policy.keep_messages, now)
    if old and isinstance(store.catalog, EpochFencedCatalog):
        why = f"said more than {policy.keep_messages:g} days ago, and hosts share the store: "
        actions.append(
            RetentionAction("keep", row.id, row.name, why + "nothing is erased there", len(old))
        )
    elif old:
        why = f"said more than {policy.keep_messages:g} days ago"
        actions.append(RetentionAction("erase", row.id, row.name, why, len(old)))
        if not dry_run:
            erase(sessions, row.id, old, None)
    idle = now - events[-1].time if events else 0
    late = policy.archive_after is not None and idle > policy.archive_after * _DAY_NS
    if late and row.status != ARCHIVED:
        why = f"idle for more than {policy.archive_after:g} days"
        actions.append(RetentionAction("archive", row.id, row.name, why, len(events)))
        if not dry_run:
            archive(sessions, row.id, why)
            return actions
    base = sessions.services.load(row).line.base.seq
    rows = store.catalog.events(row.timeline, limit=base) if base and not late else []
    behind = [one for one in rows if one.seq <= base][: None if base < events[-1].seq else -1]
    if behind:
        actions.append(RetentionAction("trim", row.id, row.name, "kept in commits", len(behind)))
        if not dry_run:
            trim_rows(sessions, row)
    return actions


def _expired_seqs(events: list[Event], days: float | None, now: int) -> list[int]:
    if days is None:
        return []
    since = now - int(days * _DAY_NS)
    expired = (event for event in events if event.time < since and not event.erased)
    return [event.seq for event in expired if kind_of(event.kind).expires_as_message]
