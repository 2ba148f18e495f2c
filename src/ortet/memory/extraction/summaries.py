"""Summaries of what was said: the seam for summarisers, and one that needs no model: it takes the
sentences that stand out, as they were said."""

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
"""Characters of a sentence that are looked at and told."""
_SPEAKER = 40
_PARTS = 8
"""The conversation is told in so many parts, so that none of them takes all the room."""
_DUPLICATE_SHARE = 0.55
"""The share of their terms that two sentences have in common of which one is enough."""
_MIN_TERMS = 3
"""Terms below which a sentence must have something else to be told for."""
_MAX_MISSES = 200
"""So many sentences that do not fit are tried before the rest is taken not to."""

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
"""Characters that small talk does not go on for."""
_KEY_WORDS = (
    "decide decided decision agree agreed conclude conclusion cause because reason fix fixed solve "
    "fail error must never always important remember deadline prefer need require instead goal "
    "plan result release promise budget entschieden beschlossen décidé decidido "
    "决定 決定 必须 必須 原因 結論 结论"
)
"""What is said of what is settled."""
_NUMBER = re.compile(r"\d|\w[/_=@]\w")
_NAME = re.compile(r"[a-z,;:] [A-Z]")
_STOP_WORDS = (
    "a an the and or but if then so to of in on at by for with from as is are was were be been am "
    "do does did have has had it its this that these those i you he she we they me him her us them "
    "my your his our their not no can could will would should may might just also very there here "
    "what which who when where why how all any some more most other than too out up about into over"
)


class Summariser(Protocol):
    """Tells what was said in at most `limit` characters. What it is given is data: a text that asks
    for something is told, not done."""

    def __call__(self, turns: Sequence[SpokenTurn], limit: int) -> str: ...


class _Sentence(NamedTuple):
    turn: int
    place: int  # in its turn
    text: str
    terms: tuple[str, ...]
    worth: float  # of what it is, whatever it is about


def summarise(turns: Sequence[SpokenTurn], limit: int = SUMMARY_CHARS) -> str:
    """The sentences that stand out, in the order they were said, a line for each turn with who said
    it. The same turns always give the same summary; where nothing stands out, it is the beginning.

    What is told is on one line behind its speaker, so that no text can pass for another's.
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
    """All but small talk."""
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
    """What it is about is said at the beginning, what came of it at the end."""
    weight = 1.5 if turn == 0 else 1.2 if turn >= turns - 2 else 1.0
    return weight * (1.1 if place == 0 else 1.0)


def _weights(candidates: Sequence[_Sentence]) -> dict[str, float]:
    """Terms that come up again and again weigh most, not those of every sentence nor of one."""
    times = Counter(term for sentence in candidates for term in sentence.terms)
    return {term: log(1 + n) * log(1 + len(candidates) / n) for term, n in times.items()}


def _choose_sentences(
    candidates: Sequence[_Sentence], turns: Sequence[SpokenTurn], limit: int
) -> list[_Sentence]:
    """The best, again and again, each time counting for less what is told already: a value only
    ever falls, so that only the one on top of the heap has to be looked at again."""
    weights = _weights(candidates)
    parts = [0] * _PARTS

    def value(sentence: _Sentence) -> float:
        told = parts[sentence.turn * _PARTS // len(turns)]
        total = sum(map(weights.__getitem__, sentence.terms))
        return sentence.worth * total / sqrt(len(sentence.terms) + 4) * 0.9**told

    heap = [(-value(sentence), at) for at, sentence in enumerate(candidates)]
    heapq.heapify(heap)
    chosen: list[_Sentence] = []
    begun: set[int] = set()  # turns with a line
    room = limit + 1  # the last line has no end
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
