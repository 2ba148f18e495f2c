"""Three-way merge of two session states, with contradictions as data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from ortet.journal.state.records import (
    Artifact,
    Collaboration,
    Decision,
    Fact,
    external_state_events,
)
from ortet.journal.state.state import SessionState

_MAX_LISTED_IDS = 1000
"""Largest number of ids of each sort in the merge event. Other events hold all of them."""


class Contradiction(msgspec.Struct, frozen=True):
    """Two different facts about the same subject, each known to one side only.

    Attributes:
        about: The subject.
        ours: The fact of this session.
        theirs: The fact of the other side.
    """

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
        events: list[tuple[str, dict[str, Any]]] = []
        for fact in (*self.facts, *self.lessons):
            events.append(
                ("lesson" if fact.lesson else "fact", {**fact_data(fact), "merged": source})
            )
        for decision in self.decisions:
            data = {"id": decision.id, "text": decision.text, "why": decision.why, "merged": source}
            events.append(("decision", {**data, "instead_of": decision.instead_of}))
        for kind, data in external_state_events(self.collaborations, [], []):
            events.append((kind, {**data, "merged": source}))
        return events


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
    our_facts = {fact.id: fact for fact in ours.facts}
    their_facts = {fact.id: fact for fact in theirs.facts}
    keys = {_fact_key(fact) for fact in our_facts.values()}
    new = []
    for fact in sorted(their_facts.values(), key=_seq_of):
        if fact.id in our_facts or base.facts.get(fact.id) is not None or _fact_key(fact) in keys:
            continue
        if ours.past.get(fact.id) is not None:
            continue
        keys.add(_fact_key(fact))
        new.append(fact)
    only_ours = [fact for fact in our_facts.values() if fact.id not in their_facts]
    return MergeAdditions(
        facts=[fact for fact in new if not fact.lesson],
        lessons=[fact for fact in new if fact.lesson],
        decisions=[
            decision
            for decision in sorted(theirs.decisions, key=_seq_of)
            if ours.decisions.get(decision.id) is None and base.decisions.get(decision.id) is None
        ],
        artifacts=_artifacts(base, ours, theirs),
        contradictions=list(_contradictions(only_ours, new)),
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
    known = {_artifact_key(artifact) for artifact in base.artifacts}
    versions: dict[str, list[Artifact]] = defaultdict(list)
    for artifact in ours.artifacts:
        versions[artifact.name].append(artifact)
    added = []
    for artifact in sorted(theirs.artifacts, key=_seq_of):
        same_name = versions[artifact.name]
        content = artifact.oid, artifact.link
        if _artifact_key(artifact) in known or content in ((x.oid, x.link) for x in same_name):
            continue
        last_version = max((version.version for version in same_name), default=0)
        same_name.append(msgspec.structs.replace(artifact, version=last_version + 1))
        added.append(same_name[-1])
    return added


def _artifact_key(artifact: Artifact) -> tuple[str, int, str, str]:
    return artifact.name, artifact.version, artifact.oid, artifact.link


def _collaborations(
    base: SessionState, ours: SessionState, theirs: SessionState
) -> Iterable[Collaboration]:
    """Yield their new or changed collaborations.

    Others can see them. If both sides changed one, theirs gets a name with a number.
    """
    for collaboration in sorted(theirs.collaborations, key=_seq_of):
        before = base.collaborations.get(collaboration.name)
        our_version = ours.collaborations.get(collaboration.name)
        changed = _without_position(collaboration) != _without_position(our_version)
        if collaboration == before or not changed:
            continue
        name, number = collaboration.name, 2
        while our_version is not None and our_version != before:
            name, number = f"{collaboration.name} ({number})", number + 1
            our_version, before = ours.collaborations.get(name), None
        yield msgspec.structs.replace(collaboration, name=name)


def _without_position(collaboration: Collaboration | None) -> Any:
    return collaboration and msgspec.structs.replace(collaboration, seq=0, time=0)


def _spent(base: SessionState, theirs: SessionState) -> dict[str, float]:
    before = base.core.spent
    spent_since = {
        name: amount - before.get(name, 0.0) for name, amount in theirs.core.spent.items()
    }
    return {name: amount for name, amount in spent_since.items() if amount > 0}


def _fact_key(fact: Fact) -> tuple[str, str, bool]:
    """Return the key that makes two facts with equal text one fact."""
    return " ".join(fact.text.split()), fact.about, fact.lesson


def _seq_of(thing: Fact | Decision | Artifact | Collaboration) -> int:
    return thing.seq
