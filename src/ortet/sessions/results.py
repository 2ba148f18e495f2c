"""Result types of session verbs, and the recorded form of command results."""

from __future__ import annotations

from typing import Any

import msgspec

from ortet._util.validation import TEXT, require
from ortet.errors import Invalid
from ortet.journal.state.records import Fact
from ortet.machines.base import Result
from ortet.memory.records import Scores, Tier
from ortet.sessions.table import PAUSED

# Result types of recall.

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
    """A recalled memory.

    Attributes:
        text: The exact content of one message, fact or episode.
        score: How well it matches; higher is better.
        source: The event that it is from.
        tier: "working" (message), "episodic" (episode) or "semantic" (fact).
        time: When it was recorded, in ns since 1970.
        id: Id of the fact or episode.
        role: Role of the message.
        scores: The parts of the score, if `explain` was set.
    """

    text: str
    score: float
    source: HitSource
    tier: Tier
    time: int
    id: str = ""
    role: str = ""
    scores: Scores | None = None


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


_RECORDED_CHARS = 32 * 1024
"""Number of characters recorded from each end of an output."""


def record_command_result(result: Result) -> dict[str, Any]:
    """Return the recorded form of a command result, with both ends of a long output."""
    told = {
        "exit_code": result.exit_code,
        "stdout": clip_middle(result.stdout),
        "stderr": clip_middle(result.stderr),
    }
    return {**told, "oom": True} if result.oom else told


def parse_command_result(outcome: dict[str, Any]) -> Result:
    """Return a command result from its recorded form. The duration is not recorded."""
    told = outcome["exit_code"], outcome["stdout"], outcome["stderr"]
    return Result(*told, duration=0.0, oom=outcome.get("oom", False))


def clip_middle(text: str) -> str:
    if len(text) <= 2 * _RECORDED_CHARS:
        return text
    return (
        f"{text[:_RECORDED_CHARS]}\n[{len(text) - 2 * _RECORDED_CHARS} characters are not "
        f"recorded]\n{text[-_RECORDED_CHARS:]}"
    )


class ArchiveRecord(msgspec.Struct, frozen=True):
    """An archived session.

    Attributes:
        session: Id of the session.
        key: Key of its bundle in the bucket.
        commit: Id of the commit to continue from.
        size: Size of the bundle in bytes.
        time: When it was archived, in ns since 1970.
        status: Status before the archive. `unarchive` restores it.
    """

    session: str
    key: str
    commit: str
    size: int
    time: int
    status: str = PAUSED
