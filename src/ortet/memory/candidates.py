"""Which documents are worth scoring: those with the rarest terms of a question, and beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ortet.memory.lookup import Lookup
from ortet.memory.scoring import Weights, rarity
from ortet.memory.visible import Visible

TERMS = 64
"""Of a long question, as many of its rarest terms are looked for."""


class Effort(msgspec.Struct, frozen=True):
    """How much is read for one question: `postings` of its terms, and `documents` scored."""

    postings: int = 10_000
    documents: int = 240

    def for_many(self, k: int) -> Effort:
        """Enough for `k` answers."""
        return msgspec.structs.replace(self, documents=max(self.documents, 4 * k))


class Terms(msgspec.Struct, frozen=True):
    """The terms of a question that occur, in its order, with what each of them tells.

    Documents are looked for by `chosen`, the rarest first; those `pruned` are too common for that,
    and count only in what the others have found.
    """

    rarities: dict[str, float]
    chosen: tuple[str, ...]
    pruned: tuple[str, ...]


def choose(lookup: Lookup, visible: Visible, words: Sequence[str], effort: Effort) -> Terms:
    """As many terms as the effort allows, the rarest first, and at least one."""
    having = {word: _having(lookup, visible, word, effort.postings) for word in words}
    rarest = sorted((count, word) for word, count in having.items() if count)[:TERMS]
    chosen: list[str] = []
    left = float(effort.postings)
    for count, word in rarest:
        if chosen and count > left:
            break
        chosen.append(word)
        left -= count
    kept = {word for _, word in rarest}
    return Terms(
        {word: rarity(visible.total, having[word]) for word in words if word in kept},
        tuple(chosen),
        tuple(word for word in words if word in kept and word not in chosen),
    )


def _having(lookup: Lookup, visible: Visible, word: str, limit: int) -> float:
    """How many documents have a term: counted, or, when that takes too long, by how many of those
    looked at had it."""
    count = 0
    for stretch in visible.stretches:
        count += lookup.count(word, stretch.low, stretch.high, limit - count)
        if count >= limit:
            break
    return float(count)


def candidates(
    lookup: Lookup, visible: Visible, terms: Terms, weights: Weights, effort: Effort
) -> Iterator[list[int]]:
    """Ids of documents by what the chosen terms in them and beside them tell, without how often
    and how long: lists of about `effort.documents`, the most telling first."""
    told = _told(lookup, visible, terms, effort.postings)
    seeds = sorted(told, key=told.__getitem__, reverse=True)  # stable: else the nearest first
    given: set[int] = set()
    for start in range(0, len(seeds), effort.documents):
        window = _window(visible, told, seeds[start : start + effort.documents], weights)
        some = sorted(window, key=window.__getitem__, reverse=True)[: effort.documents]
        yield [id_ for id_ in some if id_ not in given]
        given.update(some)


def _told(lookup: Lookup, visible: Visible, terms: Terms, postings: int) -> dict[int, float]:
    told: dict[int, float] = {}
    get = told.get
    for term in terms.chosen:
        tells = terms.rarities[term]
        left = postings
        for stretch in visible.stretches:
            ids = lookup.having(term, stretch.low, stretch.high, left)
            for id_ in ids:
                told[id_] = get(id_, 0.0) + tells
            left -= len(ids)
            if left <= 0:
                break
    return told


def _window(
    visible: Visible, told: Mapping[int, float], seeds: Sequence[int], weights: Weights
) -> dict[int, float]:
    """What is told by documents together with those beside them; those beside the seeds too."""
    around: dict[int, None] = {}
    for seed in seeds:
        around[seed] = None
        for beside in visible.beside(seed):
            if beside and visible.stretch(beside) is not None:
                around[beside] = None
    found: dict[int, float] = {}
    for id_ in around:
        before, behind = visible.beside(id_)
        found[id_] = (
            told.get(id_, 0.0)
            + weights.before * told.get(before, 0.0)
            + weights.behind * told.get(behind, 0.0)
        )
    return found
