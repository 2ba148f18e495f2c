"""Detection of contradictions between believed facts.

It is a module of its own because it is loaded only when contradictions are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortet.journal.state.merge import Contradiction
from ortet.journal.state.records import Fact
from ortet.memory.extraction.contradictions import Claim, Detector, RuleDetector
from ortet.memory.extraction.likeness import NearDuplicateIndex

_MIN_SIMILARITY = 0.2
"""Similarity from which facts without a subject are compared. Comparing all pairs is too slow."""
_MAX_COMPARED = 500
"""Number of older facts on a subject that a new fact is compared with, newest first."""


def contradictions(facts: Sequence[Fact], detector: Detector | None = None) -> list[Contradiction]:
    """Compare each fact with earlier facts on the same subject."""
    detect = detector if detector is not None else RuleDetector()
    known = {fact.id: fact for fact in facts if not fact.lesson}
    found = []
    for new, others in _pairs(list(known.values())):
        before = [_claim(other) for other in others]
        for id_ in detect(_claim(new), before) if before else ():
            if id_ in known:
                found.append(Contradiction(new.about or known[id_].about, known[id_], new))
    return found


def _pairs(facts: Sequence[Fact]) -> Iterator[tuple[Fact, list[Fact]]]:
    about: dict[str, list[Fact]] = {}
    alike = NearDuplicateIndex()
    known: dict[str, Fact] = {}
    for fact in facts:
        subject = fact.about.casefold().strip()
        if subject:
            others = about.setdefault(subject, [])
            yield fact, others[-_MAX_COMPARED:]
            others.append(fact)
        else:
            yield (
                fact,
                [
                    known[near.id]
                    for near in alike.find_similar(fact.text, _MIN_SIMILARITY)[:_MAX_COMPARED]
                ],
            )
            alike.add(fact.id, fact.text)
            known[fact.id] = fact


def _claim(fact: Fact) -> Claim:
    return Claim(fact.id, fact.text, fact.about, fact.since, fact.until)
