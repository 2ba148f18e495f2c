"""Long dialogues with planted evidence, made from fixed seeds: the data of the memory part.

Two people, or a person and an assistant, talk in some twenty sessions over months. What they tell
is asked for later, in questions of six kinds; most of the talk is never asked for. There are three
sets, which share neither seeds nor the topics that are asked about: weights are chosen on the
first; the second may be looked at while something is built; the last is for reporting, and nothing
is ever chosen by it. Made to resemble public sets of long conversations, not any system's habits.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

import memory_facts as facts
from memory_facts import Asked, Exchange, Fact, Speaker, Told, Topic

Part = Literal["choose", "look", "final"]
NAMES = "Maya Jonas Priya Elliot Carmen Felix Nadia Owen Greta Samir Helen Diego".split()  # noqa: SIM905
STRANGERS = """
Abel Bruna Cyril Dalia Emre Fiona Gustav Hana Ivo Judith Karim Lena Milos Nerea Otto
Petra Quentin Rosa Stellan Tilda Umberto Vera Wanda Xavier Ylva Zoran Agnes Boris Clara
Darius Edda Flavio Gloria Henrik Ines Jarek Kamila Ludwig Mirela Nils Odile Pavel Renata
Silvio Teodor Ursula Viktor Wilma Yusuf Zelda
""".split()  # noqa: SIM905
SMALLTALK = Path(__file__).with_name("memory_smalltalk.toml")
BEGIN = datetime(2024, 1, 8, 18, tzinfo=UTC)
SECOND = 1_000_000_000
TALK = 40  # exchanges of small talk in a dialogue
LOWERED = frozenset(
    "We My The After So You It's It Had No They New There's Just Made Every".split()  # noqa: SIM905
)


class Turn(msgspec.Struct, frozen=True):
    """`text` is what every system is given: with the name of who speaks, where people have one."""

    id: int
    role: str
    text: str
    time: int


class Question(msgspec.Struct, frozen=True):
    kind: str
    text: str
    evidence: list[int]


class Dialogue(msgspec.Struct, frozen=True):
    name: str
    turns: list[Turn]
    questions: list[Question]


def dialogues(part: Part, count: int) -> list[Dialogue]:
    return [dialogue(part, number) for number in range(count)]


def dialogue(part: Part, number: int, *, strangers: bool = False) -> Dialogue:
    """The same for the same arguments, always. Every third is with an assistant; strangers are
    people whom no question names."""
    seed = "report" if part == "look" else part
    chance = Random(f"ortet memory {seed} {number} {strangers}")
    names = chance.sample(STRANGERS if strangers else NAMES, 2)
    maker = _Maker(chance, part, names, assistant=number % 3 == 2 and not strangers)
    maker.plant()
    return maker.laid_out(f"{part}-{number}")


def haystack(count: int) -> Dialogue:
    """As many turns in one long talk of many people; a few dialogues in it are asked about, by the
    names of those who spoke, and these names stand in no other."""
    free, asked = set(NAMES), []
    for number in range(200):
        if number % 3 == 2:
            continue
        one = dialogue("look", number)
        names = {turn.text.partition(":")[0] for turn in one.turns}
        if names <= free:
            free -= names
            asked.append(one)
    asked = asked[: max(1, count // 4000)]
    apart = count // (len(asked) + 1)
    turns: list[Turn] = []
    questions: list[Question] = []
    number = 0
    while len(turns) < count:
        first = len(turns)
        due = asked and first >= count - apart * len(asked) - apart // 2
        one = asked.pop() if due else dialogue("choose", number, strangers=True)
        number += not due
        turns += [msgspec.structs.replace(turn, id=first + turn.id) for turn in one.turns]
        if due:
            questions += [
                Question(ask.kind, ask.text, [first + place for place in ask.evidence])
                for ask in one.questions
            ]
    return Dialogue("haystack", turns[:count], questions)


class _Maker:
    """Collects exchanges and questions, then lays them out in sessions."""

    def __init__(self, chance: Random, part: Part, names: list[str], *, assistant: bool) -> None:
        self._chance = chance
        self._assistant = assistant
        self._names = names
        self._tables = facts.tables()
        self._small = _small_talk()
        topics = self._tables.topic
        told = [topic for topic in topics if not topic.from_assistant or assistant]
        asked = told[part == "look" :: 2]
        others = told[part == "choose" :: 2]
        if part == "final":
            asked = [topic for topic in facts.held_out() if not topic.from_assistant or assistant]
        self._asked_of = asked
        self._others = [topic for topic in others if not topic.from_assistant]
        self._friends = chance.sample(self._tables.pool["friend"], len(self._tables.pool["friend"]))
        self._exchanges: list[Exchange] = []
        self._asked: list[Asked] = []
        self._events: dict[int, list[Fact]] = {0: [], 1: []}
        self._marks = 0
        self._left: dict[str, list[list[str]]] = {}

    def plant(self) -> None:
        people = (0,) if self._assistant else (0, 1)
        for topic in self._chance.sample(self._asked_of, len(self._asked_of)):
            for who in people:
                self._plant_one(topic, who)
        for topic in self._others:  # told like the rest and never asked for
            for who in people:
                fact = self._fact(topic, who)
                self._say(fact.told("") or fact.dated(), echo=topic, values=fact.values)
                if topic.other and self._chance.random() < 0.5:
                    self._distract(fact)
        for who in people:
            self._order_of_events(who)
        for _ in range(TALK):
            self._small_talk("talk", at=self._chance.random())

    def _plant_one(self, topic: Topic, who: int) -> None:
        """One of the kinds this topic can have; some are never told at all."""
        if not topic.from_assistant and self._chance.random() < 0.1:
            return
        kinds = ["single", "paraphrase"]
        kinds += ["distractor"] if topic.other else []
        kinds += ["time"] * bool(topic.when or topic.event)
        kinds += ["contradiction"] * bool(topic.change)
        kinds += ["multi"] * (bool(topic.both) + bool(topic.via))
        getattr(self, f"_{self._chance.choice(kinds)}")(self._fact(topic, who))

    def _single(self, fact: Fact) -> None:
        found = fact.plain("single")
        assert found is not None, fact.topic.name
        self._tell_and_ask(fact, *found)
        if self._chance.random() < 0.4:
            self._distract(fact)

    def _paraphrase(self, fact: Fact) -> None:
        found = fact.reworded()
        if found:
            self._tell_and_ask(fact, *found)
        else:
            self._single(fact)

    def _distractor(self, fact: Fact) -> None:
        """The other person, and others, have the same; this one has much else, as everyone."""
        self._single(fact)
        self._distract(fact)
        twin = self._fact(fact.topic, 1 - fact.speaker.who)
        if not self._assistant:
            self._say(twin.told("") or twin.dated(), echo=fact.topic, values=twin.values)
        self._asked[-1] = msgspec.structs.replace(self._asked[-1], kind="distractor")

    def _time(self, fact: Fact) -> None:
        topic = fact.topic
        if topic.event and (not topic.when or self._chance.random() < 0.5):
            self._before_or_after(fact)
            return
        question = fact.question(self._chance.choice(topic.when))
        self._tell_and_ask(fact, fact.dated(), Asked("time", question, [fact.mark]))

    def _before_or_after(self, fact: Fact) -> None:
        """Something else that was done then: the fact itself is told too, and is no answer."""
        self._say(fact.told("") or fact.dated(), echo=fact.topic, values=fact.values)
        event, asked = (
            fact.topic.event.format(**fact.values),
            _inside(fact.question(fact.topic.event)),
        )
        for templates, word in ((facts.AFTER, "after"), (facts.BEFORE, "before")):
            other = self._fact(fact.topic, fact.speaker.who)
            text = facts.sentence(self._chance.choice(templates), {**other.values, "event": event})
            turns = [Told(fact.speaker.who, text, other.mark)]
            question = other.question("What did {who} do {word} {event}?", word=word, event=asked)
            self._tell_and_ask(other, turns, Asked("time", question, [other.mark]))

    def _order_of_events(self, who: int) -> None:
        """Which came first: both turns are needed."""
        told = self._events[who]
        for first, second in zip(told[::2], told[1::2], strict=False):
            one, other = (_inside(fact.question(fact.topic.event)) for fact in (first, second))
            person = "me" if self._assistant else first.speaker.name
            text = f"Which came first for {person}, {one} or {other}?"
            self._asked.append(Asked("time", text, [first.mark, second.mark]))

    def _contradiction(self, fact: Fact) -> None:
        values = facts.redraw(self._chance, fact.topic, self._tables.pool, fact.values)
        later = Fact(self._chance, fact.topic, fact.speaker, values, self._mark())
        found = later.plain("contradiction", changed=True)
        if not found:
            self._single(fact)
            return
        at = sorted((self._chance.random(), self._chance.random()))
        self._say(fact.told("") or fact.dated(), at=at[0], echo=fact.topic, values=fact.values)
        self._say(found[0], at=at[1], echo=fact.topic, values=later.values)
        self._asked.append(found[1])

    def _multi(self, fact: Fact) -> None:
        topic = fact.topic
        if topic.via and (not topic.both or self._chance.random() < 0.5) and self._friends:
            self._two_steps(fact)
            return
        slot = topic.answer or next(iter(topic.slots))
        values = facts.redraw(self._chance, topic, self._tables.pool, fact.values)
        second = Fact(self._chance, topic, fact.speaker, values, self._mark())
        for one in (fact, second):
            self._say(one.told(slot) or one.dated(), echo=topic, values=one.values)
        question = fact.question(self._chance.choice(topic.both or topic.plain))
        self._asked.append(Asked("multi", question, [fact.mark, second.mark]))

    def _two_steps(self, fact: Fact) -> None:
        """A friend is named in one turn; what is asked stands in another, under the name alone."""
        friend = self._friends.pop()
        fact.values["friend"] = friend
        topic = self._chance.choice(self._tables.friend)
        known = self._fact(topic, self._chance.randrange(1 if self._assistant else 2))
        known.values["friend"] = friend
        via = fact.question(fact.topic.via)
        self._say(fact.told("", need="friend") or [], echo=fact.topic, values=fact.values)
        self._say(known.told("") or [])
        question = known.question(self._chance.choice(topic.bridged), via=_inside(via))
        self._asked.append(Asked("multi", question, [fact.mark, known.mark]))

    def _tell_and_ask(self, fact: Fact, turns: list[Told], asked: Asked) -> None:
        self._say(turns, echo=fact.topic, values=fact.values)
        self._asked.append(asked)
        if fact.topic.event and asked.kind in ("single", "distractor"):
            self._events[fact.speaker.who].append(fact)

    def _distract(self, fact: Fact) -> None:
        other = self._fact(fact.topic, fact.speaker.who)
        for told in facts.beside(self._chance, other):
            self._say([told])

    def _say(
        self,
        turns: list[Told],
        *,
        at: float | None = None,
        echo: Topic | None = None,
        values: Mapping[str, str] | None = None,
    ) -> None:
        """With something before and behind it, as people talk, and what the other says to it."""
        chance, last = self._chance, turns[-1]
        answers = len(turns) > 1
        more = chance.sample(echo.more, len(echo.more)) if echo else []
        text = last.text if answers else self._begun(last.text, echo.subject if echo else "")
        text = self._longer(text + chance.choice(self._small["behind"]), more, told=True)
        turns = [*turns[:-1], Told(last.who, text, last.mark)]
        if chance.random() < 0.8:
            topical = echo.echo if echo and values and chance.random() < 0.6 else []
            template = chance.choice(topical or self._small["react"])
            text = facts.sentence(template, self._with(values, last.who))
            turns.append(Told(1 - last.who, self._longer(facts.turned(text, "your"), [])))
            if chance.random() < 0.5:
                text = self._longer(chance.choice(self._small["reply"]), more)
                turns.append(Told(last.who, text))
        self._exchanges.append(Exchange(chance.random() if at is None else at, turns))

    def _begun(self, text: str, subject: str) -> str:
        """As one comes to something: by naming what it is about, or with a few words of nothing."""
        if subject and self._chance.random() < 0.3:
            return (
                facts.sentence(self._chance.choice(self._small["lead"]), {"subject": subject})
                + text
            )
        before: str = self._chance.choice(self._small["before"])
        if before.endswith((", ", "and ")):
            first = text.split(maxsplit=1)[0]
            if first in LOWERED:
                text = _inside(text)
            elif first not in ("I", "I'm", "I've"):
                before = ""
        return before + text

    def _longer(self, text: str, more: list[str] | None = None, *, told: bool = False) -> str:
        """Most turns say something more: of the matter, where there is one, else of nothing. What
        is told is long enough without: a turn shall not be known by its length."""
        found = [text]
        for _ in range(self._chance.choice((0, 0, 0, 1, 1, 2) if told else (0, 1, 1, 2, 2))):
            if more and self._chance.random() < 0.75:
                found.append(more.pop())
            else:
                kinds = ("filler", "aside") if more is None else ("filler",)
                template = self._chance.choice(self._small[self._chance.choice(kinds)])
                found.append(facts.sentence(template, self._values()))
        return " ".join(found)

    def _values(self) -> dict[str, str]:
        pools = {**self._tables.pool, **self._small["pool"]}
        return {name: self._chance.choice(texts) for name, texts in pools.items()}

    def _with(self, values: Mapping[str, str] | None, who: int) -> dict[str, str]:
        return {**(values or {}), "self": self._names[1 - who], "other": self._names[who]}

    def _small_talk(self, what: str, *, at: float) -> None:
        self._exchanges.append(Exchange(at, self._chat(what)))

    def _chat(self, what: str) -> list[Told]:
        """The next of its kind: none comes twice before all have come."""
        begin = self._chance.randrange(2)
        left = self._left.setdefault(what, [])
        if not left:
            left += self._chance.sample(self._small[what], len(self._small[what]))
        values = self._values() | {"self": self._names[begin], "other": self._names[1 - begin]}
        return [
            Told((begin + index) % 2, self._longer(facts.sentence(line, values)))
            for index, line in enumerate(left.pop())
        ]

    def _fact(self, topic: Topic, who: int) -> Fact:
        speaker = Speaker(who, self._names[who], self._assistant)
        values = facts.draw(self._chance, topic, self._tables.pool)
        return Fact(self._chance, topic, speaker, values, self._mark())

    def _mark(self) -> str:
        self._marks += 1
        return str(self._marks)

    def laid_out(self, name: str) -> Dialogue:
        """Sessions of some exchanges each, days apart; a greeting before, a farewell behind."""
        chance, when = self._chance, BEGIN
        turns: list[Turn] = []
        places: dict[str, int] = {}
        for told in self._sessions():
            when += timedelta(days=chance.randrange(2, 12), minutes=chance.randrange(-300, 200))
            for number, one in enumerate(told):
                time = int(when.timestamp() + number * 40) * SECOND
                turns.append(Turn(len(turns), self._role(one.who), self._spoken(one), time))
                if one.mark:
                    places[one.mark] = len(turns) - 1
        questions = [
            Question(one.kind, one.text, [places[mark] for mark in one.marks])
            for one in self._asked
        ]
        return Dialogue(name, turns, questions)

    def _sessions(self) -> Iterator[list[Told]]:
        rest = sorted(self._exchanges, key=lambda exchange: exchange.at)
        while rest:
            count = self._chance.randrange(4, 11)
            taken, rest = rest[:count], rest[count:]
            middle = [turn for exchange in taken for turn in exchange.turns]
            yield [*self._chat("opening"), *middle, *self._chat("closing")]

    def _role(self, who: int) -> str:
        return ("user", "assistant")[who]

    def _spoken(self, told: Told) -> str:
        """People are named before what they say; an assistant is polite, and long."""
        if not self._assistant:
            return f"{self._names[told.who]}: {told.text}"
        if told.who == 1 and not told.mark:
            polite = self._chance.choice(self._small["assistant"])
            return f"{polite} {told.text}" if told.text.endswith("?") else polite
        return told.text


def _inside(text: str) -> str:
    """As it is written inside a sentence."""
    return text[0].lower() + text[1:]


@cache
def _small_talk() -> dict[str, Any]:
    return tomllib.loads(SMALLTALK.read_text())
