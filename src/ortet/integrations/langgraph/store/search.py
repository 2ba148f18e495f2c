"""Searches a LangGraph store by fields, and by vectors or words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import ge, gt, le, lt
from typing import Any

from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from ortet.errors import Invalid, Unsupported
from ortet.integrations.langgraph.store.journal import ItemJournal
from ortet.integrations.langgraph.store.view import ItemView, ViewItem
from ortet.memory.lexical.scoring import TermFrequencies, Weights, inverse_document_frequency
from ortet.memory.lexical.tokenizer import Tokenizer

# Filters of items and match patterns of namespaces in a LangGraph store.

_ORDER: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


Test = Callable[[Any], bool]


def compile_filter(expected: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Compile a filter to a function that tests a value.

    Each field is compared for equality or by operators. Compiling once makes testing many values
    fast.
    """
    tests = [(key, _compile_value(one)) for key, one in expected.items()]
    if len(tests) == 1:
        ((name, test),) = tests
        return lambda value: test(value.get(name))
    return lambda value: all(test(value.get(key)) for key, test in tests)


def _compile_value(expected: Any) -> Test:
    if isinstance(expected, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in expected):
            return _all_of([_compile_operator(key, one) for key, one in expected.items()])
        inner = compile_filter(expected)
        return lambda value: isinstance(value, dict) and inner(value)
    if isinstance(expected, list | tuple):
        parts = [_compile_value(one) for one in expected]
        return lambda value: (
            isinstance(value, list)
            and len(value) == len(parts)
            and all(test(one) for test, one in zip(parts, value, strict=True))
        )
    return lambda value: bool(value == expected)


def _all_of(tests: list[Test]) -> Test:
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda value: first(value) and second(value)
    return lambda value: all(test(value) for test in tests)


def _compile_operator(operator: str, other: Any) -> Test:
    if operator == "$eq":
        return lambda value: bool(value == other)
    if operator == "$ne":
        return lambda value: bool(value != other)
    if operator not in _ORDER:
        known = ", ".join(("$eq", "$ne", *_ORDER))
        raise Invalid("bad_filter", f"there is no operator {operator!r} in filters: use {known}")
    compare = _ORDER[operator]
    try:
        bound: float | None = float(other)
    except (TypeError, ValueError):
        bound = None

    def holds(value: Any) -> bool:
        if bound is not None:
            try:
                return compare(float(value), bound)
            except (TypeError, ValueError):
                pass
        # Not numbers: compare as text, which also orders ISO dates.
        return isinstance(value, str) and isinstance(other, str) and compare(value, other)

    return holds


def listed(
    namespaces: Iterable[tuple[str, ...]], wanted: ListNamespacesOp
) -> list[tuple[str, ...]]:
    """Return the matching namespaces, cut to the maximum depth, unique and sorted."""
    conditions = wanted.match_conditions or ()
    matching = (one for one in namespaces if all(_matches(one, each) for each in conditions))
    ordered = sorted({one[: wanted.max_depth] for one in matching})
    return ordered[wanted.offset : wanted.offset + wanted.limit]


def _matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    kind, path = condition.match_type, condition.path
    if kind not in ("prefix", "suffix"):
        raise Invalid("bad_filter", f"match_type {kind!r}: give 'prefix' or 'suffix'")
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(part, path, strict=True))


Scored = tuple[ViewItem, float | None]

_WEIGHTS = Weights()
_READ_BATCH_ITEMS = 1000
"""Number of values that are read at once."""


