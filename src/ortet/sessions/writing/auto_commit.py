"""When a session commits by itself: a decision about what happened since the last commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ortet.errors import Invalid
from ortet.journal.events import Event

CommitTrigger = Literal["manual", "action", "milestone", "minutes", "cost"]
_MINUTE = 60 * 10**9
MILESTONES = frozenset({"step", "decision"})
_WAIT_KINDS = frozenset({"answer", "given"})
"""Events before which the agent waited for a person: that time need not be done again."""


class CommitPolicy(msgspec.Struct, frozen=True):
    """`amount` is minutes, or by how much redoing must outweigh a commit."""

    when: CommitTrigger = "manual"
    amount: float = 0.0

    @property
    def commits_on_release(self) -> bool:
        """Whether a session that is let go commits: nothing later could make it due."""
        return self.when in ("minutes", "cost")


class UncommittedWork(msgspec.Struct, frozen=True):
    """What is not committed."""

    since: int = 0  # when the first of it happened; 0: there is nothing
    actions: int = 0
    milestones: int = 0
    work: int = 0  # ns it would take to do it again


def parse(value: Any) -> CommitPolicy:
    """ "action", "milestone", "manual", {"minutes": 5} or {"cost": 3.0}."""
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
    """Whether to commit now. `commit_ns` is how long a commit takes here, 0 when not known yet."""
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
    """With one more event; `before` is when the one before it happened."""
    waited = kind in _WAIT_KINDS or (kind == "message" and data.get("role") == "user")
    return UncommittedWork(
        since=uncommitted.since or now,
        actions=uncommitted.actions + (kind == "ended"),
        milestones=uncommitted.milestones + (kind in MILESTONES),
        work=uncommitted.work + (0 if waited else max(0, now - last_event_time)),
    )


class AutoCommit:
    """Keeps count for one session."""

    def __init__(self, policy: CommitPolicy, now: int) -> None:
        self.policy = policy
        self.uncommitted = UncommittedWork()
        self._last_event_time = now
        self._commit_ns = 0

    def count_events(self, events: Sequence[Event]) -> None:
        """Count what an earlier process left uncommitted; the time since then is not work."""
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
        """Half of what is known of a commit's time is from the last one: it follows the load."""
        self.uncommitted, self._last_event_time = UncommittedWork(), now
        took = max(0, took)
        self._commit_ns = (self._commit_ns + took) // 2 if self._commit_ns else took

    def reset(self, now: int) -> None:
        """The session went elsewhere: nothing is uncommitted there."""
        self.uncommitted, self._last_event_time = UncommittedWork(), now

    def postpone(self, now: int) -> None:
        """A commit that was due could not be made: it is due again after the next such event."""
        self.uncommitted = replace(self.uncommitted, actions=0, milestones=0, work=0, since=now)
