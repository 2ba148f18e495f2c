"""Extract facts from messages: the protocol of extractors, and an extractor by rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from ortet.memory.extraction.facts import (
    NAME_PATTERN,
    Statement,
    rule_of,
    split_clauses,
    statement_of_speaker,
    statement_of_thing,
    text_to_remember,
)
from ortet.memory.extraction.sentences import SpokenTurn, is_prompt_injection, split_sentences

__all__ = ["Extracted", "Extractor", "RuleExtractor", "SpokenTurn"]

_USER_ROLES = {"user": "the user", "human": "the user", "": "the user"}
_MODEL_ROLES = ("assistant", "model", "ai")
_IGNORED_ROLES = ("system", "developer", "tool", "function")
_REMEMBERED_CONFIDENCE = 0.95
_MODEL_CONFIDENCE_PENALTY = 0.2
"""Reduction of confidence for statements of a model, which may be guesses."""


class Extracted(msgspec.Struct, frozen=True):
    """An extracted fact. `confidence` is from 0 to 1.

    `turn` is the number of its turn, from 0, or None if it is from the text of the episode.
    """

    text: str
    about: str = ""
    confidence: float = 0.5
    turn: int | None = None


class Extractor(Protocol):
    """Extracts facts from the summary of an episode and its turns.

    Equal input must give equal output, because an episode is processed once. An extractor with a
    new `name` processes every episode again. The input is data, not instructions.
    """

    @property
    def name(self) -> str: ...

    def __call__(self, text: str, turns: Sequence[SpokenTurn]) -> list[Extracted]: ...


class RuleExtractor:
    """Extracts plain English statements: preferences, identity, needs, rules, facts about things.

    It misses many facts and invents few. Questions, guesses, temporary states and references to
    earlier text are skipped. Nothing is taken from a turn that tries to steer the model.
    """

    name = "rules-1"

    def __call__(self, text: str, turns: Sequence[SpokenTurn]) -> list[Extracted]:
        names = _speaker_names(turns)
        found: dict[str, Extracted] = {}
        for number, turn in enumerate(turns):
            for one in _statements_of_turn(turn, names.get(turn.speaker, "")):
                extracted = Extracted(one.text, one.about, one.confidence, number)
                found.setdefault(one.text.casefold(), extracted)
        if not turns and not is_prompt_injection(text):
            for sentence in split_sentences(text):
                for one in _statements_of_sentence(sentence, "", by_model=True):
                    extracted = Extracted(one.text, one.about, one.confidence)
                    found.setdefault(one.text.casefold(), extracted)
        return list(found.values())


def _speaker_names(turns: Sequence[SpokenTurn]) -> dict[str, str]:
    """Return the name of each speaker: its own name, the name it states, or its role."""
    names: dict[str, str] = {}
    for turn in turns:
        role = turn.speaker.casefold()
        if role not in _USER_ROLES:
            names[turn.speaker] = turn.speaker
            continue
        names.setdefault(turn.speaker, _USER_ROLES[role])
        if names[turn.speaker] == _USER_ROLES[role] and "name is" in turn.text:
            told = (
                NAME_PATTERN.match(part)
                for s in split_sentences(turn.text)
                for part in split_clauses(s)
            )
            names[turn.speaker] = next((name["name"] for name in told if name), _USER_ROLES[role])
    return names


def _statements_of_turn(turn: SpokenTurn, who: str) -> Iterator[Statement]:
    role = turn.speaker.casefold()
    if role in _IGNORED_ROLES or is_prompt_injection(turn.text):
        return
    for sentence in split_sentences(turn.text):
        yield from _statements_of_sentence(sentence, who, by_model=role in _MODEL_ROLES)


def _statements_of_sentence(sentence: str, who: str, *, by_model: bool) -> Iterator[Statement]:
    if by_model:
        for clause in split_clauses(sentence):
            found = statement_of_thing(clause, specific_only=True)
            if found is not None:
                yield found._replace(
                    confidence=round(found.confidence - _MODEL_CONFIDENCE_PENALTY, 2)
                )
        return
    rule = rule_of(sentence)
    if rule is not None:
        own = re.search(r"\b(?:I|me|my)\b", rule.text)
        yield rule._replace(text=f"{rule.text} (said by {who})") if own else rule
        return
    for clause in split_clauses(sentence):
        inner = text_to_remember(clause)
        found = _statement_of_clause(inner or clause, who)
        if inner and found is not None:
            yield found._replace(confidence=max(_REMEMBERED_CONFIDENCE, found.confidence))
        elif found is not None:
            yield found


def _statement_of_clause(clause: str, who: str) -> Statement | None:
    return (
        statement_of_speaker(clause, who)
        or statement_of_thing(clause)
        or _group_statement(clause, who)
    )


def _group_statement(clause: str, who: str) -> Statement | None:
    """Return a statement about "we", attributed to the speaker: the group is unknown."""
    if clause[:3].casefold() != "we ":
        return None
    found = statement_of_thing(f"the team {clause[3:]}")
    return found and Statement(f"according to {who}, we {clause[3:]}", who, 0.75)
