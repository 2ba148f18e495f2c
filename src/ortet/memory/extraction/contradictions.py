"""Detect contradicting facts: the protocol of detectors, and a detector by rules.

The rules prefer to miss a contradiction over reporting a false one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from ortet.memory.extraction.likeness import NEGATIONS
from ortet.memory.lexical.tokenizer import Tokenizer

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
        said, about = self._parse(new.text), self._stems(new.about)
        return [
            claim.id
            for claim in known
            if claim.id != new.id
            and _overlap(new, claim)
            and self._same_subject(said, about, claim)
            and self._contradict(said, self._parse(claim.text), about)
        ]

    def _same_subject(self, parsed: _ParsedClaim, about: frozenset[str], claim: Claim) -> bool:
        other = self._stems(claim.about)
        if about and other:
            return about == other
        # If a claim has no subject, its words must contain the subject of the other.
        return other <= set(parsed.stems) and about <= set(self._parse(claim.text).stems)

    def _contradict(self, one: _ParsedClaim, other: _ParsedClaim, about: frozenset[str]) -> bool:
        if not one.stems or not other.stems or one.stems == other.stems:
            return bool(one.stems) and one.stems == other.stems and one.negated != other.negated
        if one.negated or other.negated:
            return False
        before = _common_prefix_length(one.stems, other.stems)
        after = _common_prefix_length(one.stems[before:][::-1], other.stems[before:][::-1])
        here = slice(before, len(one.stems) - after), slice(before, len(other.stems) - after)
        first, second = one.stems[here[0]], other.stems[here[1]]
        if not before or not (
            0 < len(first) <= _MAX_DIFFERING_WORDS and 0 < len(second) <= _MAX_DIFFERING_WORDS
        ):
            return False
        start = one.stems[:before]
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
        names = all(map(_is_name, one.raw[here[0]])) and all(map(_is_name, other.raw[here[1]]))
        if single:
            return names or len(first) == len(second) == 1
        if start[-1] == self._prefer:
            topic = about and about.isdisjoint(one.stems)
            return bool(after or topic) and len(first) == len(second)
        return start[-1] == "be" and names

    def _alternatives(self, first: list[str], second: list[str], *, words: bool) -> bool:
        """Return True if all differing words are numbers or, with `words`, of the same group."""
        if len(first) != len(second):
            return False
        for one, other in zip(first, second, strict=True):
            numbers = one[:1].isdigit() and other[:1].isdigit()
            group = self._group.get(one, -1) if words else -1
            if one != other and not numbers and (group < 0 or group != self._group.get(other)):
                return False
        return True

    def _parse(self, text: str) -> _ParsedClaim:
        stems: list[str] = []
        raw: list[str] = []
        no = 0
        for word in _words(text[:_MAX_CLAIM_CHARS]):
            stem = self._stem(word)
            no += stem in self._negations
            kept = "can" if stem in self._can else "be" if stem in self._be else stem
            if kept in ("be", "can") or not (stem in self._negations or stem in self._silent):
                stems.append(kept)
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


def _overlap(one: Claim, other: Claim) -> bool:
    """Return True if both claims are valid at some moment."""
    return not (one.until and one.until <= other.since) and not (
        other.until and other.until <= one.since
    )


def _common_prefix_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (at for at, (a, b) in pairs if a != b)
    return next(differ, min(len(one), len(other)))


def _is_name(word: str) -> bool:
    return not word[:1].islower() or any(map(str.isdigit, word)) or bool(re.search(r"[_./@]", word))
