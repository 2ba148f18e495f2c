"""Near duplicates: similarity of two texts, and the nearest of many texts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from math import ceil

import msgspec

from ortet.memory.lexical.tokenizer import Tokenizer

MIN_SIMILARITY = 0.7
"""Smallest similarity of texts that say nearly the same."""

_FILLER_WORDS = (
    "a an the is are am was were be been do does did that which please really very just also"
)
"""Words that two equal statements may differ in."""
NEGATIONS = (
    "not no never none nor neither cannot can't without nothing nobody don't doesn't didn't isn't "
    "aren't wasn't weren't won't couldn't shouldn't wouldn't hasn't haven't hadn't mustn't needn't"
)

_CONTAINED_SCORE = 0.9
"""Score of a text that is fully contained in one that is not much longer."""
_MAX_LENGTH_RATIO = 1.5
_MIN_CONTAINED_WORDS = 4
"""Smallest number of words of a contained text. Shorter texts are contained in too many."""
_ORDER = 0.25
"""Share of the similarity that depends on the order of words."""
_CHANGED_MEANING_FACTOR = 0.5
"""Factor if the texts differ in a number or a negation."""


class SimilarText(msgspec.Struct, frozen=True):
    """A known text.

    `exact` means equal words in equal order, without filler words.
    """

    id: str
    score: float
    exact: bool


class NearDuplicateIndex:
    """Texts by id, with a search for near duplicates.

    The search never misses a text above the limit. It looks up the rarest words of the query, as
    many as a similar text must share at least one of.
    """

    def __init__(
        self, texts: Iterable[tuple[str, str]] = (), *, tokenizer: Tokenizer | None = None
    ) -> None:
        self._tokenizer = tokenizer if tokenizer is not None else Tokenizer()
        self._filler_tokens = frozenset(self._tokenizer.tokens(_FILLER_WORDS))
        self._negation_tokens = frozenset(self._tokenizer.tokens(NEGATIONS))
        self._numbers: dict[str, int] = {}  # token -> its number
        self._meaning_tokens: set[int] = set()  # numbers of tokens that change the meaning
        self._texts_by_token: list[array[int]] = []  # token number -> texts that contain it
        self._ids: list[str] = []
        self._token_lists: list[array[int]] = []
        for id_, text in texts:
            self.add(id_, text)

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id_: str, text: str) -> None:
        """Add a text. An id may have several texts."""
        said = array("I", [self._number(token) for token in self._content(text)])
        place = len(self._ids)
        self._ids.append(id_)
        self._token_lists.append(said)
        for token in dict.fromkeys(said):
            self._texts_by_token[token].append(place)

    def nearest(self, text: str, min_similarity: float = MIN_SIMILARITY) -> SimilarText | None:
        """Return the most similar text, the oldest if several are equal, or None."""
        return next(iter(self.find_similar(text, min_similarity)), None)

    def find_similar(self, text: str, min_similarity: float = MIN_SIMILARITY) -> list[SimilarText]:
        """Return the texts with at least this similarity, most similar first."""
        content = self._content(text)
        # Unknown tokens cannot be looked up, but they count as differences.
        strange = dict.fromkeys(token for token in content if token not in self._numbers)
        numbers = {token: -1 - at for at, token in enumerate(strange)}
        said = [numbers[t] if t in numbers else self._numbers[t] for t in content]
        hard = self._meaning_tokens | {
            number for token, number in numbers.items() if self._changes_meaning(token)
        }
        tokens = set(said)
        # A text contained in the query shares the fewest words with it; see _score.
        shared = max(
            1,
            ceil(
                len(tokens)
                * min(min_similarity, min_similarity / _CONTAINED_SCORE / _MAX_LENGTH_RATIO)
                - 1e-9
            ),
        )
        found = []
        for place in self._candidates(tokens, shared):
            other = self._token_lists[place]
            if len(tokens.intersection(other)) < shared:
                continue  # the common case: skip the expensive score
            score = _score(said, other, hard)
            if score >= min_similarity:
                exact = said == other.tolist()
                found.append((-score, not exact, place, exact))
        found.sort()
        return [SimilarText(self._ids[place], -score, exact) for score, _, place, exact in found]

    def similarity(self, text: str, other: str) -> float:
        """Return the similarity of two texts, from 0 to 1 (equal words in equal order)."""
        first, second = self._content(text), self._content(other)
        hard = {token for token in (*first, *second) if self._changes_meaning(token)}
        return _score(first, second, hard)

    def _candidates(self, tokens: set[int], shared: int) -> set[int]:
        """Return texts with one of the rarest tokens.

        Every text that shares at least `shared` tokens is among them.
        """
        known = sorted(
            (token for token in tokens if token >= 0),
            key=lambda token: (len(self._texts_by_token[token]), token),
        )
        places: set[int] = set()
        for token in known[: max(0, len(known) - shared + 1)]:
            places.update(self._texts_by_token[token])
        return places

    def _content(self, text: str) -> list[str]:
        tokens = self._tokenizer.tokens(text)
        return [token for token in tokens if token not in self._filler_tokens] or tokens

    def _number(self, token: str) -> int:
        number = self._numbers.get(token)
        if number is None:
            number = self._numbers[token] = len(self._texts_by_token)
            self._texts_by_token.append(array("I"))
            if self._changes_meaning(token):
                self._meaning_tokens.add(number)
        return number

    def _changes_meaning(self, token: str) -> bool:
        return token in self._negation_tokens or any(map(str.isdigit, token))


def similarity(text: str, other: str) -> float:
    """Return the similarity of two texts, from 0 to 1. For many texts use `NearDuplicateIndex`."""
    return NearDuplicateIndex().similarity(text, other)


def _score(
    one: Sequence[object], other: Sequence[object], meaning_tokens: AbstractSet[object]
) -> float:
    first, second = set(one), set(other)
    fewer, more = sorted((len(first), len(second)))
    if not fewer:
        return 0.0
    common = len(first & second)
    score = common / (fewer + more - common)
    if fewer >= _MIN_CONTAINED_WORDS and fewer * _MAX_LENGTH_RATIO >= more:
        score = max(score, _CONTAINED_SCORE * common / fewer)
    if meaning_tokens & (first ^ second):
        score *= _CHANGED_MEANING_FACTOR
    return score * (1 - _ORDER * (1 - _order(one, other)))


def _order(one: Sequence[object], other: Sequence[object]) -> float:
    """Return the share of adjacent word pairs that both texts have."""
    first, second = set(pairwise(one)), set(pairwise(other))
    fewer = min(len(first), len(second))
    return len(first & second) / fewer if fewer else 1.0
