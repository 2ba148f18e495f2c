"""Summaries of a conversation: the protocol of summarisers, and one without a model.

It selects the most important sentences, in their own words.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple, Protocol

import msgspec

from ortet.errors import Invalid
from ortet.memory.lexical.tokenizer import Tokenizer

# Split text of most scripts into sentences, and detect prompt injection.

# A run of marks matches from its first mark only, so that a megabyte of dots is linear.
_END = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s|\Z)"
    r"|[。！？｡؟۔।॥።။]++[」』）”’»\"')\]]*+"
    r"|\n"
)
_FENCES = ("```", "~~~")
_TITLES = frozenset(["dr", "mr", "mrs", "ms", "nr", "prof", "st", "vs", "e.g", "i.e", "z.b", "d.h"])
"""Words after which a full stop never ends a sentence."""
_ABBREVIATIONS = frozenset(
    ["approx", "ca", "cf", "etc", "fig", "inc", "ltd", "bzw", "usw", "resp", "jr"]
)
"""Words after which a full stop ends a sentence if an upper-case letter follows."""

_MIN_WRAPPED_LINE_CHARS = 60
"""Length from which a line without an end mark continues on the next line in lower case."""

_BEFORE = re.compile(r"[\w.]*\Z")
_LOOK_BACK = 12

_PROMPT_INJECTION = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}"
    r"\b(?:instructions?|prompts?|rules|guidelines|guardrails|directions|above|polic(?:y|ies))\b"
    r"|\b(?:previous|prior|earlier|above|system|developer|your) "
    r"(?:instructions?|prompts?|directives?)\b"
    r"|\byou (?:are|will be) now\b|\bfrom now on,? you(?:'re| are| will be)\b"
    r"|\b(?:act|behave|respond) as (?:if|though|an?|my)\b|\bpretend (?:to be|you|that you)\b"
    r"|\b(?:jailbreak|developer mode|dan mode|god mode|unrestricted mode)\b"
    r"|\bdo(?: not|n['’]t) (?:tell|inform|alert|mention (?:this|it) to) "
    r"(?:the |your )?(?:users?|humans?|operators?|anyone)\b"
    r"|\b(?:reveal|print|repeat|leak|exfiltrate|show me)\b.{0,30}"
    r"\b(?:system prompt|secrets?|api keys?|passwords?|credentials)\b"
    r"|\b(?:always|never|must) (?:obey|refuse|comply|decline)\b"
    r"|</?(?:system|instructions?|assistant|user|tool)\b|\[/?inst\]|<\|"
    r"|^\W{0,4}(?:system|assistant|developer)\s?:"
    r"|(?:忽略|无视|無視).{0,12}(?:指令|指示|提示|規則|规则)"
    r"|\bignor(?:iere|ez|a)\b.{0,40}\b(?:anweisungen|instructions|instrucciones)\b",
    re.I | re.M,
)


class SpokenTurn(msgspec.Struct, frozen=True):
    """The text of one speaker in one turn."""

    speaker: str
    text: str


def split_sentences(text: str) -> list[str]:
    """Return the sentences in order, each on one line. Fenced code is left out."""
    prose = _without_code(text) if any(fence in text for fence in _FENCES) else text
    sentences: list[str] = []
    start = 0
    for end in _END.finditer(prose):
        if _ends(prose, start, end):
            sentences.append(prose[start : end.end()])
            start = end.end()
    sentences.append(prose[start:])
    lines = (" ".join(sentence.split()) for sentence in sentences)
    return [line for line in lines if any(map(str.isalnum, line))]


def is_prompt_injection(text: str) -> bool:
    """Return True if a text tries to steer the model that reads it.

    Such text is quoted, never followed, and nothing is learned from it.
    """
    return _PROMPT_INJECTION.search(text) is not None


def clip(text: str, limit: int) -> str:
    """Cut a text to at most `limit` characters, between words if possible, with a mark."""
    if len(text) <= limit:
        return text
    cut = text[: max(0, limit - 1)]
    space = cut.rfind(" ")
    return (cut[:space] if space > limit // 2 else cut).rstrip() + "…"[:limit]


def _without_code(text: str) -> str:
    lines: list[str] = []
    fence, opened = "", 0
    for line in text.split("\n"):
        mark = line.lstrip(" ")[:3]
        lines.append(line)
        if not fence and mark in _FENCES:
            fence, opened = mark, len(lines) - 1
        elif fence and mark == fence:
            del lines[opened:]  # a fence that is never closed stays in the text
            lines.append("")
            fence = ""
    return "\n".join(lines)


def _ends(prose: str, start: int, end: re.Match[str]) -> bool:
    mark = end[0]
    if mark == "\n":
        return not _is_wrapped_line(prose, start, end.start())
    if mark != ".":
        return True
    match = _BEFORE.search(prose, max(start, end.start() - _LOOK_BACK), end.start())
    before = match[0] if match else ""
    word = before.casefold()
    if word in _TITLES or (len(before) == 1 and before.isupper() and before != "I"):
        return False
    if word in _ABBREVIATIONS:
        return prose[end.end() : end.end() + 2].strip().isupper()
    # "1. first do this"
    return not (word.isdigit() and not prose[start : end.start() - len(word)].strip())


def _is_wrapped_line(prose: str, start: int, end: int) -> bool:
    line = max(start, prose.rfind("\n", start, end) + 1)
    return end - line >= _MIN_WRAPPED_LINE_CHARS and prose[end + 1 : end + 2].islower()


__all__ = ["SpokenTurn", "Summariser", "summarise"]

SUMMARY_CHARS = 2000
_SENTENCE_CHARS = 320
"""Characters of a sentence that are read and shown."""
_SPEAKER = 40
_PARTS = 8
"""Number of parts of a conversation. Each part loses weight with each chosen sentence."""
_DUPLICATE_SHARE = 0.55
"""Share of common terms above which two sentences are duplicates."""
_MIN_TERMS = 3
"""A sentence with fewer terms needs another reason to be chosen."""
_MAX_MISSES = 200
"""Number of sentences that do not fit, after which the search stops."""

_SMALL_TALK = re.compile(
    r"\W*(?:(?:hi|hello|hey|thanks?|thank you|thx|ok|okay|sure|great|nice|cool|perfect|awesome|yes"
    r"|yeah|yep|no|nope|bye|goodbye|good (?:morning|evening|night|afternoon)|please|sorry|wow|haha"
    r"|lol|oh|you['’]?re welcome|no (?:problem|worries)|sounds good|got it|of course|certainly"
    r"|absolutely|how are you|see you|talk (?:to you )?(?:soon|later)|have a (?:nice|good|great)"
    r"|let me (?:know|look|see|check)|i see|(?:happy|glad) to (?:help|hear)|looking forward"
    r"|i(?:['’]m| am) (?:fine|good|sorry)|(?:how|what) can i (?:help|do)|is there anything else"
    r"|feel free|so much|very much|there|again|all|day|one|weekend|doing|for (?:your|the|asking"
    r"|that)|help|too|well|much|and|a lot|everyone|guys|anything|i can|to|today|you|with|this|that"
    r"|these|it|do|find|job|work|one)\b\W*)+"
    r"|(?:こんにちは|ありがとう(?:ございます)?|はい|你好|谢谢|謝謝|好的)\W*",
    re.I,
)
_SMALL_TALK_CHARS = 80
"""Largest length of small talk."""
_KEY_WORDS = (
    "decide decided decision agree agreed conclude conclusion cause because reason fix fixed solve "
    "fail error must never always important remember deadline prefer need require instead goal "
    "plan result release promise budget entschieden beschlossen décidé decidido "
    "决定 決定 必须 必須 原因 結論 结论"
)
"""Words of decisions and results."""
_NUMBER = re.compile(r"\d|\w[/_=@]\w")
_NAME = re.compile(r"[a-z,;:] [A-Z]")
_STOP_WORDS = (
    "a an the and or but if then so to of in on at by for with from as is are was were be been am "
    "do does did have has had it its this that these those i you he she we they me him her us them "
    "my your his our their not no can could will would should may might just also very there here "
    "what which who when where why how all any some more most other than too out up about into over"
)


class Summariser(Protocol):
    """Summarises turns in at most `limit` characters.

    The input is data: a text that asks for something is summarised, not obeyed.
    """

    def __call__(self, turns: Sequence[SpokenTurn], limit: int) -> str: ...


class _Sentence(NamedTuple):
    turn: int
    place: int  # position in its turn
    text: str
    terms: tuple[str, ...]
    worth: float  # importance by form, independent of the topic


def summarise(turns: Sequence[SpokenTurn], limit: int = SUMMARY_CHARS) -> str:
    """Return the most important sentences in order, one line for each turn with its speaker.

    Equal turns always give an equal summary. If nothing stands out, it is the first sentence. Each
    text is on one line after its speaker, so that it cannot pass as another speaker's.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise Invalid("bad_limit", f"limit={limit!r}: give a number of characters from 1")
    sentences = _candidate_sentences(turns)
    chosen = _choose_sentences(sentences, turns, limit)
    if not chosen:
        first = next((s for turn in turns for s in split_sentences(turn.text)), "")
        speaker = next((turn.speaker for turn in turns if split_sentences(turn.text)), "")
        return clip(f"{_lead(speaker)}{first}", limit) if first else ""
    return clip(_written(sorted(chosen), turns), limit)


