"""Searching a LangGraph store: by fields, by meaning where texts are embedded, else by words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from langgraph.store.base import SearchOp

from ortet.errors import Unsupported
from ortet.integrations.langgraph.store.journal import ItemJournal
from ortet.integrations.langgraph.store.store_match import test_of
from ortet.integrations.langgraph.store.view import Picture, Seen
from ortet.memory.lexical.scoring import Counted, Weights, rarity
from ortet.memory.lexical.tokenizer import Words

Scored = tuple[Seen, float | None]

_WEIGHTS = Weights()
_SOME = 1000
"""Values that are read at once."""


class Search:
    """For one thread at a time."""

    def __init__(self, journal: ItemJournal, picture: Picture) -> None:
        self._journal = journal
        self._picture = picture
        self._words = Words()
        self._meanings: Any = None
        self._age = -1

    def find(self, op: SearchOp, vector: Sequence[float] | None) -> list[Scored]:
        """What `op` asks for, values read. The picture must be of now.

        With a `vector`, the one of the query, the nearest come first; with a query and none, those
        that have its words. What neither says anything of comes last, in its order, unscored.
        """
        now = self._journal.now
        end = op.offset + op.limit
        while True:
            found: list[Scored]
            if not op.query:
                found = self._plain(op, now)
            elif vector is None:
                found = self._by_words(list(self._fitting(op, now)), op.query)
            else:
                found = self._by_meaning(list(self._fitting(op, now)), vector)
            page = found[op.offset : end]
            if not self._picture.read([seen for seen, _ in page]):
                return page

    def _plain(self, op: SearchOp, now: int) -> list[Scored]:
        """No more than are asked for."""
        found: list[Scored] = []
        for seen in self._fitting(op, now):
            found.append((seen, None))
            if len(found) >= op.offset + op.limit:
                break
        return found

    def _fitting(self, op: SearchOp, now: int) -> Iterator[Seen]:
        items = self._picture.items(tuple(op.namespace_prefix), now)
        if not op.filter:
            yield from items
            return
        fits = test_of(op.filter)
        for several in _grouped(items):
            self._picture.read(several)
            for seen in several:
                if seen.value is not None and fits(seen.value):
                    yield seen

    # by words

    def _by_words(self, items: list[Seen], query: str) -> list[Scored]:
        terms = self._words.query_terms(query)
        uncounted = (seen for seen in items if seen.counted is None)
        for several in _grouped(uncounted):
            self._picture.read(several)
            for seen in several:
                if seen.value is not None:
                    seen.counted = self._counted(seen)
        there = [(seen, seen.counted) for seen in items if seen.counted is not None]
        average = sum(one.length for _, one in there) / max(1, len(there)) or 1.0
        k1, b = _WEIGHTS.k1, _WEIGHTS.b
        # term by term, as most items have few of them; the same sums as memory.scoring.bm25 makes
        norms = [k1 * (1 - b + b * one.length / average) for _, one in there]
        sums: dict[int, float] = {}
        for term in terms:
            found = [
                (number, count)
                for number, (_, one) in enumerate(there)
                if (count := one.often.get(term))
            ]
            worth = rarity(term, len(there), len(found)) * (k1 + 1)
            for number, count in found:
                gain = worth * count / (count + norms[number])
                sums[number] = sums.get(number, 0.0) + gain
        scores = {id(there[number][0]): score for number, score in sums.items()}
        return _ranked([seen for seen, _ in there], scores)

    def _counted(self, seen: Seen) -> Counted:
        tokens = self._words.tokens(" ".join(_texts(seen.value)))
        return Counted(dict(Counter(tokens)), len(tokens))

    # by meaning

    def _by_meaning(self, items: list[Seen], vector: Sequence[float]) -> list[Scored]:
        if self._meanings is None or self._age != self._picture.age:
            try:
                from ortet.integrations.langgraph.store.store_vectors import Meanings
            except ModuleNotFoundError as error:
                raise Unsupported(
                    "extra_missing",
                    'searching by meaning needs numpy: pip install "ortet[langgraph]"',
                ) from error
            self._meanings, self._age = Meanings(), self._picture.age
        missing = [seen for seen in items if seen.vectors is None and seen.entry.vectors]
        for start in range(0, len(missing), _SOME):
            some = missing[start : start + _SOME]
            made = self._journal.vectors([seen.entry for seen in some])
            for seen in some:
                self._meanings.put(seen, made[seen.entry.seq])
        return _ranked(items, self._meanings.scores(items, vector))


def _ranked(items: Sequence[Seen], scores: dict[int, float]) -> list[Scored]:
    """The best first, of likes the one that came first; then those that have no score."""
    having = [seen for seen in items if id(seen) in scores]
    having.sort(key=lambda seen: -scores[id(seen)])
    rest = (seen for seen in items if id(seen) not in scores)
    return [*((seen, scores[id(seen)]) for seen in having), *((seen, None) for seen in rest)]


def _grouped(items: Iterator[Seen]) -> Iterator[list[Seen]]:
    while several := list(islice(items, _SOME)):
        yield several


def _texts(value: Any) -> Iterator[str]:
    """All that a value says, without the names of its fields."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
