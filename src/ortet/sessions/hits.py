"""What is given back when something is recalled."""

from __future__ import annotations

import msgspec

from ortet._util.validation import TEXT, require
from ortet.errors import Invalid
from ortet.journal.state.records import Fact
from ortet.memory.records import Scores, Tier

FACT_CONSTRAINT = TEXT._replace(description="its id, a Fact or a Hit")


class HitSource(msgspec.Struct, frozen=True):
    """Where a memory is from: an event of a session, or of a memory that sessions share."""

    timeline: str
    seq: int
    kind: str  # message, fact, lesson, episode
    session: str = ""  # its id, where it is known
    name: str = ""  # of that session
    scope: str = ""  # "" the session's own, else "agent", "user:…", "project:…"

    def __str__(self) -> str:
        whose = self.name or self.session or self.timeline
        return f"{self.scope or whose}#{self.seq}"


class RecallHit(msgspec.Struct, frozen=True):
    """A memory that was recalled: `text` is exactly what was said, learned or told."""

    text: str
    score: float
    source: HitSource
    tier: Tier
    time: int
    id: str = ""  # of the fact or episode
    role: str = ""  # who said it
    scores: Scores | None = None  # where they were asked for


def fact_id(fact: str | Fact | RecallHit) -> str:
    """Of a fact as it was listed, recalled or named."""
    if isinstance(fact, RecallHit):
        if fact.source.kind not in ("fact", "lesson"):
            raise Invalid(
                "not_a_fact",
                f"the hit {fact.text[:40]!r} is of tier {fact.tier}, no fact: recall with "
                'tiers="semantic"',
            )
        return fact.id
    found = fact.id if isinstance(fact, Fact) else fact
    require(FACT_CONSTRAINT, fact=found)
    return found


class RecallResult(list[RecallHit]):
    """Hits, the best first. `dense` says how meaning took part: "" there is no embedder, "all",
    "some" when others are not embedded yet, else why not."""

    dense: str = ""