def _candidate_sentences(turns: Sequence[SpokenTurn]) -> list[_Sentence]:
    """Return all sentences except small talk."""
    words = Tokenizer()
    common, settled = frozenset(words.tokens(_STOP_WORDS)), frozenset(words.tokens(_KEY_WORDS))
    settled -= common | {token for token in settled if len(token) == 1}
    candidates = []
    for number, turn in enumerate(turns):
        for place, whole in enumerate(split_sentences(turn.text)):
            text = clip(whole, _SENTENCE_CHARS)
            if len(text) <= _SMALL_TALK_CHARS and _SMALL_TALK.fullmatch(text):
                continue
            tokens = dict.fromkeys(words.tokens(text))
            terms = tuple([token for token in tokens if token not in common])
            worth = _worth(text, len(terms), has_key_word=not settled.isdisjoint(tokens))
            if worth:
                worth *= _position_weight(number, place, len(turns))
                candidates.append(_Sentence(number, place, text, terms, worth))
    return candidates


def _worth(text: str, terms: int, *, has_key_word: bool) -> float:
    worth = 1.6 if has_key_word else 1.0
    worth *= 1.25 if _NUMBER.search(text) else 1.0
    worth *= 1.15 if _NAME.search(text) else 1.0
    if terms < _MIN_TERMS:
        worth = 0.5 * worth if worth > 1 else 0.0
    return worth * (0.6 if text.endswith(("?", "？", "؟")) else 1.0)


