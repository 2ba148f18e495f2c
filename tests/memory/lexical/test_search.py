"""Search: what can be seen and nothing else, on every branch, at every time, always the same."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path as Directory
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet.memory.base import IndexPage, SemanticMatches, WordIndex
from ortet.memory.lexical.index import IndexLost, SqliteWordIndex
from ortet.memory.lexical.scoring import (
    NeighbourWindow,
    TermFrequencies,
    Weights,
    bm25,
    inverse_document_frequency,
)
from ortet.memory.lexical.search import SearchEffort, search, top_ids
from ortet.memory.records import (
    EventSpan,
    FactEnd,
    MemoryDocument,
    MemoryMatch,
    Query,
    SearchResult,
    Tier,
    TimelinePath,
)

if TYPE_CHECKING:
    from ortet.memory.postgres.index import PostgresWordIndex

MAIN, LEFT, RIGHT, SHARED, OTHER = (character * 32 for character in "12345")
ALL = 1 << 30

VALUES = st.sampled_from([0.5, 1.0, 1.5, 2.25])


class World:
    """Timelines with what was said and learned on them, and an index of as much as is asked for."""

    def __init__(self, index: WordIndex) -> None:
        self.docs: dict[str, list[MemoryDocument]] = {}
        self.ends: dict[str, list[FactEnd]] = {}
        self.index = index

    def say(self, timeline: str, *texts: str, start: int = 1, speaker: str = "") -> None:
        for seq, text in enumerate(texts, start):
            self.put(timeline, MemoryDocument(seq, "working", text, time=seq * 10, speaker=speaker))

    def learn(self, timeline: str, seq: int, text: str, key: str, **more: float) -> None:
        self.put(timeline, MemoryDocument(seq, "semantic", text, time=seq * 10, key=key, **more))  # type: ignore[arg-type]

    def end(self, timeline: str, seq: int, key: str) -> None:
        self.ends.setdefault(timeline, []).append(FactEnd(seq, key, time=seq * 10))

    def put(self, timeline: str, doc: MemoryDocument) -> None:
        self.docs.setdefault(timeline, []).append(doc)

    def fill(self, timeline: str, upto: int, index: WordIndex | None = None) -> None:
        index = index or self.index
        state = index.index_state([timeline])
        known = state.indexed.get(timeline, 0)
        if known < upto:
            docs, ends = self.docs.get(timeline, []), self.ends.get(timeline, [])
            index.add_pages([IndexPage(timeline, known, upto, docs, ends)], state.mark)

    def ask(
        self, text: str, *paths: TimelinePath, index: WordIndex | None = None, **more: object
    ) -> SearchResult:
        index = index or self.index
        for path in paths:
            for span in path.spans:
                self.fill(span.timeline, span.upto, index)
        effort = more.pop("effort", None)
        vectors = more.pop("vectors", None)
        weights = more.pop("weights", None)
        query = Query(text, **more)  # type: ignore[arg-type]
        return search(index, paths, query, ranker=vectors, effort=effort, weights=weights)  # type: ignore[arg-type]

    def text(self, found: MemoryMatch) -> str:
        return next(doc.text for doc in self.docs[found.timeline] if doc.seq == found.seq)

    def texts(self, text: str, *paths: TimelinePath, **more: object) -> list[str]:
        found = self.ask(text, *paths, **more).found  # type: ignore[arg-type]
        return [self.text(one) for one in found]


@pytest.fixture
def world(index: WordIndex) -> World:
    return World(index)


def on(*spans: tuple[str, int, int], scope: str = "") -> TimelinePath:
    return TimelinePath(scope, [EventSpan(*span) for span in spans])


HERE = on((MAIN, 0, 100))
TALK = [
    "Where did you go last summer?",
    "Lisbon, for a week, with my sister",
    "And how was the food there?",
    "The grilled sardines were the best part",
    "My cat Momo is sick since Tuesday",
    "Sorry to hear that, I hope Momo gets better",
]


class TestWhatIsFound:
    def test_the_best_matching_message_comes_first(self, world: World) -> None:
        world.say(MAIN, *TALK)
        assert world.texts("grilled sardines", HERE)[0] == TALK[3]
        assert world.texts("the cat named Momo", HERE)[0] == TALK[4]

    def test_the_message_after_a_matching_question_is_found_too(self, world: World) -> None:
        world.say(MAIN, *TALK)
        assert world.texts("where in summer", HERE, k=2) == TALK[:2]

    def test_search_returns_at_most_k_results(self, world: World) -> None:
        world.say(MAIN, *[f"zebra number {number}" for number in range(30)])
        assert len(world.ask("zebra", HERE).found) == 10
        assert len(world.ask("zebra", HERE, k=30).found) == 30
        assert len(world.ask("zebra", HERE, k=1000).found) == 30
        assert world.ask("zebra", HERE, k=0).found == []

    @pytest.mark.parametrize("text", ["", "  ", "?!", "\0", "nowhere", "\ud800"])
    def test_search_without_a_match_returns_nothing(self, world: World, text: str) -> None:
        assert world.ask(text, HERE).found == []
        world.say(OTHER, *TALK)
        assert world.ask(text, on((OTHER, 0, 9))).found == []
        assert world.ask("sardines").found == []

    @pytest.mark.parametrize(
        "syntax",
        [
            *('"', "AND", "a OR", "NEAR(a b, 2)", "sard*", "^sardines", "words:x", "{a b}:c", "("),
            *("\0", "'; DROP TABLE docs; --", "-sardines", "NOT sardines", 'sardines"', "+ +"),
        ],
    )
    def test_query_syntax_in_a_question_is_treated_as_text(self, world: World, syntax: str) -> None:
        world.say(MAIN, *TALK)
        world.ask(syntax, HERE)
        assert world.texts(f"sardines {syntax}", HERE)[0] == TALK[3]

    def test_a_very_long_question_is_answered(self, world: World) -> None:
        world.say(MAIN, *TALK)
        assert world.texts("sardines " + "word " * 200_000, HERE)[0] == TALK[3]
        many = " ".join(f"word{number}" for number in range(100_000))
        assert world.texts(f"sardines {many}", HERE)[0] == TALK[3]
        assert world.texts(many, HERE) == []

    @pytest.mark.parametrize(
        ("said", "asked"),
        [
            ("我喜欢在北京吃烤鸭", "北京"),
            ("我喜欢猫", "猫"),
            ("東京タワーに行きました", "タワー"),
            ("서울에서 만나요", "서울"),
            ("أحب القَهوة في الصباح", "القهوة"),
            ("ערב טוב", "ערב"),
            ("we celebrate 🎉 today", "🎉"),
            ("in src/app/main.py", "main.py"),
        ],
    )
    def test_words_of_any_script_are_found(self, world: World, said: str, asked: str) -> None:
        world.say(MAIN, "something else", "of another kind", said, "and more", "of the same")
        assert world.texts(asked, HERE)[0] == said

    def test_search_matches_the_speaker_and_the_subject(self, world: World) -> None:
        world.say(MAIN, "I went to the lake", speaker="Caroline")
        world.say(MAIN, "I went to the lake", start=2, speaker="Melanie")
        world.put(
            MAIN, MemoryDocument(3, "semantic", "it takes an hour", 30, key="f", about="deployment")
        )
        assert world.ask("what did Melanie say of the lake", HERE).found[0].seq == 2
        assert world.ask("what did Caroline say of the lake", HERE).found[0].seq == 1
        assert world.texts("deployment", HERE) == ["it takes an hour"]

    def test_a_short_fact_among_long_messages_and_a_long_one_among_facts(
        self, world: World
    ) -> None:
        random_ = random.Random(5)
        noise = [f"noise{number}" for number in range(400)]
        for seq in range(1, 60):
            long = " ".join(random_.choices(noise, k=120))
            world.put(MAIN, MemoryDocument(seq, "working", f"{long} wifi {long}", seq * 10))
        world.learn(MAIN, 60, "the wifi password is swordfish", "f")
        for seq in range(61, 90):
            world.learn(MAIN, seq, f"the password of noise{seq} is secret", f"f{seq}")
        told = " ".join(random_.choices(noise, k=100))
        world.put(
            MAIN, MemoryDocument(90, "working", f"{told} the vault password is marzipan", 900)
        )
        assert world.ask("wifi password", HERE).found[0].key == "f"
        assert world.ask("vault password", HERE).found[0].seq == 90

    def test_a_result_explains_its_scores(self, world: World) -> None:
        world.say(MAIN, *TALK)
        world.learn(MAIN, 7, "sardines are fish", "f", importance=0.9)
        best, *_ = world.ask("sardines are fish unicorn", HERE).found
        assert (best.tier, best.key, best.scope, best.time) == ("semantic", "f", "", 70)
        assert best.scores.bm25_rank == 1
        assert best.scores.bm25 > 0
        assert best.scores.importance == 0.9
        assert best.scores.recency_rank == 1
        assert set(best.scores.terms) == {"sardin", "ar", "fish"}
        assert (best.scores.cosine, best.scores.cosine_rank) == (0.0, 0)

    def test_equal_matches_are_ordered_by_recency_and_importance(self, world: World) -> None:
        for seq in (1, 3, 5):
            world.learn(MAIN, seq, "the sky is blue", f"f{seq}")
        assert [one.seq for one in world.ask("sky", HERE).found] == [5, 3, 1]
        world.learn(MAIN, 120, "the sky is blue", "g1", importance=1.0)
        world.learn(MAIN, 121, "the sky is blue", "g2", importance=0.1)
        found = [one.key for one in world.ask("sky", on((MAIN, 0, 200))).found]
        assert found.index("g1") < found.index("g2")


class TestBranches:
    def test_a_fork_sees_its_parent_up_to_where_it_began(self, world: World) -> None:
        world.say(MAIN, "zebra one", "zebra two", "zebra three", "zebra four")
        world.say(LEFT, "zebra left", start=3)
        world.say(RIGHT, "zebra right", start=3)
        main = on((MAIN, 0, 4))
        left, right = (on((MAIN, 0, 2), (line, 2, 3)) for line in (LEFT, RIGHT))
        assert set(world.texts("zebra", main)) == {
            f"zebra {n}" for n in ("one", "two", "three", "four")
        }
        assert set(world.texts("zebra", left)) == {"zebra one", "zebra two", "zebra left"}
        assert set(world.texts("zebra", right)) == {"zebra one", "zebra two", "zebra right"}
        assert world.texts("four", left) == []
        assert world.texts("right", left) == []

    def test_the_turn_before_a_fork_is_a_neighbour_of_its_first_turn(self, world: World) -> None:
        world.say(MAIN, "hello", "what is your favourite fruit", "mango", "ok")
        world.say(LEFT, "papaya", "fine", start=3)
        left = on((MAIN, 0, 2), (LEFT, 2, 4))
        assert world.texts("favourite fruit", left, k=2)[1] == "papaya"
        assert "mango" not in world.texts("favourite fruit", left)
        assert world.texts("papaya", left)[:2] == ["papaya", "fine"]
        assert "what is your favourite fruit" in world.texts("papaya", left)
        assert world.texts("favourite fruit", on((MAIN, 0, 4)), k=2)[1] == "mango"

    def test_forks_without_events_of_their_own(self, world: World) -> None:
        world.say(MAIN, *TALK)
        fork = on((MAIN, 0, 6), (LEFT, 6, 6), (RIGHT, 6, 6))
        assert world.texts("sardines", fork) == world.texts("sardines", on((MAIN, 0, 6)))

    def test_a_fact_ended_on_one_branch_is_found_on_the_other(self, world: World) -> None:
        world.learn(MAIN, 1, "the sky is green", "f")
        world.end(LEFT, 3, "f")
        left, right = (on((MAIN, 0, 2), (line, 2, 5)) for line in (LEFT, RIGHT))
        assert world.texts("sky", left) == []
        assert world.texts("sky", right) == ["the sky is green"]
        assert world.texts("sky", on((MAIN, 0, 2), (LEFT, 2, 2))) == ["the sky is green"]

    def test_a_fact_ended_on_one_searched_path_is_not_found(self, world: World) -> None:
        world.learn(SHARED, 1, "the sky is green", "f")
        world.end(MAIN, 3, "f")
        shared = on((SHARED, 0, 1), scope="agent")
        assert world.texts("sky", shared) == ["the sky is green"]
        assert world.texts("sky", on((MAIN, 0, 9)), shared) == []

    def test_a_valid_fact_is_found_behind_many_ended_facts(self, world: World) -> None:
        for seq in range(1, 1000):
            world.learn(MAIN, seq, "the build is red", f"f{seq}")
            world.end(MAIN, seq + 1, f"f{seq}")
        world.learn(MAIN, 1000, "today the build of the house is perhaps red, they say", "last")
        found = world.ask("the build is red", on((MAIN, 0, 1000))).found
        assert [one.key for one in found] == ["last"]

    def test_a_fact_on_two_paths_is_found_once(self, world: World) -> None:
        world.learn(MAIN, 2, "the sky is blue", "f")
        world.learn(SHARED, 5, "the sky is blue", "f")
        own, shared = on((MAIN, 0, 9)), on((SHARED, 0, 9), scope="agent")
        assert [one.scope for one in world.ask("sky", own, shared).found] == [""]
        assert [one.scope for one in world.ask("sky", shared, own).found] == ["agent"]

    def test_messages_shared_by_two_paths_are_found_once(self, world: World) -> None:
        world.say(MAIN, *TALK)
        world.say(LEFT, "sardines again", start=5)
        main, left = on((MAIN, 0, 6)), on((MAIN, 0, 4), (LEFT, 4, 5))
        both = world.ask("sardines", left, main).found
        assert len({(one.timeline, one.seq) for one in both}) == len(both)
        assert len(world.ask("momo", left, main).found) > 0
        twice = world.ask("sardines", main, main)
        assert twice == world.ask("sardines", main)

    def test_a_search_of_events_that_are_not_indexed_is_refused(self, world: World) -> None:
        world.say(MAIN, *TALK)
        world.fill(MAIN, 3)
        with pytest.raises(IndexLost, match="only up to 3"):
            search(world.index, [on((MAIN, 0, 6))], Query("sardines"))
        assert search(world.index, [on((MAIN, 0, 3))], Query("summer")).found


class TestFilters:
    @pytest.fixture
    def mixed(self, world: World) -> World:
        world.say(MAIN, *["zebra talk"] * 3)
        world.put(MAIN, MemoryDocument(4, "episodic", "zebra episode", 40, key="e"))
        world.learn(MAIN, 5, "zebra fact", "f", since=1000, until=2000)
        world.learn(MAIN, 6, "zebra rule", "g")
        world.end(MAIN, 8, "g")
        return world

    @pytest.mark.parametrize(
        ("tiers", "keys"),
        [
            (("semantic",), {"f"}),
            (("episodic",), {"e"}),
            (("working",), {""}),
            (("semantic", "episodic"), {"e", "f"}),
            ((), set()),
        ],
    )
    def test_only_the_requested_tiers_are_searched(
        self, mixed: World, tiers: tuple[Tier, ...], keys: set[str]
    ) -> None:
        assert {one.key for one in mixed.ask("zebra", HERE, tiers=tiers).found} == keys

    def test_few_facts_among_many_messages(self, world: World) -> None:
        world.say(MAIN, *["zebra zebra zebra"] * 3000)
        world.learn(MAIN, 3001, "in the zoo there is a zebra", "f")
        path = on((MAIN, 0, 3001))
        assert [one.key for one in world.ask("zebra", path, tiers=("semantic",)).found] == ["f"]

    def test_search_at_a_time_returns_what_was_known_at_that_time(self, mixed: World) -> None:
        def seqs(at: int) -> list[int]:
            return sorted(one.seq for one in mixed.ask("zebra", HERE, at=at).found)

        assert seqs(9) == []
        assert seqs(10) == [1]
        assert seqs(49) == [1, 2, 3, 4]
        assert seqs(79) == [1, 2, 3, 4, 5, 6]
        assert seqs(80) == [1, 2, 3, 4, 5]

    def test_search_at_a_time_ignores_later_events_in_its_scores(self, world: World) -> None:
        world.say(MAIN, *TALK)
        then = world.ask("how was the food, Momo?", on((MAIN, 0, 6)), at=30)
        assert then == world.ask("how was the food, Momo?", on((MAIN, 0, 3)))

    def test_search_on_a_time_returns_facts_valid_at_that_time(self, mixed: World) -> None:
        for moment, valid in [(999, False), (1000, True), (1999, True), (2000, False)]:
            found = mixed.ask("zebra", HERE, on=moment).found
            assert ("f" in {one.key for one in found}) is valid

    def test_search_after_a_time_returns_only_newer_memories(self, mixed: World) -> None:
        assert sorted(one.seq for one in mixed.ask("zebra", HERE, after=30).found) == [3, 4, 5]
        found = mixed.ask("zebra", HERE, after=20, at=40).found
        assert sorted(one.seq for one in found) == [2, 3, 4]
        assert mixed.ask("zebra", HERE, after=5000).found == []


class Nearby:
    """Stands for vectors."""

    def __init__(self, *places: tuple[str, int, float], status: str = "all") -> None:
        self.near = SemanticMatches(list(places), status)
        self.asked: list[tuple[Sequence[EventSpan], Sequence[Tier], str, int]] = []

    def rank(
        self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
    ) -> SemanticMatches:
        self.asked.append((spans, tiers, text, limit))
        return self.near


class TestMeaning:
    def test_semantic_matches_are_combined_with_word_matches(self, world: World) -> None:
        world.say(MAIN, *TALK)
        near = Nearby((MAIN, 5, 0.8), (MAIN, 2, 0.3))
        answer = world.ask("grilled sardines", HERE, vectors=near)
        assert answer.dense == "all"
        by_seq = {one.seq: one.scores for one in answer.found}
        assert (by_seq[5].cosine, by_seq[5].cosine_rank) == (0.8, 1)
        assert (by_seq[2].cosine, by_seq[2].cosine_rank) == (0.3, 2)
        assert (by_seq[4].bm25_rank, by_seq[2].bm25_rank) == (1, 0)
        assert by_seq[4].cosine_rank == 0
        assert near.asked[0][:3] == (
            HERE.spans,
            ("working", "episodic", "semantic"),
            "grilled sardines",
        )

    def test_semantic_matches_outside_the_visible_path_or_ended_are_dropped(
        self, world: World
    ) -> None:
        world.say(MAIN, *TALK)
        world.learn(MAIN, 7, "over", "f")
        world.end(MAIN, 8, "f")
        world.say(OTHER, *TALK)
        world.fill(OTHER, 9)
        near = Nearby(
            (OTHER, 1, 0.9), (MAIN, 7, 0.8), (MAIN, 6, 0.7), (MAIN, 99, 0.6), ("x", 1, 0.5)
        )
        found = world.ask("unheard", on((MAIN, 0, 5)), on((MAIN, 6, 8)), vectors=near).found
        assert found == []
        found = world.ask("unheard", HERE, vectors=near, at=65).found
        assert [one.seq for one in found] == [6]

    def test_the_vector_search_gets_only_the_visible_spans(self, world: World) -> None:
        world.say(MAIN, *TALK)
        world.say(LEFT, *TALK, start=5)
        near = Nearby((MAIN, 2, 0.5))
        path = on((MAIN, 0, 4), (LEFT, 4, 10))
        world.ask("unheard", path, vectors=near, at=60)
        assert near.asked[-1][0] == [EventSpan(LEFT, 4, 6), EventSpan(MAIN, 0, 4)]
        world.ask("unheard", path, vectors=near, after=20, at=40)
        assert near.asked[-1][0] == [EventSpan(MAIN, 1, 4)]

    def test_more_vectors_are_requested_when_the_nearest_have_ended(self, world: World) -> None:
        for seq in range(1, 400):
            world.learn(MAIN, seq, "over", f"f{seq}")
            world.end(MAIN, seq + 1, f"f{seq}")
        world.learn(MAIN, 401, "still", "g")

        class Ordered(Nearby):
            def rank(
                self, spans: Sequence[EventSpan], tiers: Sequence[Tier], text: str, limit: int
            ) -> SemanticMatches:
                return SemanticMatches([(MAIN, seq, 1 / seq) for seq in range(1, 402)][:limit])

        found = world.ask("unheard", on((MAIN, 0, 401)), vectors=Ordered()).found
        assert [one.key for one in found] == ["g"]

    def test_the_answer_reports_a_failed_vector_search(self, world: World) -> None:
        world.say(MAIN, *TALK)
        answer = world.ask("sardines", HERE, vectors=Nearby(status="failed: no answer"))
        assert answer.dense == "failed: no answer"
        assert answer.found == world.ask("sardines", HERE).found
        assert world.ask("sardines", HERE).dense == ""


class TestPruning:
    @pytest.fixture
    def many(self, world: World) -> World:
        world.say(MAIN, *[f"common words here {number % 7}" for number in range(400)])
        world.say(MAIN, "the needle of all common words", start=401)
        return world

    def test_common_terms_are_not_looked_for_and_still_count(self, many: World) -> None:
        path = on((MAIN, 0, 401))
        effort = SearchEffort(postings=50, documents=20, counted=30)
        best, *_ = many.ask("common words needle", path, effort=effort).found
        assert best.seq == 401
        assert best.scores.pruned == ("common", "word")
        assert set(best.scores.terms) == {"common", "word", "needl"}

    def test_a_query_of_only_common_terms_still_finds_results(self, many: World) -> None:
        effort = SearchEffort(postings=50, documents=20, counted=30)
        found = many.ask("common words", on((MAIN, 0, 401)), effort=effort).found
        assert len(found) == 10
        assert found[0].scores.pruned == ("word",)

    def test_no_term_is_pruned_in_a_small_index(self, world: World) -> None:
        world.say(MAIN, *TALK)
        assert world.ask("the cat and the food", HERE).found[0].scores.pruned == ()


VOCABULARY = [f"term{number}x" for number in range(12)]
sayings = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8).map(" ".join)


@st.composite
def worlds(
    draw: st.DrawFn,
) -> tuple[dict[str, list[MemoryDocument]], dict[str, list[FactEnd]], TimelinePath]:
    """A line with a fork, facts between messages, some of them ended."""
    cut = draw(st.integers(0, 12))
    docs: dict[str, list[MemoryDocument]] = {MAIN: [], LEFT: []}
    ends: dict[str, list[FactEnd]] = {MAIN: [], LEFT: []}
    for line, first, last in ((MAIN, 1, 14), (LEFT, cut + 1, cut + 8)):
        for seq in range(first, last):
            kind = draw(st.sampled_from(["working", "working", "semantic", "end", "nothing"]))
            if kind in ("working", "semantic"):
                key = f"{line[0]}{seq}" if kind == "semantic" else ""
                docs[line].append(MemoryDocument(seq, kind, draw(sayings), seq * 10, key=key))  # type: ignore[arg-type]
            elif kind == "end":
                ends[line].append(FactEnd(seq, f"{MAIN[0]}{draw(st.integers(1, 14))}", seq * 10))
    return docs, ends, on((MAIN, 0, cut), (LEFT, cut, cut + 8))


def reference(
    docs: dict[str, list[MemoryDocument]],
    ends: dict[str, list[FactEnd]],
    path: TimelinePath,
    terms: list[str],
) -> dict[tuple[str, int], float]:
    """BM25 of all that can be seen, without an index."""
    seen = [
        (span.timeline, doc)
        for span in path.spans
        for doc in docs[span.timeline]
        if span.after < doc.seq <= span.upto
    ]
    over = {
        end.key
        for span in path.spans
        for end in ends[span.timeline]
        if span.after < end.seq <= span.upto
    }
    rarities = {}
    for term in terms:
        having = sum(term in doc.text.split() for _, doc in seen)
        if having:
            rarities[term] = inverse_document_frequency(term, len(seen), having)
    counted = [
        TermFrequencies(
            {term: n for term, n in Counter(doc.text.split()).items() if term in rarities},
            len(doc.text.split()),
        )
        for _, doc in seen
    ]
    scores = {}
    for at, (timeline, doc) in enumerate(seen):
        same = [n for n, (_, other) in enumerate(seen) if other.tier == doc.tier]
        average = sum(counted[n].length for n in same) / len(same)
        before = behind = None
        if doc.tier == "working":
            place = same.index(at)
            before = counted[same[place - 1]] if place else None
            behind = counted[same[place + 1]] if place + 1 < len(same) else None
        window = NeighbourWindow(counted[at], before, behind)
        score = bm25(window, rarities=rarities, average=average, weights=Weights())
        if score > 0 and doc.key not in over:
            scores[timeline, doc.seq] = score
    return scores


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(worlds(), st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4, unique=True))
def test_search_scores_equal_a_reference_without_an_index(
    tmp_path_factory: pytest.TempPathFactory,
    made: tuple[dict[str, list[MemoryDocument]], dict[str, list[FactEnd]], TimelinePath],
    terms: list[str],
) -> None:
    """The same memories with the same scores as without an index, whatever else is in it."""
    docs, ends, path = made
    world = World(SqliteWordIndex(tmp_path_factory.mktemp("world") / "index.db"))
    world.docs, world.ends = docs, ends
    answer = world.ask(" ".join(terms), path, k=100)
    stemmed = world.index.tokenizer.query_terms(" ".join(terms))
    assert stemmed == terms
    expected = reference(docs, ends, path, terms)
    scores = {(one.timeline, one.seq): one.scores.bm25 for one in answer.found}
    assert scores == pytest.approx(expected)

    world.index.forget(None)
    for line in (OTHER, RIGHT):
        world.say(line, *[" ".join(VOCABULARY[:number]) for number in range(1, 12)])
        world.end(line, 12, f"{MAIN[0]}3")
    for line in (RIGHT, LEFT, OTHER, MAIN):  # in another order, with more of each
        world.fill(line, ALL)
    assert world.ask(" ".join(terms), path, k=100) == answer
    world.index.close()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(worlds(), st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4, unique=True))
def test_a_database_answers_as_a_file_does(
    tmp_path_factory: pytest.TempPathFactory,
    in_database: PostgresWordIndex,
    made: tuple[dict[str, list[MemoryDocument]], dict[str, list[FactEnd]], TimelinePath],
    terms: list[str],
) -> None:
    docs, ends, path = made
    world = World(SqliteWordIndex(tmp_path_factory.mktemp("world") / "index.db"))
    world.docs, world.ends = docs, ends
    in_database.forget(None)
    for line in (OTHER, RIGHT, LEFT, MAIN):
        world.fill(line, ALL, in_database)
    question = " ".join(terms)
    assert world.ask(question, path, k=100, index=in_database) == world.ask(question, path, k=100)
    world.index.close()


def test_a_rebuilt_index_gives_the_same_answers(world: World, tmp_path: Directory) -> None:
    random_ = random.Random(7)
    vocabulary = [f"word{number}" for number in range(200)]
    for line, start in ((MAIN, 1), (LEFT, 301), (OTHER, 1), (SHARED, 1)):
        for seq in range(start, start + 400):
            text = " ".join(random_.choices(vocabulary, k=random_.randint(1, 30)))
            tier: Tier = random_.choice(["working", "working", "semantic", "episodic"])
            key = f"{line[0]}{seq}" if tier != "working" else ""
            world.put(
                line,
                MemoryDocument(seq, tier, text, time=seq, key=key, importance=random_.random()),
            )
    paths = [on((MAIN, 0, 300), (LEFT, 300, 700)), on((SHARED, 0, 400), scope="agent")]
    questions = [" ".join(random_.choices(vocabulary, k=5)) for _ in range(20)]
    effort = SearchEffort(postings=200, documents=40, counted=60)
    first = [world.ask(text, *paths, effort=effort) for text in questions]
    assert any(one.scores.pruned for answer in first for one in answer.found)

    other = SqliteWordIndex(tmp_path / "other" / "index.db")
    for line in (OTHER, SHARED, LEFT, MAIN):
        for upto in (*range(50, 700, 37), 700):
            world.fill(line, upto, other)
    assert [world.ask(text, *paths, effort=effort, index=other) for text in questions] == first
    other.close()


@given(st.dictionaries(st.integers(1, 60), VALUES), st.integers(1, 70))
def test_top_candidates_are_the_largest_scores_and_the_first_of_equals(
    told: dict[int, float], many: int
) -> None:
    assert top_ids(told, many) == heapq.nlargest(many, told, key=told.__getitem__)
