"""Policy of automatic commits: counts uncommitted work and says when a commit is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ortet.errors import Invalid
from ortet.journal.events import Event
from ortet.journal.kinds.registry import kind_of

CommitTrigger = Literal["manual", "action", "milestone", "minutes", "cost"]
_MINUTE = 60 * 10**9


class CommitPolicy(msgspec.Struct, frozen=True):
    """When to commit automatically.

    `amount` is a number of minutes for "minutes". For "cost" it is the ratio of the time to redo
    the work to the time of a commit.
    """

    when: CommitTrigger = "manual"
    amount: float = 0.0

    @property
    def commits_on_release(self) -> bool:
        """True if pausing the session commits, because no later event can make a commit due."""
        return self.when in ("minutes", "cost")


class UncommittedWork(msgspec.Struct, frozen=True):
    """Counters of the work that no commit holds yet."""

    since: int = 0  # time of the first uncommitted event; 0: none
    actions: int = 0
    milestones: int = 0
    work: int = 0  # ns that redoing the work would take


def parse(value: Any) -> CommitPolicy:
    """Parse a policy: "action", "milestone", "manual", {"minutes": 5} or {"cost": 3.0}.

    Raises:
        Invalid: "bad_policy" for any other value.
    """
    if isinstance(value, CommitPolicy):
        return value
    if value in ("manual", "action", "milestone"):
        return CommitPolicy(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((when, amount),) = value.items()
        if (
            when in ("minutes", "cost")
            and isinstance(amount, int | float)
            and not isinstance(amount, bool)
            and amount > 0
        ):
            return CommitPolicy(when, float(amount))
    raise Invalid(
        "bad_policy",
        f"commit={value!r}: give 'manual', 'action', 'milestone', {{'minutes': 5}} or "
        "{'cost': 3.0}",
    )


def is_due(policy: CommitPolicy, uncommitted: UncommittedWork, now: int, commit_ns: int) -> bool:
    """Return True if a commit is due now.

    Args:
        commit_ns: the duration of a commit here; 0 if not known yet.
    """
    if not uncommitted.since:
        return False
    if policy.when == "action":
        return uncommitted.actions > 0
    if policy.when == "milestone":
        return uncommitted.milestones > 0
    if policy.when == "minutes":
        return now - uncommitted.since >= policy.amount * _MINUTE
    if policy.when == "cost":
        return uncommitted.work > policy.amount * commit_ns
    return False


def add_event(
    uncommitted: UncommittedWork, kind: str, data: Mapping[str, Any], now: int, last_event_time: int
) -> UncommittedWork:
    """Return the counters with one more event.

    Args:
        last_event_time: the time of the previous event.
    """
    waited = kind_of(kind).ends_wait(data)  # such a time is no work that has to be redone
    return UncommittedWork(
        since=uncommitted.since or now,
        actions=uncommitted.actions + (kind == "ended"),
        milestones=uncommitted.milestones + kind_of(kind).milestone,
        work=uncommitted.work + (0 if waited else max(0, now - last_event_time)),
    )


class AutoCommit:
    """Counts uncommitted work of one session."""

    def __init__(self, policy: CommitPolicy, now: int) -> None:
        self.policy = policy
        self.uncommitted = UncommittedWork()
        self._last_event_time = now
        self._commit_ns = 0

    def count_events(self, events: Sequence[Event]) -> None:
        """Count events that an earlier process left uncommitted.

        The time between the last of these events and now is not counted as work.
        """
        now, self._last_event_time = self._last_event_time, events[0].time
        for event in events:
            self.count_event(event.kind, event.data, event.time)
        self._last_event_time = now

    def count_event(self, kind: str, data: Mapping[str, Any], now: int) -> None:
        self.uncommitted = add_event(self.uncommitted, kind, data, now, self._last_event_time)
        self._last_event_time = now

    def is_due(self, now: int) -> bool:
        return is_due(self.policy, self.uncommitted, now, self._commit_ns)

    def committed(self, now: int, took: int) -> None:
        """Reset the counters and update the average commit time.

        The last commit counts for half of the average, so that it follows the load.
        """
        self.uncommitted, self._last_event_time = UncommittedWork(), now
        took = max(0, took)
        self._commit_ns = (self._commit_ns + took) // 2 if self._commit_ns else took

    def reset(self, now: int) -> None:
        """Reset the counters after a move: nothing is uncommitted at the new position."""
        self.uncommitted, self._last_event_time = UncommittedWork(), now

    def postpone(self, now: int) -> None:
        """Postpone a commit that failed until the next event that makes one due."""
        self.uncommitted = replace(self.uncommitted, actions=0, milestones=0, work=0, since=now)
