"""Detect contradicting facts: the protocol of detectors, and a detector by rules.

The rules prefer to miss a contradiction over reporting a false one.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from math import ceil
from typing import NamedTuple, Protocol

import msgspec

from ortet.memory.lexical.tokenizer import Tokenizer

# Near duplicates: similarity of two texts, and the nearest of many texts.

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
        token_numbers = array("I", [self._number(token) for token in self._content(text)])
        place = len(self._ids)
        self._ids.append(id_)
        self._token_lists.append(token_numbers)
        for token in dict.fromkeys(token_numbers):
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
        token_numbers = [numbers[t] if t in numbers else self._numbers[t] for t in content]
        hard = self._meaning_tokens | {
            number for token, number in numbers.items() if self._changes_meaning(token)
        }
        tokens = set(token_numbers)
        # A text contained in the query shares the fewest words with it; see _score.
        shared = max(
            1,
            ceil(
                len(tokens)
                * min(min_similarity, min_similarity / _CONTAINED_SCORE / _MAX_LENGTH_RATIO)
                - 1e-9
            ),
        )
        similar = []
        for place in self._candidates(tokens, shared):
            other = self._token_lists[place]
            if len(tokens.intersection(other)) < shared:
                continue  # the common case: skip the expensive score
            score = _score(token_numbers, other, hard)
            if score >= min_similarity:
                exact = token_numbers == other.tolist()
                similar.append((-score, not exact, place, exact))
        similar.sort()
        return [SimilarText(self._ids[place], -score, exact) for score, _, place, exact in similar]

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
    tokens: Sequence[object], other: Sequence[object], meaning_tokens: AbstractSet[object]
) -> float:
    words, other_words = set(tokens), set(other)
    fewer, more = sorted((len(words), len(other_words)))
    if not fewer:
        return 0.0
    common = len(words & other_words)
    score = common / (fewer + more - common)
    if fewer >= _MIN_CONTAINED_WORDS and fewer * _MAX_LENGTH_RATIO >= more:
        score = max(score, _CONTAINED_SCORE * common / fewer)
    if meaning_tokens & (words ^ other_words):
        score *= _CHANGED_MEANING_FACTOR
    return score * (1 - _ORDER * (1 - _order(tokens, other)))


def _order(tokens: Sequence[object], other: Sequence[object]) -> float:
    """Return the share of adjacent word pairs that both texts have."""
    pairs, other_pairs = set(pairwise(tokens)), set(pairwise(other))
    fewer = min(len(pairs), len(other_pairs))
    return len(pairs & other_pairs) / fewer if fewer else 1.0


_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
    r"|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
    r"(?:[-./:@'=][^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+)*"
)
_MAX_CLAIM_CHARS = 600
"""Characters of a fact that are compared. A longer fact is not a single claim."""
_MAX_DIFFERING_WORDS = 4
"""Largest number of words in which two claims may differ, at one place."""

_IGNORED_WORDS = (
    "a an the do does did that please really very just also always longer definitely indeed"
)
_BE = "is are was were be isn't aren't wasn't weren't"
_CAN = "can can't cannot"
_VERBS = (
    f"{_BE} {_CAN} must mustn't have has had need use prefer cost run listen live work require "
    "take start end open close expire last allow limit support expect speak own belong point "
    "report born call name store write host deploy manage set equal default"
)
_SINGLE = (
    "called, named, live in, live at, work at, work for, born in, run on, hosted on, listen on, "
    "report to, belong to, point to, owned by, managed by, maintained by, written in, stored "
    "in, deployed to, located in, based in, set to, defaults to"
)
"""Relations that have one value at a time."""
_OPPOSITE_VERBS = (
    "like/hate like/dislike love/hate love/dislike allow/deny allow/forbid accept/reject "
    "enable/disable start/stop include/exclude require/forbid"
)
_OPPOSITE = (
    "enabled/disabled on/off true/false yes/no open/closed allowed/forbidden required/optional "
    "mandatory/optional public/private with/without before/after up/down safe/unsafe "
    "synchronous/asynchronous sync/async valid/invalid possible/impossible same/different "
    "above/below more/less first/last online/offline legal/illegal married/single "
    "left-handed/right-handed signed/unsigned supported/unsupported known/unknown "
    "stable/unstable secure/insecure mutable/immutable"
)
_ALTERNATIVE_GROUPS = (
    "tabs spaces, dark light, tea coffee, window aisle, metric imperial, celsius fahrenheit, "
    "vim emacs vscode nano helix, npm yarn pnpm, postgres postgresql mysql sqlite mariadb "
    "oracle, monday tuesday wednesday thursday friday saturday sunday, rebase merge, bash zsh "
    "fish dash, january february march april may june july august september october november "
    "december, morning afternoon evening night, email phone chat, red green blue yellow black "
    "white, english german french spanish italian dutch norwegian chinese japanese, aws azure "
    "gcp, low medium high critical, daily weekly monthly yearly, macos linux windows"
)
"""Groups of alternatives. Naming one of them excludes the others."""


class Claim(msgspec.Struct, frozen=True):
    """A fact as detectors see it. Valid from `since` to `until`, in ns; 0 means no bound."""

    id: str
    text: str
    about: str = ""
    since: int = 0
    until: int = 0


class Detector(Protocol):
    """Returns the ids of known claims that cannot be true if the new claim is true."""

    def __call__(self, new: Claim, known: Sequence[Claim]) -> list[str]: ...


class _ParsedClaim(NamedTuple):
    stems: list[str]  # without filler words and negations
    raw: list[str]  # the same words as they were written
    negated: bool


class RuleDetector:
    """Detects contradictions between claims about the same subject.

    Two claims contradict if they differ only by a negation. They also contradict if they differ at
    one place only, by a number, an opposite, or another value of a relation with one value.
    """

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        self._tokenizer = tokenizer if tokenizer is not None else Tokenizer()
        self._silent = self._stems(_IGNORED_WORDS)
        self._negations = self._stems(NEGATIONS) | {"不", "没"}
        self._be, self._can = self._stems(_BE), self._stems(_CAN)
        self._verbs = self._stems(_VERBS) | {"be", "can"}
        self._single = {
            tuple(self._stem(word) for word in one.split()) for one in _SINGLE.split(", ")
        }
        self._prefer = self._stem("prefer")
        self._opposite = self._pairs(_OPPOSITE)
        self._opposite_verbs = self._pairs(_OPPOSITE_VERBS)
        self._group = {
            self._stem(word): number
            for number, group in enumerate(_ALTERNATIVE_GROUPS.split(", "))
            for word in group.split()
        }

    def __call__(self, new: Claim, known: Sequence[Claim]) -> list[str]:
        parsed, about = self._parse(new.text), self._stems(new.about)
        return [
            claim.id
            for claim in known
            if claim.id != new.id
            and _overlap(new, claim)
            and self._same_subject(parsed, about, claim)
            and self._contradict(parsed, self._parse(claim.text), about)
        ]

    def _same_subject(self, parsed: _ParsedClaim, about: frozenset[str], claim: Claim) -> bool:
        other = self._stems(claim.about)
        if about and other:
            return about == other
        # If a claim has no subject, its words must contain the subject of the other.
        return other <= set(parsed.stems) and about <= set(self._parse(claim.text).stems)

    def _contradict(self, claim: _ParsedClaim, other: _ParsedClaim, about: frozenset[str]) -> bool:
        if not claim.stems or not other.stems or claim.stems == other.stems:
            return (
                bool(claim.stems) and claim.stems == other.stems and claim.negated != other.negated
            )
        if claim.negated or other.negated:
            return False
        before = _common_prefix_length(claim.stems, other.stems)
        after = _common_prefix_length(claim.stems[before:][::-1], other.stems[before:][::-1])
        here = slice(before, len(claim.stems) - after), slice(before, len(other.stems) - after)
        first, second = claim.stems[here[0]], other.stems[here[1]]
        if not before or not (
            0 < len(first) <= _MAX_DIFFERING_WORDS and 0 < len(second) <= _MAX_DIFFERING_WORDS
        ):
            return False
        start = claim.stems[:before]
        differ = frozenset(first + second) if len(first) == len(second) == 1 else frozenset()
        if differ in self._opposite_verbs:
            return True
        verb = next((stem for stem in reversed(start) if stem in self._verbs), "")
        if not verb and not (about and about <= set(start)):
            return False  # the difference is the subject itself
        single = tuple(start[-1:]) in self._single or tuple(start[-2:]) in self._single
        one_value = single or verb in ("be", self._prefer) or (about == set(start))
        if differ in self._opposite or self._alternatives(first, second, words=one_value):
            return True
        names = all(map(_is_name, claim.raw[here[0]])) and all(map(_is_name, other.raw[here[1]]))
        if single:
            return names or len(first) == len(second) == 1
        if start[-1] == self._prefer:
            topic = about and about.isdisjoint(claim.stems)
            return bool(after or topic) and len(first) == len(second)
        return start[-1] == "be" and names

    def _alternatives(self, first: list[str], second: list[str], *, words: bool) -> bool:
        """Return True if all differing words are numbers or, with `words`, of the same group."""
        if len(first) != len(second):
            return False
        for word, other in zip(first, second, strict=True):
            numbers = word[:1].isdigit() and other[:1].isdigit()
            group = self._group.get(word, -1) if words else -1
            if word != other and not numbers and (group < 0 or group != self._group.get(other)):
                return False
        return True

    def _parse(self, text: str) -> _ParsedClaim:
        stems: list[str] = []
        raw: list[str] = []
        no = 0
        for word in _words(text[:_MAX_CLAIM_CHARS]):
            stem = self._stem(word)
            no += stem in self._negations
            normalised = "can" if stem in self._can else "be" if stem in self._be else stem
            if normalised in ("be", "can") or not (stem in self._negations or stem in self._silent):
                stems.append(normalised)
                raw.append(word)
        return _ParsedClaim(stems, raw, no % 2 == 1)

    def _pairs(self, text: str) -> set[frozenset[str]]:
        return {frozenset(map(self._stem, pair.split("/"))) for pair in text.split()}

    def _stem(self, word: str) -> str:
        return "|".join(self._tokenizer.tokens(word)) or word.casefold()

    def _stems(self, text: str) -> frozenset[str]:
        return frozenset(map(self._stem, _words(text)))


def _words(text: str) -> Iterable[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).replace("’", "'"))


def _overlap(claim: Claim, other: Claim) -> bool:
    """Return True if both claims are valid at some moment."""
    return not (claim.until and claim.until <= other.since) and not (
        other.until and other.until <= claim.since
    )


def _common_prefix_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    differ = (at for at, (a, b) in pairs if a != b)
    return next(differ, min(len(first), len(second)))


def _is_name(word: str) -> bool:
    return not word[:1].islower() or any(map(str.isdigit, word)) or bool(re.search(r"[_./@]", word))
