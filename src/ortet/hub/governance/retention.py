"""How long what is kept: policies by agent, holds that win over them, and applying both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.failpoints import reach
from ortet._util.validation import NUMBER, may_be
from ortet.backends.sweep_epoch import Fencing
from ortet.errors import Refused
from ortet.hub.governance.archive import archive, trim
from ortet.hub.governance.erase import erase
from ortet.hub.governance.holds import hold_of
from ortet.journal.events import Event
from ortet.sessions.profiles import find_profile
from ortet.sessions.table import ARCHIVED, CLOSED, PAUSED, SessionRow, check_agent

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.manager import Sessions

_POLICY = "retention"
_DAY_NS = 86_400 * 10**9
_SAID = frozenset({"message", "thought", "model", "compaction"})
"""Kinds that "messages" means: what was said, and what repeats it."""


class Policy(msgspec.Struct, frozen=True):
    """Of one agent, in days; None: for ever, never."""

    keep_messages: float | None = None
    archive_after: float | None = None


class Done(msgspec.Struct, frozen=True):
    """What was done, or would be, to one session: erase, archive, trim or keep; and why."""

    what: str
    session: str
    name: str
    why: str
    events: int = 0


class RetainReport(msgspec.Struct, frozen=True):
    dry_run: bool
    deeds: list[Done]


def set_policy(hub: Hub, agent: str, policy: Policy) -> Policy:
    days = NUMBER._replace(kind="bad_age", words="a number of days from 0, or None for never")
    may_be(days, keep_messages=policy.keep_messages, archive_after=policy.archive_after)
    hub.catalog.put_row(_POLICY, check_agent(agent), encode(policy))
    return policy


def policy_of(hub: Hub, agent: str) -> Policy:
    row = hub.catalog.row(_POLICY, check_agent(agent))
    return decode(Policy, row.value) if row else Policy()


def policies(hub: Hub) -> dict[str, Policy]:
    """Of every agent that was given one."""
    found: dict[str, Policy] = {}
    after = ""
    while page := hub.catalog.rows(_POLICY, after):
        found |= {row.key: decode(Policy, row.value) for row in page}
        after = page[-1].key
    return found


def retain(sessions: Sessions, *, dry_run: bool) -> RetainReport:
    """See Hub.retain."""
    deeds: list[Done] = []
    for row in sessions.all():
        deeds += _apply(sessions, row, dry_run=dry_run)
        reach("retain.session")
    if not dry_run and any(deed.what != "keep" for deed in deeds):
        sessions.hub.catalog.reclaim()
    return RetainReport(dry_run, deeds)


def _apply(sessions: Sessions, row: SessionRow, *, dry_run: bool) -> list[Done]:
    hub = sessions.hub
    held = hold_of(hub, row.id)
    if held is not None:
        return [Done("keep", row.id, row.name, f"on hold: {held.why}")]
    if find_profile(row.profile).hold:
        return [Done("keep", row.id, row.name, f"its profile is {row.profile}")]
    if row.status not in (PAUSED, CLOSED, ARCHIVED):
        return [Done("keep", row.id, row.name, "in use")]
    try:
        return _steps(sessions, row, dry_run=dry_run)
    except Refused as error:  # somebody works on it, or on a fork that shares with it, or holds one
        return [Done("keep", row.id, row.name, error.message)]


def _steps(sessions: Sessions, row: SessionRow, *, dry_run: bool) -> list[Done]:
    hub, now = sessions.hub, sessions.hub.clock.now_ns()
    policy = policy_of(hub, row.agent)
    events = list(sessions.standing(row).line.events())
    deeds: list[Done] = []
    old = _old(events, policy.keep_messages, now)
    if old and isinstance(hub.catalog, Fencing):
        why = f"said more than {policy.keep_messages:g} days ago, and hosts share the store: "
        deeds.append(Done("keep", row.id, row.name, why + "nothing is erased there", len(old)))
    elif old:
        why = f"said more than {policy.keep_messages:g} days ago"
        deeds.append(Done("erase", row.id, row.name, why, len(old)))
        if not dry_run:
            erase(sessions, row.id, old, None)
    idle = now - events[-1].time if events else 0
    late = policy.archive_after is not None and idle > policy.archive_after * _DAY_NS
    if late and row.status != ARCHIVED:
        why = f"idle for more than {policy.archive_after:g} days"
        deeds.append(Done("archive", row.id, row.name, why, len(events)))
        if not dry_run:
            archive(sessions, row.id, why)
            return deeds
    base = sessions.standing(row).line.base.seq
    rows = hub.catalog.events(row.timeline, limit=base) if base and not late else []
    behind = [one for one in rows if one.seq <= base][: None if base < events[-1].seq else -1]
    if behind:
        deeds.append(Done("trim", row.id, row.name, "kept in commits", len(behind)))
        if not dry_run:
            trim(sessions, row)
    return deeds


def _old(events: list[Event], days: float | None, now: int) -> list[int]:
    if days is None:
        return []
    since = now - int(days * _DAY_NS)
    return [e.seq for e in events if e.kind in _SAID and e.time < since and not e.erased]