class ItemSearch:
    """Search over the items of a view, for one thread at a time."""

    def __init__(self, journal: ItemJournal, view: ItemView) -> None:
        self._journal = journal
        self._view = view
        self._tokenizer = Tokenizer()
        self._vectors: Any = None
        self._vectors_generation = -1

    def find(self, op: SearchOp, vector: Sequence[float] | None) -> list[Scored]:
        """Return the items that match `op`, with their values. The view must be up to date.

        With the query's `vector`, the nearest items come first. With a query but no vector, items
        are ranked by words. Items without a score come last, in insertion order.
        """
        now = self._journal.now
        end = op.offset + op.limit
        while True:
            scored: list[Scored]
            if not op.query:
                scored = self._plain(op, now)
            elif vector is None:
                scored = self._by_words(list(self._filtered(op, now)), op.query)
            else:
                scored = self._by_vector(list(self._filtered(op, now)), vector)
            page = scored[op.offset : end]
            if not self._view.load_values([seen for seen, _ in page]):
                return page

    def _plain(self, op: SearchOp, now: int) -> list[Scored]:
        """Return the first matches without ranking, no more than requested."""
        scored: list[Scored] = []
        for seen in self._filtered(op, now):
            scored.append((seen, None))
            if len(scored) >= op.offset + op.limit:
                break
        return scored

    def _filtered(self, op: SearchOp, now: int) -> Iterator[ViewItem]:
        items = self._view.items(tuple(op.namespace_prefix), now)
        if not op.filter:
            yield from items
            return
        fits = compile_filter(op.filter)
        for several in _grouped(items):
            self._view.load_values(several)
            for seen in several:
                if seen.value is not None and fits(seen.value):
                    yield seen

    # By words.

    def _by_words(self, items: list[ViewItem], query: str) -> list[Scored]:
        terms = self._tokenizer.query_terms(query)
        uncounted = (seen for seen in items if seen.term_counts is None)
        for several in _grouped(uncounted):
            self._view.load_values(several)
            for seen in several:
                if seen.value is not None:
                    seen.term_counts = self._count_terms(seen)
        there = [(seen, seen.term_counts) for seen in items if seen.term_counts is not None]
        average = sum(one.length for _, one in there) / max(1, len(there)) or 1.0
        k1, b = _WEIGHTS.k1, _WEIGHTS.b
        # Sum term by term, because most items contain few of the terms. The sums equal those of
        # memory.scoring.bm25.
        norms = [k1 * (1 - b + b * one.length / average) for _, one in there]
        sums: dict[int, float] = {}
        for term in terms:
            scored = [
                (number, count)
                for number, (_, one) in enumerate(there)
                if (count := one.frequencies.get(term))
            ]
            worth = inverse_document_frequency(term, len(there), len(scored)) * (k1 + 1)
            for number, count in scored:
                gain = worth * count / (count + norms[number])
                sums[number] = sums.get(number, 0.0) + gain
        scores = {id(there[number][0]): score for number, score in sums.items()}
        return _rank_items([seen for seen, _ in there], scores)

    def _count_terms(self, item: ViewItem) -> TermFrequencies:
        tokens = self._tokenizer.tokens(" ".join(_texts(item.value)))
        return TermFrequencies(dict(Counter(tokens)), len(tokens))

    # By vectors.

    def _by_vector(self, items: list[ViewItem], vector: Sequence[float]) -> list[Scored]:
        if self._vectors is None or self._vectors_generation != self._view.generation:
            try:
                from ortet.integrations.langgraph.store.vectors import ItemVectors
            except ModuleNotFoundError as error:
                raise Unsupported(
                    "extra_missing",
                    'searching by meaning needs numpy: pip install "ortet[langgraph]"',
                ) from error
            self._vectors, self._vectors_generation = ItemVectors(), self._view.generation
        missing = [seen for seen in items if seen.vectors is None and seen.entry.vectors]
        for start in range(0, len(missing), _READ_BATCH_ITEMS):
            some = missing[start : start + _READ_BATCH_ITEMS]
            vectors = self._journal.vectors([seen.entry for seen in some])
            for seen in some:
                self._vectors.put(seen, vectors[seen.entry.seq])
        return _rank_items(items, self._vectors.scores(items, vector))


def _rank_items(items: Sequence[ViewItem], scores: dict[int, float]) -> list[Scored]:
    """Sort by score, best first and stable, followed by the items without a score."""
    having = [seen for seen in items if id(seen) in scores]
    having.sort(key=lambda seen: -scores[id(seen)])
    rest = (seen for seen in items if id(seen) not in scores)
    return [*((seen, scores[id(seen)]) for seen in having), *((seen, None) for seen in rest)]


def _grouped(items: Iterator[ViewItem]) -> Iterator[list[ViewItem]]:
    while several := list(islice(items, _READ_BATCH_ITEMS)):
        yield several


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value, without field names."""
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
