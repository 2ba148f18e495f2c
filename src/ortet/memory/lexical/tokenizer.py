"""Tokens of texts: folded, stemmed, in any script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from threading import Lock

import apsw

MAX_WORD_CHARS = 64
"""Characters of a word that are used. The rest of a key or blob adds nothing."""

_CACHE_SIZE = 1 << 15
_MAX_QUERY_CHARS = 10_000
_MAX_QUERY_TERMS = 256

# Words, and the characters that join names. Joints are ASCII and never part of words, so that the
# pattern is linear.
_CHUNK = re.compile(
    r"[0-9A-Za-z\x80-\U0010ffff]+(?:(?:://|::|[_.:/\\@'-]|__)[0-9A-Za-z\x80-\U0010ffff]+)*"
    r"(?:\+\+|#)?"
)
_SEGMENT = re.compile(r"[:/\\@]+")
_JOINT = re.compile(r"[_.:/\\@'+#-]+")
_CAMEL = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]{2}")
_HUMPS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_NUMBERED = re.compile(r"([a-z]+)([0-9]+)|([0-9]+)([a-z]+)")
_CLITICS = frozenset(("s", "t", "re", "ve", "ll", "d", "m"))

# Scripts without spaces between words, and Korean, whose words include particles.
_UNSPACED_SCRIPTS = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u318f"
    "\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+)"
)
_IGNORED = {
    ord(c): None
    for c in "\u00ad\u0640\u200d\u2060\ufe0e\ufe0f"
    "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
}
"""Soft hyphens, Arabic elongation, joiners, and modifiers of emoji."""


class Tokenizer:
    """Splits texts into tokens. Thread-safe. Tokens of words are cached."""

    def __init__(self) -> None:
        self._lock = Lock()
        # FTS5 tokenizers belong to a connection; this one has no data.
        self._porter = apsw.Connection(":memory:").fts5_tokenizer("porter", ["ascii"])
        self._cache: dict[str, tuple[str, ...]] = {}

    def tokens(self, text: str) -> list[str]:
        """Return the tokens in order, with repetitions. None has a space or a capital letter.

        A name of several words (snake_case, CamelCase, a path, an address) gives its words and
        itself. Text without spaces gives its characters and all pairs of adjacent characters.
        """
        if not text.isascii():
            text = unicodedata.normalize("NFKC", text).replace("\u2019", "'").translate(_IGNORED)
        known = self._cache
        tokens: list[str] = []
        for chunk in _CHUNK.findall(text):
            cached = known.get(chunk)
            tokens += self._tokenize_chunk(chunk) if cached is None else cached
        return tokens

    def query_terms(self, text: str) -> list[str]:
        """Return the distinct tokens of a query, in order. A long query is cut."""
        terms = dict.fromkeys(self.tokens(text[:_MAX_QUERY_CHARS]))
        return list(terms)[:_MAX_QUERY_TERMS]

    def _tokenize_chunk(self, chunk: str) -> tuple[str, ...]:
        tokens = tuple(self._split(chunk))
        if len(chunk) <= MAX_WORD_CHARS:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache = {}
            self._cache[chunk] = tokens
        return tokens

    def _split(self, chunk: str) -> Iterator[str]:
        parts = [part for part in _JOINT.split(chunk) if part]
        if "'" in chunk:
            parts = list(_without_clitics(parts))
        for part in parts:
            if part.isascii():
                yield from self._split_ascii(part)
            else:
                yield from self._split_unicode(part)
        if len(chunk) > 2 * MAX_WORD_CHARS or not chunk.isascii():
            return
        joints = set(_JOINT.findall(chunk)) - {"'"}
        if joints == {"-"}:  # check-in also matches checkin
            yield self._stem("".join(parts).lower())
        elif joints:
            yield from _wholes(chunk.lower())

    def _split_ascii(self, part: str) -> Iterator[str]:
        if len(part) > MAX_WORD_CHARS:
            yield part[:MAX_WORD_CHARS].lower()
            return
        lower = part.lower()
        yield self._stem(lower)
        if _CAMEL.search(part):
            for hump in _HUMPS.findall(part):
                yield self._stem(hump.lower())
        elif (match := _NUMBERED.fullmatch(lower)) is not None:  # gpt4 also matches gpt and 4
            for group in match.groups():
                if group:
                    yield self._stem(group)

    def _split_unicode(self, part: str) -> Iterator[str]:
        """Yield words of other scripts, emoji, and text without spaces."""
        for number, run in enumerate(_UNSPACED_SCRIPTS.split(part)):
            if number % 2:
                yield from run
                yield from (run[at : at + 2] for at in range(len(run) - 1))
            elif run:
                for word in _scripts(run):
                    bare = _strip_accents(word[:MAX_WORD_CHARS])
                    yield self._stem(bare) if bare.isascii() and bare else bare or word

    def _stem(self, word: str) -> str:
        with self._lock:
            stems = self._porter(
                word.encode(),
                apsw.FTS5_TOKENIZE_DOCUMENT,
                None,
                include_offsets=False,
                include_colocated=False,
            )
        return next((str(stem) for stem in stems), word)


def _without_clitics(parts: list[str]) -> Iterator[str]:
    """Remove clitics: Caroline's -> Caroline, don't -> dont, we'll -> we. l'avion stays two."""
    for part, following in zip(parts, [*parts[1:], ""], strict=True):
        if following.lower() == "t" and part[-1:].lower() == "n":
            yield part + following
        elif part.lower() not in _CLITICS or part is parts[0]:
            yield part


def _wholes(chunk: str) -> Iterator[str]:
    """Yield a joined name, and its segments that are joined names too."""
    yield chunk
    segments = _SEGMENT.split(chunk)
    if len(segments) > 1:
        yield from (segment for segment in segments if _JOINT.search(segment))


def _scripts(run: str) -> Iterator[str]:
    """Yield letters with their marks as words, and symbols one by one. Flags are two letters."""
    word = ""
    flag = ""
    for character in run:
        kind = unicodedata.category(character)[0]
        if kind in "LMN" or (kind == "C" and unicodedata.category(character) == "Co"):
            word += character
            continue
        if word:
            yield word
            word = ""
        if "\U0001f1e6" <= character <= "\U0001f1ff":
            flag += character
            if len(flag) == 2:
                yield flag
                flag = ""
        elif kind == "S":
            yield character
    if word:
        yield word
    if flag:
        yield flag


def _strip_accents(word: str) -> str:
    """Fold case, and strip accents and vowel marks that writers leave out.

    Marks that make another letter are kept (combining classes of Indic, Thai and Japanese).
    """
    characters = [
        character
        for character in unicodedata.normalize("NFD", word.casefold())
        if not (10 <= (place := unicodedata.combining(character)) <= 35 or place >= 200)
    ]
    return unicodedata.normalize("NFC", "".join(characters))
