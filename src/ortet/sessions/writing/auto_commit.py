"""When a session commits by itself: a decision about what happened since the last commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from ortet.errors import Invalid
from ortet.journal.events import Event

When = Literal["manual", "action", "milestone", "minutes", "cost"]
_MINUTE = 60 * 10**9
MILESTONES = frozenset({"step", "decision"})
_WAITED = frozenset({"answer", "given"})
"""Events before which the agent waited for a person: that time need not be done again."""


class CommitPolicy(msgspec.Struct, frozen=True):
    """`amount` is minutes, or by how much redoing must outweigh a commit."""

    when: When = "manual"
    amount: float = 0.0

    @property
    def at_the_end(self) -> bool:
        """Whether a session that is let go commits: nothing later could make it due."""
        return self.when in ("minutes", "cost")


class Tally(msgspec.Struct, frozen=True):
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


def is_due(policy: CommitPolicy, tally: Tally, now: int, commit_ns: int) -> bool:
    """Whether to commit now. `commit_ns` is how long a commit takes here, 0 when not known yet."""
    if not tally.since:
        return False
    if policy.when == "action":
        return tally.actions > 0
    if policy.when == "milestone":
        return tally.milestones > 0
    if policy.when == "minutes":
        return now - tally.since >= policy.amount * _MINUTE
    if policy.when == "cost":
        return tally.work > policy.amount * commit_ns
    return False


def counted(tally: Tally, kind: str, data: Mapping[str, Any], now: int, before: int) -> Tally:
    """With one more event; `before` is when the one before it happened."""
    waited = kind in _WAITED or (kind == "message" and data.get("role") == "user")
    return Tally(
        since=tally.since or now,
        actions=tally.actions + (kind == "ended"),
        milestones=tally.milestones + (kind in MILESTONES),
        work=tally.work + (0 if waited else max(0, now - before)),
    )


class Pace:
    """Keeps count for one session."""

    def __init__(self, policy: CommitPolicy, now: int) -> None:
        self.policy = policy
        self.tally = Tally()
        self._last = now
        self._commit_ns = 0

    def take_up(self, events: Sequence[Event]) -> None:
        """Count what an earlier process left uncommitted; the time since then is not work."""
        now, self._last = self._last, events[0].time
        for event in events:
            self.saw(event.kind, event.data, event.time)
        self._last = now

    def saw(self, kind: str, data: Mapping[str, Any], now: int) -> None:
        self.tally = counted(self.tally, kind, data, now, self._last)
        self._last = now

    def is_due(self, now: int) -> bool:
        return is_due(self.policy, self.tally, now, self._commit_ns)

    def committed(self, now: int, took: int) -> None:
        """Half of what is known of a commit's time is from the last one: it follows the load."""
        self.tally, self._last = Tally(), now
        took = max(0, took)
        self._commit_ns = (self._commit_ns + took) // 2 if self._commit_ns else took

    def moved(self, now: int) -> None:
        """The session went elsewhere: nothing is uncommitted there."""
        self.tally, self._last = Tally(), now

    def failed(self, now: int) -> None:
        """A commit that was due could not be made: it is due again after the next such event."""
        self.tally = replace(self.tally, actions=0, milestones=0, work=0, since=now)
