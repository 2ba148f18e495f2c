"""Result types of session verbs, and the recorded form of command results."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from ortet._util.validation import TEXT, require
from ortet.errors import Invalid
from ortet.journal.environment import EnvironmentDifference
from ortet.journal.state.around import Collaboration
from ortet.journal.state.records import Effect, Fact
from ortet.machines.base import Report, Result
from ortet.memory.records import Scores, Tier
from ortet.vault.vault import format_expiry

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


_RECORDED_CHARS = 32 * 1024
"""Number of characters recorded from each end of an output."""

_SHOWN_DIFFERENCES = 5

RestoreParts = frozenset[str]
ALL_PARTS: RestoreParts = frozenset({"files", "mind", "processes"})
MACHINE_PARTS = frozenset({"files", "processes"})


class RestoreResult(msgspec.Struct, frozen=True):
    """The result of a restore.

    `deeds` are the effects after that commit, which stay done. `environment` are the differences
    between the environment now and then.
    """

    to: str
    files: Report
    deeds: list[Effect]
    collaborations: list[Collaboration] = []  # made by these effects
    environment: list[EnvironmentDifference] = []
    secrets: list[UnavailableSecret] = []  # referred to by the commit and not available here now

    def __str__(self) -> str:
        told = f"at {self.to[:12]}"
        if self.files.started:
            told += f"; running: {', '.join(self.files.started)}"
        for loss in self.files.losses:
            told += f"; not back: {loss.path or loss.what} ({loss.why})"
        if self.deeds:
            names = ", ".join(sorted({deed.name for deed in self.deeds}))
            told += f"; {len(self.deeds)} deeds happened later and stay done: {names}"
        if self.collaborations:
            told += f"; others still see {'; '.join(map(_shown, self.collaborations))}"
        if self.secrets:
            told += f"; {'; '.join(map(str, self.secrets))}"
        if self.environment:
            more = len(self.environment) - _SHOWN_DIFFERENCES
            told += f"; around it: {'; '.join(map(str, self.environment[:_SHOWN_DIFFERENCES]))}"
            told += f" and {more} more" if more > 0 else ""
        return told


class UnavailableSecret(msgspec.Struct, frozen=True):
    """A secret that a commit needs and that this host cannot provide.

    `state` is "missing", "expired" (at `expired`, ns since 1970), or "no_key" if it was sealed with
    another host's key. `used` says by what: "run", "token github", "variable API_KEY".
    """

    name: str
    state: str
    used: list[str]
    expired: int = 0

    def __str__(self) -> str:
        why = {
            "expired": f"expired at {format_expiry(self.expired)}",
            "no_key": "was sealed with a key that is not here",
        }.get(self.state, "is missing")
        if all(one.startswith("variable ") for one in self.used):
            return f"secret {self.name} {why}: set that variable, for {', '.join(self.used)}"
        again = f"`ortet secret set {self.name}`"
        return f"secret {self.name} {why}: set it again with {again}, for {', '.join(self.used)}"


def _shown(one: Collaboration) -> str:
    kind = f"{one.kind} " if one.kind else ""
    link = f", {one.link}" if one.link else ""
    return f"{kind}{one.name!r} ({one.status}{link})"


def check_parts(only: Collection[str] | None) -> frozenset[str]:
    given: Collection[str] = (
        [only] if isinstance(only, str) else ALL_PARTS if only is None else only
    )
    named = isinstance(given, Collection) and all(isinstance(part, str) for part in given)
    chosen = frozenset(given) if named else frozenset()
    if not chosen or not chosen <= ALL_PARTS:
        raise Invalid("bad_parts", f"only={only!r}: give some of 'files', 'mind', 'processes'")
    return chosen


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
