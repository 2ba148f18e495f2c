"""Result types of recall."""

from __future__ import annotations

import msgspec

from ortet._util.validation import TEXT, require
from ortet.errors import Invalid
from ortet.journal.state.records import Fact
from ortet.memory.records import Scores, Tier

FACT_CONSTRAINT = TEXT._replace(description="its id, a Fact or a Hit")


class HitSource(msgspec.Struct, frozen=True):
    """The origin of a hit: an event of a session, or of a shared memory scope."""

    timeline: str
    seq: int
    kind: str  # message, fact, lesson, episode
    session: str = ""  # id of the session, if known
    name: str = ""  # name of that session
    scope: str = ""  # "" for the session's own memory, else "agent", "user:…", "project:…"

    def __str__(self) -> str:
        whose = self.name or self.session or self.timeline
        return f"{self.scope or whose}#{self.seq}"


class RecallHit(msgspec.Struct, frozen=True):
    """A recalled memory. `text` is the exact content of one message, fact or episode."""

    text: str
    score: float
    source: HitSource
    tier: Tier
    time: int
    id: str = ""  # of the fact or episode
    role: str = ""  # role of the message
    scores: Scores | None = None  # only if they were requested


def fact_id(fact: str | Fact | RecallHit) -> str:
    """Return the id of a fact that is given as an id, a Fact or a hit.

    Raises:
        Invalid: "not_a_fact" if a hit is no fact or lesson.
    """
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
    """Hits, best first.

    `dense` says how embeddings took part. "" means that there is no embedder, "all" that all
    candidates were embedded, "some" that others are not embedded yet. Any other text is the reason
    why not.
    """

    dense: str = ""