def _position_weight(turn: int, place: int, turns: int) -> float:
    """Return a weight: the start states the topic, and the end states the result."""
    weight = 1.5 if turn == 0 else 1.2 if turn >= turns - 2 else 1.0
    return weight * (1.1 if place == 0 else 1.0)


def _weights(candidates: Sequence[_Sentence]) -> dict[str, float]:
    """Return term weights. Terms that recur have the most, rare or ubiquitous ones less."""
    times = Counter(term for sentence in candidates for term in sentence.terms)
    return {term: log(1 + n) * log(1 + len(candidates) / n) for term, n in times.items()}


def _choose_sentences(
    candidates: Sequence[_Sentence], turns: Sequence[SpokenTurn], limit: int
) -> list[_Sentence]:
    """Choose the best sentence repeatedly, with less weight for terms already covered.

    Values only decrease. Therefore only the top of the heap has to be computed again.
    """
    weights = _weights(candidates)
    parts = [0] * _PARTS

    def value(sentence: _Sentence) -> float:
        told = parts[sentence.turn * _PARTS // len(turns)]
        total = sum(map(weights.__getitem__, sentence.terms))
        return sentence.worth * total / sqrt(len(sentence.terms) + 4) * 0.9**told

    heap = [(-value(sentence), position) for position, sentence in enumerate(candidates)]
    heapq.heapify(heap)
    chosen: list[_Sentence] = []
    begun: set[int] = set()  # turns that already have a line
    room = limit + 1  # the last line has no line end
    misses = 0
    while heap and misses < _MAX_MISSES:
        before, position = heapq.heappop(heap)
        sentence = candidates[position]
        now = -value(sentence)
        if heap and (now, position) > heap[0] and now != before:
            heapq.heappush(heap, (now, position))
            continue
        lead = 3 if sentence.turn in begun else len(_lead(turns[sentence.turn].speaker)) + 1
        size = len(sentence.text) + lead
        if size > room or _repeats(sentence, chosen) or is_prompt_injection(sentence.text):
            misses += 1
            continue
        chosen.append(sentence)
        begun.add(sentence.turn)
        room -= size
        parts[sentence.turn * _PARTS // len(turns)] += 1
        for term in sentence.terms:
            weights[term] *= 0.35
    return chosen


def _repeats(sentence: _Sentence, chosen: Sequence[_Sentence]) -> bool:
    terms = set(sentence.terms)
    for other in chosen:
        common = len(terms.intersection(other.terms))
        if common > _DUPLICATE_SHARE * (len(terms) + len(other.terms) - common):
            return True
    return False


def _written(chosen: Sequence[_Sentence], turns: Sequence[SpokenTurn]) -> str:
    lines: list[str] = []
    before: _Sentence | None = None
    for sentence in chosen:
        if before is not None and before.turn == sentence.turn:
            gap = " " if before.place + 1 == sentence.place else " … "
            lines[-1] += gap + sentence.text
        else:
            lines.append(_lead(turns[sentence.turn].speaker) + sentence.text)
        before = sentence
    return "\n".join(lines)


def _lead(speaker: str) -> str:
    return f"- {clip(' '.join(speaker.split()), _SPEAKER) or 'somebody'}: "
