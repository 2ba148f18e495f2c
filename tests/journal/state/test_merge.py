"""Merging two minds: what is new, what stays retracted, what contradicts, which names it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from ortet.journal.state.merge import Contradiction, MergeAdditions, fact_data, merge_states
from ortet.journal.state.records import Artifact, Collaboration, Decision, Fact
from ortet.journal.state.state import SessionState

if TYPE_CHECKING:
    from tests.fixtures.journals import Bench

Things = Sequence[Fact | Decision | Artifact | Collaboration]


class Minds:
    """Makes minds that know what they are given."""

    def __init__(self, bench: Bench) -> None:
        self._maps = bench.maps

    def mind(self, *things: Any, past: Sequence[Fact] = (), **spent: float) -> SessionState:
        mind = SessionState(self._maps)
        for thing in things:
            if isinstance(thing, Fact):
                mind.facts.set(thing.id, thing)
            elif isinstance(thing, Decision):
                mind.decisions.set(thing.id, thing)
            elif isinstance(thing, Artifact):
                mind.artifacts.set(f"{thing.name}@{thing.version}", thing)
            else:
                mind.collaborations.set(thing.name, thing)
        for fact in past:
            mind.past.set(fact.id, fact)
        mind.core = replace(mind.core, spent=dict(spent))
        return mind

    def union(self, base: Things, ours: Things, theirs: Things) -> MergeAdditions:
        return merge_states(self.mind(*base), self.mind(*ours), self.mind(*theirs))


@pytest.fixture
def minds(bench: Bench) -> Minds:
    return Minds(bench)


class TestFacts:
    def test_facts_of_theirs_that_are_new_come_in_order_of_age(self, minds: Minds) -> None:
        old, mine = Fact("1", "old", seq=1), Fact("2", "mine", seq=2)
        new = [Fact("b", "later", seq=9), Fact("c", "lesson", lesson=True, seq=8)]
        newer = Fact("a", "last", seq=10)
        found = minds.union([old], [old, mine], [old, newer, *new])
        assert (found.facts, found.lessons) == ([new[0], newer], [new[1]])

    def test_fact_that_ours_retracted_since_the_base_stays_retracted(self, minds: Minds) -> None:
        old, new = Fact("1", "old"), Fact("2", "new", seq=3)
        assert minds.union([old], [], [old, new]).facts == [new]

    def test_fact_that_ours_knew_and_gave_up_meanwhile_does_not_come_back(
        self, minds: Minds
    ) -> None:
        one, two = Fact("1", "one", seq=1), Fact("2", "two", seq=2)
        ours = minds.mind(past=[one])
        assert merge_states(minds.mind(), ours, minds.mind(one, two)).facts == [two]

    def test_fact_known_to_both_is_not_new_although_its_words_differ(self, minds: Minds) -> None:
        assert minds.union([], [Fact("1", "one")], [Fact("1", "other")]).facts == []

    def test_fact_said_twice_in_the_same_words_is_one(self, minds: Minds) -> None:
        mine = Fact("1", "it  is\nso", about="x")
        same = Fact("2", "it is so", about="x", seq=1)
        others = [Fact("3", "it is so", about="y", seq=2), Fact("4", "it is so", "x", True, seq=3)]
        twice = Fact("5", " it is so", about="y", seq=4)
        found = minds.union([], [mine], [same, *others, twice])
        assert (found.facts, found.lessons) == ([others[0]], [others[1]])

    def test_different_facts_about_one_thing_known_to_one_side_each_contradict(
        self, minds: Minds
    ) -> None:
        both = Fact("0", "shared", about="x")
        mine, lesson = Fact("1", "up", about="x"), Fact("2", "careful", about="x", lesson=True)
        theirs = Fact("3", "down", about="x", seq=1)
        others = [Fact("4", "hm", about="x", lesson=True, seq=2), Fact("5", "free", seq=3)]
        found = minds.union(
            [both], [both, mine, lesson, Fact("6", "free too")], [both, theirs, *others]
        )
        assert found.contradictions == [Contradiction("x", mine, theirs)]
        with pytest.raises(AttributeError):
            found.contradictions[0].about = "y"  # type: ignore[misc]

    def test_event_of_a_fact_leaves_out_what_belongs_to_one_session(self) -> None:
        fact = Fact("1", "t", "x", True, 5, 6, ended=7, ended_by="2", why="w", confidence=0.5)
        told = fact_data(fact)
        assert (told["id"], told["text"], told["about"], told["confidence"]) == ("1", "t", "x", 0.5)
        assert not {"seq", "time", "lesson", "ended", "ended_by", "why"} & set(told)


class TestOthers:
    def test_decisions_that_neither_ours_nor_the_base_has_are_new(self, minds: Minds) -> None:
        one, two, three = (Decision(name, "d", seq=seq) for seq, name in enumerate("abc"))
        assert minds.union([one], [one], [three, two, one]).decisions == [two, three]
        assert minds.union([one], [], [one]).decisions == []
        assert minds.union([], [one], [one]).decisions == []

    def test_artifact_of_theirs_becomes_the_next_version_of_its_name(self, minds: Minds) -> None:
        old = Artifact("a", 1, "00", 1, seq=1)
        mine = Artifact("a", 2, "22", 1, seq=2)
        theirs = [Artifact("a", 2, "33", 1, seq=3), Artifact("a", 3, "11", 1, seq=4)]
        alone = Artifact("b", 7, "44", 1, seq=5)
        found = minds.union([old], [old, mine], [old, *theirs, alone]).artifacts
        assert [(one.name, one.version, one.oid) for one in found] == [
            ("a", 3, "33"),
            ("a", 4, "11"),
            ("b", 1, "44"),
        ]

    def test_artifact_with_the_same_content_or_link_is_not_new(self, minds: Minds) -> None:
        mine = [Artifact("a", 1, "00", 1), Artifact("b", 1, "", 0, link="x")]
        same = [Artifact("a", 5, "00", 1, seq=1), Artifact("b", 5, "", 0, link="x", seq=2)]
        other = Artifact("b", 6, "", 0, link="y", seq=3)
        assert minds.union([], mine, [*same, other]).artifacts == [replace(other, version=2)]

    def test_artifact_that_ours_removed_since_the_base_stays_removed(self, minds: Minds) -> None:
        old = Artifact("a", 1, "00", 1)
        assert minds.union([old], [], [old]).artifacts == []

    def test_only_what_theirs_spent_since_the_base_is_counted(self, minds: Minds) -> None:
        base, theirs = minds.mind(usd=1, pages=2, old=5), minds.mind(usd=1.5, pages=2, tokens=7)
        assert merge_states(base, base, theirs).spent == {"usd": 0.5, "tokens": 7}
        assert merge_states(base, base, minds.mind(old=4.5)).spent == {}


class TestCollaborations:
    OLD = Collaboration("pr", text="old", seq=1, time=1)
    MINE = Collaboration("pr", text="mine", seq=2, time=2)
    THEIRS = Collaboration("pr", text="theirs", seq=3, time=3)

    def found(self, minds: Minds, base: Things, ours: Things, theirs: Things) -> Things:
        return minds.union(base, ours, theirs).collaborations

    def test_change_of_theirs_alone_keeps_its_name(self, minds: Minds) -> None:
        old, theirs = self.OLD, self.THEIRS
        assert self.found(minds, [old], [old], [theirs]) == [theirs]
        assert self.found(minds, [], [], [theirs]) == [theirs]
        assert self.found(minds, [old], [], [theirs]) == [theirs]

    def test_what_theirs_left_or_ours_has_too_is_not_new(self, minds: Minds) -> None:
        old, mine = self.OLD, self.MINE
        last = Collaboration("z", seq=9)
        assert self.found(minds, [old], [mine], [old, last]) == [last]
        assert self.found(minds, [old], [mine], [replace(mine, seq=7, time=7), last]) == [last]

    def test_change_of_both_gets_the_next_free_name(self, minds: Minds) -> None:
        old, mine, theirs = self.OLD, self.MINE, self.THEIRS
        taken = [mine]
        for number in (2, 3, 4):
            named = replace(theirs, name=f"pr ({number})")
            assert self.found(minds, [old], taken, [theirs]) == [named]
            taken.append(replace(mine, name=f"pr ({number})"))

    def test_order_is_that_of_age(self, minds: Minds) -> None:
        a, b = Collaboration("a", seq=2), Collaboration("b", seq=1)
        assert self.found(minds, [], [], [a, b]) == [b, a]


class TestTold:
    def test_events_tell_all_that_is_new_and_where_it_came_from(self, minds: Minds) -> None:
        fact, lesson = Fact("1", "f", seq=1), Fact("2", "l", lesson=True, seq=2)
        decision = Decision("3", "d", "because", ["other"], seq=3)
        shared = Collaboration("pr", text="t", seq=4)
        found = minds.union([], [], [fact, lesson, decision, shared])
        assert found.to_events("s") == [
            ("fact", {**fact_data(fact), "merged": "s"}),
            ("lesson", {**fact_data(lesson), "merged": "s"}),
            (
                "decision",
                {
                    "id": "3",
                    "text": "d",
                    "why": "because",
                    "merged": "s",
                    "instead_of": ["other"],
                },
            ),
            ("collaboration", {"name": "pr", "status": "draft", "text": "t", "merged": "s"}),
        ]
        with pytest.raises(AttributeError):
            found.spent = {}  # type: ignore[misc]

    def test_merge_event_names_at_most_a_thousand_of_each_sort(self) -> None:
        facts = [Fact(str(number), "f") for number in range(1001)]
        artifacts = [Artifact("a", number, "", 0) for number in range(1001)]
        decisions = [Decision(str(number), "d") for number in range(1001)]
        clash = [Contradiction("x", facts[0], facts[1])] * 1001
        counted = MergeAdditions(facts, facts, decisions, artifacts, clash, {"usd": 1}).event_data()
        for name in ("facts", "lessons", "decisions", "artifacts", "contradictions"):
            assert len(counted[name]) == 1000, name
        assert counted["artifacts"][1] == "a@1"
        assert counted["contradictions"][0] == {"about": "x", "ours": "0", "theirs": "1"}
        assert counted["spent"] == {"usd": 1}
