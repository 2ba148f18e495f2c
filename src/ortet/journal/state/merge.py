"""Three-way merge of two session states, with contradictions as data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from ortet.journal.state.external_state import Collaboration, external_state_events
from ortet.journal.state.records import Artifact, Decision, Fact
from ortet.journal.state.state import SessionState

_MAX_LISTED_IDS = 1000
"""Largest number of ids of each sort in the merge event. Other events hold all of them."""


class Contradiction(msgspec.Struct, frozen=True):
    """Two different facts about the same subject, each known to one side only."""

    about: str
    ours: Fact
    theirs: Fact


class MergeAdditions(msgspec.Struct, frozen=True):
    """Records that a merge adds to our state. Conversation, plan, notes and questions stay ours.

    `artifacts` have their new version numbers. `spent` is what their side spent since `base`.
    """

    facts: list[Fact]
    lessons: list[Fact]
    decisions: list[Decision]
    artifacts: list[Artifact]
    contradictions: list[Contradiction]
    spent: dict[str, float]
    collaborations: list[Collaboration] = []

    def event_data(self) -> dict[str, Any]:
        """Return the data of the merge event."""
        return {
            "facts": [fact.id for fact in self.facts[:_MAX_LISTED_IDS]],
            "lessons": [fact.id for fact in self.lessons[:_MAX_LISTED_IDS]],
            "decisions": [decision.id for decision in self.decisions[:_MAX_LISTED_IDS]],
            "artifacts": [f"{one.name}@{one.version}" for one in self.artifacts[:_MAX_LISTED_IDS]],
            "contradictions": [
                {"about": one.about, "ours": one.ours.id, "theirs": one.theirs.id}
                for one in self.contradictions[:_MAX_LISTED_IDS]
            ],
            "spent": self.spent,
        }

    def to_events(self, source: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the events that add the merged records, without artifacts. Each names `source`."""
        found: list[tuple[str, dict[str, Any]]] = []
        for fact in (*self.facts, *self.lessons):
            found.append(
                ("lesson" if fact.lesson else "fact", {**fact_data(fact), "merged": source})
            )
        for made in self.decisions:
            data = {"id": made.id, "text": made.text, "why": made.why, "merged": source}
            found.append(("decision", {**data, "instead_of": made.instead_of}))
        for kind, data in external_state_events(self.collaborations, [], []):
            found.append((kind, {**data, "merged": source}))
        return found


def fact_data(fact: Fact) -> dict[str, Any]:
    """Return a fact as event data, without the fields that belong to one session."""
    data: dict[str, Any] = {"about": fact.about, **msgspec.to_builtins(fact)}
    for own in ("seq", "time", "lesson", "ended", "ended_by", "why"):
        data.pop(own, None)
    return data


def merge_states(base: SessionState, ours: SessionState, theirs: SessionState) -> MergeAdditions:
    """Merge their state into ours, relative to the common state `base`.

    A fact retracted on our side since `base` stays retracted. A fact retracted only on their side
    is kept.
    """
    known = {fact.id: fact for fact in ours.facts}
    there = {fact.id: fact for fact in theirs.facts}
    words = {_fact_key(fact) for fact in known.values()}
    new = []
    for fact in sorted(there.values(), key=_seq_of):
        if fact.id in known or base.facts.get(fact.id) is not None or _fact_key(fact) in words:
            continue
        if ours.past.get(fact.id) is not None:
            continue
        words.add(_fact_key(fact))
        new.append(fact)
    mine = [fact for fact in known.values() if fact.id not in there]
    return MergeAdditions(
        facts=[fact for fact in new if not fact.lesson],
        lessons=[fact for fact in new if fact.lesson],
        decisions=[
            decision
            for decision in sorted(theirs.decisions, key=_seq_of)
            if ours.decisions.get(decision.id) is None and base.decisions.get(decision.id) is None
        ],
        artifacts=_artifacts(base, ours, theirs),
        contradictions=list(_contradictions(mine, new)),
        spent=_spent(base, theirs),
        collaborations=list(_collaborations(base, ours, theirs)),
    )


def _contradictions(ours: Iterable[Fact], theirs: Iterable[Fact]) -> Iterable[Contradiction]:
    """Yield contradictions between facts that are known to one side only.

    Facts that both sides know do not contradict each other.
    """
    about: dict[str, list[Fact]] = defaultdict(list)
    for fact in sorted(ours, key=_seq_of):
        if fact.about:
            about[fact.about].append(fact)
    for fact in theirs:
        for other in about.get(fact.about, ()):
            if not (fact.lesson or other.lesson):
                yield Contradiction(fact.about, other, fact)


def _artifacts(base: SessionState, ours: SessionState, theirs: SessionState) -> list[Artifact]:
    """Return their new artifacts. A name that we have too gets the next version numbers."""
    old = {(one.name, one.version, one.oid, one.link) for one in base.artifacts}
    held: dict[str, list[Artifact]] = defaultdict(list)
    for one in ours.artifacts:
        held[one.name].append(one)
    found = []
    for one in sorted(theirs.artifacts, key=_seq_of):
        same = any((x.oid, x.link) == (one.oid, one.link) for x in held[one.name])
        if same or (one.name, one.version, one.oid, one.link) in old:
            continue
        last = max((x.version for x in held[one.name]), default=0)
        held[one.name].append(msgspec.structs.replace(one, version=last + 1))
        found.append(held[one.name][-1])
    return found


def _collaborations(
    base: SessionState, ours: SessionState, theirs: SessionState
) -> Iterable[Collaboration]:
    """Yield their new or changed collaborations.

    Others can see them. If both sides changed one, theirs gets a name with a number.
    """
    for one in sorted(theirs.collaborations, key=_seq_of):
        before, mine = base.collaborations.get(one.name), ours.collaborations.get(one.name)
        if one == before or _without_position(one) == _without_position(mine):
            continue
        name, number = one.name, 2
        while mine is not None and mine != before:
            name, number = f"{one.name} ({number})", number + 1
            mine, before = ours.collaborations.get(name), None
        yield msgspec.structs.replace(one, name=name)


def _without_position(collaboration: Collaboration | None) -> Any:
    return collaboration and msgspec.structs.replace(collaboration, seq=0, time=0)


def _spent(base: SessionState, theirs: SessionState) -> dict[str, float]:
    before = base.core.spent
    used = {name: x - before.get(name, 0.0) for name, x in theirs.core.spent.items()}
    return {name: amount for name, amount in used.items() if amount > 0}


def _fact_key(fact: Fact) -> tuple[str, str, bool]:
    """Return the key that makes two facts with equal text one fact."""
    return " ".join(fact.text.split()), fact.about, fact.lesson


def _seq_of(thing: Fact | Decision | Artifact | Collaboration) -> int:
    return thing.seq
