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

from ortet.errors import Invalid
from ortet.memory.extraction.sentences import SpokenTurn, clip, is_prompt_injection, split_sentences
from ortet.memory.lexical.tokenizer import Tokenizer

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
    said = _candidate_sentences(turns)
    chosen = _choose_sentences(said, turns, limit)
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
    found = []
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
                found.append(_Sentence(number, place, text, terms, worth))
    return found


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

    heap = [(-value(sentence), at) for at, sentence in enumerate(candidates)]
    heapq.heapify(heap)
    chosen: list[_Sentence] = []
    begun: set[int] = set()  # turns that already have a line
    room = limit + 1  # the last line has no line end
    misses = 0
    while heap and misses < _MAX_MISSES:
        before, at = heapq.heappop(heap)
        sentence = candidates[at]
        now = -value(sentence)
        if heap and (now, at) > heap[0] and now != before:
            heapq.heappush(heap, (now, at))
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
