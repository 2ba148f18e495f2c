"""Facts that people tell in the dialogues of the benchmark, and the questions asked about them.

Each fact is drawn from a topic (memory_topics.toml): a few turns of talk, one or two of which are
the evidence, and questions of one kind that name it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import msgspec

KINDS = ("single", "multi", "time", "paraphrase", "contradiction", "distractor")
TABLE = Path(__file__).with_name("memory_topics.toml")
HELD_OUT = Path(__file__).with_name("memory_topics_final.toml")
AFTER = (
    "Right after {event} I {deed}.",
    "The week after {event} I {deed}, of all things.",
    "{event} was barely over when I {deed}.",
)
BEFORE = (
    "The day before {event} I {deed}.",
    "I {deed} just before {event}.",
    "Shortly before {event} I {deed}, don't ask me why.",
)
DATED = (" That was {when}.", " It happened {when}.", " {when}, if you want to know.")
# In talk they carry no meaning by which a question could find its answer.
EMPTY = frozenset(
    """a about according after all an and any are as at be been before by did do does for from get
    got had has have having how i in into is it its just like made make me my new no not of off on
    one or other our out over so some someone something than that the their them then there these
    they thing things this those to up was way we were what when where which who whom whose why
    will with would you your""".split()  # noqa: SIM905
)


class Told(msgspec.Struct, frozen=True):
    """One turn: who says it (0 or 1), and a mark by which a question names it as evidence."""

    who: int
    text: str
    mark: str = ""


class Exchange(msgspec.Struct, frozen=True):
    """Turns that follow one another, at a place of the dialogue between 0 and 1."""

    at: float
    turns: list[Told]


class Asked(msgspec.Struct, frozen=True):
    kind: str
    text: str
    marks: list[str]


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tell: list[str]
    ask: list[tuple[str, str]] = []
    slots: dict[str, list[str]] = {}
    answer: str = ""
    echo: list[str] = []
    more: list[str] = []
    plain: list[str] = []
    reworded: list[str] = []
    when: list[str] = []
    both: list[str] = []
    change: list[str] = []
    keep: list[str] = []
    other: list[str] = []
    bridged: list[str] = []
    event: str = ""
    subject: str = ""
    via: str = ""
    from_assistant: bool = False


class Tables(msgspec.Struct, frozen=True):
    pool: dict[str, list[str]]
    topic: list[Topic]
    friend: list[Topic]


@cache
def tables() -> Tables:
    return msgspec.convert(tomllib.loads(TABLE.read_text()), Tables)


@cache
def held_out() -> list[Topic]:
    """Topics that only the last set asks about: written by somebody who knew no score."""
    found = tomllib.loads(HELD_OUT.read_text())["topic"]
    return msgspec.convert(found, list[Topic])


def draw(chance: Random, topic: Topic, pool: Mapping[str, list[str]]) -> dict[str, str]:
    """A value for each slot there is."""
    return {name: chance.choice(values) for name, values in {**pool, **topic.slots}.items()}


def redraw(chance: Random, topic: Topic, pool: Mapping[str, list[str]], old: Any) -> dict[str, str]:
    """Other values for all that a correction changes; what was said before as old_…"""
    new = dict(old)
    for name, values in {**pool, **topic.slots}.items():
        if name not in topic.keep:
            new[name] = chance.choice([value for value in values if value != old[name]])
    return new | {f"old_{name}": value for name, value in old.items()}


def sentence(template: str, values: Mapping[str, str]) -> str:
    """Filled in, each sentence with a capital letter: values are written as inside of one."""
    text = template.format(**values)
    return re.sub(r"(^|[.!?]\s+)([a-z])", lambda m: m[1] + m[2].upper(), text)


def asks_for(question: str, topic: Topic) -> tuple[str, str]:
    """The slot that answers it, and the question."""
    slot, bar, text = question.partition("|")
    return (slot, text) if bar else (topic.answer or next(iter(topic.slots)), question)


def words(text: str) -> set[str]:
    """Its words that mean something, without their commonest endings."""
    found = re.findall(r"[^\W_]+", text.lower())
    return {re.sub(r"(ing|ed|es|s|ly)$", "", word) for word in found if word not in EMPTY}


def turned(text: str, whose: str) -> str:
    """What one says of oneself, in the mouth of another."""
    text = re.sub(r"\bmy\b", whose, text)
    return re.sub(r"\bMy\b", whose.capitalize(), text)


def slots_of(*templates: str) -> set[str]:
    return {name for text in templates for name in re.findall(r"{(\w+)}", text)}


class Speaker(msgspec.Struct, frozen=True):
    """Whom a question is about: by name, or "I" where people ask about themselves."""

    who: int
    name: str
    first_person: bool

    def forms(self) -> dict[str, str]:
        if self.first_person:
            return {
                "who": "I",
                "whose": "my",
                "does": "do",
                "has": "have",
                "is": "am",
                "whom": "me",
            }
        name = {"who": self.name, "whom": self.name, "whose": f"{self.name}'s"}
        return {**name, "does": "does", "has": "has", "is": "is"}


class Fact:
    """One topic told by one person: the values, and the turns that say it."""

    def __init__(
        self, chance: Random, topic: Topic, speaker: Speaker, values: Mapping[str, str], mark: str
    ) -> None:
        self.topic = topic
        self.speaker = speaker
        self.values = dict(values)
        self.mark = mark
        self._chance = chance

    def told(self, slot: str, *, need: str = "", known: str = "") -> list[Told] | None:
        """Turns whose evidence has `slot` (and `need`), and in which all slots of the question
        `known` are named; about two in five answer a question of the other."""
        wanted = [f"{{{name}}}" for name in (slot, need) if name]
        named = slots_of(known) & set(self.values)
        by = 1 - self.speaker.who if self.topic.from_assistant else self.speaker.who
        tells = [
            text
            for text in self.topic.tell
            if all(part in text for part in wanted) and named <= slots_of(text)
        ]
        asks = [
            pair
            for pair in self.topic.ask
            if all(part in pair[1] for part in wanted) and named <= slots_of(*pair)
        ]
        if asks and (not tells or self._chance.random() < 0.42):
            ask, answer = self._chance.choice(asks)
            question = sentence(ask, self.values)
            if not self.topic.from_assistant:
                question = turned(question, "your")
            return [
                Told(1 - by, question),
                Told(by, sentence(answer, self.values), self.mark),
            ]
        if tells:
            return [Told(by, sentence(self._chance.choice(tells), self.values), self.mark)]
        return None

    def dated(self) -> list[Told]:
        """It is said when it was."""
        found = self.told("", need="when")
        if found and self._chance.random() < 0.5:
            return found
        text = self._chance.choice(self.topic.tell)
        text += "" if "{when}" in text else self._chance.choice(DATED)
        return [Told(self.speaker.who, sentence(text, self.values), self.mark)]

    def question(self, template: str, **more: str) -> str:
        values = self.values
        if not self.speaker.first_person:
            values = {name: turned(value, "their") for name, value in values.items()}
        return sentence(template, {**values, **self.speaker.forms(), **more})

    def corrected(self) -> list[Told]:
        text = sentence(self._chance.choice(self.topic.change), self.values)
        return [Told(self.speaker.who, text, self.mark)]

    def plain(self, kind: str, *, changed: bool = False) -> tuple[list[Told], Asked] | None:
        """Told, and asked for in about the same words."""
        for question in self._shuffled(self.topic.plain):
            slot, text = asks_for(question, self.topic)
            if changed and not (self._in_change(slot) and self._kept(text)):
                continue
            turns = self.corrected() if changed else self.told(slot, known=text)
            if turns:
                return turns, Asked(kind, self.question(text), [self.mark])
        return None

    def reworded(self) -> tuple[list[Told], Asked] | None:
        """Told, and asked for in other words: at most one is in the evidence too."""
        for question in self._shuffled(self.topic.reworded):
            slot, template = asks_for(question, self.topic)
            for _ in range(4):
                turns, text = self.told(slot, known=template), self.question(template)
                said = words(turns[-1].text) if turns else set()
                if turns and len((words(text) - words(self.speaker.name)) & said) <= 1:
                    return turns, Asked("paraphrase", text, [self.mark])
        return None

    def _in_change(self, slot: str) -> bool:
        said = all(f"{{{slot}}}" in text for text in self.topic.change)
        return said and slot not in self.topic.keep

    def _kept(self, question: str) -> bool:
        """It names nothing that the correction changed."""
        return slots_of(question) & set(self.values) <= set(self.topic.keep)

    def _shuffled(self, texts: Sequence[str]) -> list[str]:
        return self._chance.sample(texts, len(texts))


def beside(chance: Random, fact: Fact) -> Iterator[Told]:
    """What confuses: the same thing of somebody else, told by either."""
    for text in chance.sample(fact.topic.other, min(2, len(fact.topic.other))):
        values = {**fact.values}
        yield Told(chance.randrange(2), sentence(text, values))
