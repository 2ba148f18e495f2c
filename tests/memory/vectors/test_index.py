"""Memories by meaning: exact, the same everywhere, embedded once, whatever the embedder does."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures import forked
from tests.fixtures.waiting import WAIT
from tests.memory.embedding import Corpus, Failing, Gated, Hashing

from ortet.memory.embedders.base import Embedder
from ortet.memory.embedders.lookup import find_embedder
from ortet.memory.lexical.index import text_hash
from ortet.memory.records import TIERS, EventSpan
from ortet.memory.vectors.index import LocalSemanticIndex
from ortet.testing.clock import ManualClock

SECOND = 1_000_000_000


@pytest.fixture
def corpus(tmp_path: Path) -> Iterator[Corpus]:
    corpus = Corpus(tmp_path)
    corpus.tell("a", *(f"text {n}" for n in range(1, 31)))
    yield corpus
    corpus.index.close()


@pytest.fixture
def opened(corpus: Corpus) -> Iterator[Any]:
    """Makes Vectors that wait for the embedder as long as it takes."""
    made: list[LocalSemanticIndex] = []

    def make(embedder: Embedder, **options: Any) -> LocalSemanticIndex:
        options = {"fill_timeout": WAIT, "query_timeout": WAIT} | options
        made.append(LocalSemanticIndex(corpus.directory / "vectors.db", embedder, **options))
        return made[-1]

    yield make
    for vectors in made:
        vectors.close()


class TestExactly:
    def test_the_same_text_is_the_nearest(self, corpus: Corpus, opened: Any) -> None:
        near = corpus.ask(opened(Hashing()), "text 17")
        assert near.status == "all"
        timeline, seq, cosine = near.places[0]
        assert (timeline, seq) == ("a", 17)
        assert cosine == pytest.approx(1, abs=1e-6)

    def test_vector_ranking_equals_a_loop_over_all_texts(self, corpus: Corpus, opened: Any) -> None:
        corpus.tell("b", *(f"other {n}" for n in range(300)))
        embedder = Hashing(size=64)
        vectors = opened(embedder)
        spans = [EventSpan("a", 3, 20), EventSpan("b", 0, 250)]
        near = corpus.ask(vectors, "a question", *spans, limit=25)
        query = _unit(embedder.embed(["a question"]))[0]
        expected = []
        for span in spans:
            for doc in corpus.docs[span.timeline][span.after : span.upto]:
                kept = _unit(_unit(embedder.embed([doc.text])).astype(np.float16).astype(float))
                expected.append((-float(kept[0] @ query), -doc.seq, span.timeline))
        expected = sorted(expected)[:25]
        assert [(t, s) for t, s, _ in near.places] == [(t, -s) for _, s, t in expected]
        assert [c for *_, c in near.places] == pytest.approx([-c for c, *_ in expected], abs=1e-6)

    def test_cosines_do_not_depend_on_other_timelines(self, corpus: Corpus, opened: Any) -> None:
        alone = corpus.ask(opened(Hashing(size=64)), "q")
        corpus.tell("b", *(f"noise {n}" for n in range(500)))
        corpus.tell("c", *(f"noise {n}" for n in range(7)))
        vectors = opened(Hashing(size=64))
        corpus.ask(vectors, "q", corpus.span("c"), corpus.span("b"))
        assert corpus.ask(vectors, "q", corpus.span("a")).places == alone.places
        both = corpus.ask(vectors, "q", *map(corpus.span, "cab"), limit=1000).places
        assert [place for place in both if place[0] == "a"][:10] == alone.places

    def test_of_equal_texts_the_latest_is_found(self, corpus: Corpus, opened: Any) -> None:
        corpus.tell("a", *["thanks"] * 50)
        near = corpus.ask(opened(Hashing()), "thanks", limit=3)
        assert [seq for _, seq, _ in near.places] == [80, 79, 78]

    def test_ranking_returns_only_the_requested_span_and_tiers(
        self, corpus: Corpus, opened: Any
    ) -> None:
        vectors = opened(Hashing())
        near = corpus.ask(vectors, "text 17", EventSpan("a", 4, 9), limit=100)
        assert sorted(seq for _, seq, _ in near.places) == [5, 6, 7, 8, 9]
        asked = vectors.ranker(corpus.index, corpus.news)
        near = asked.rank([corpus.span("a")], [TIERS[1]], "text 17", 100)
        assert sorted(seq for _, seq, _ in near.places) == list(range(1, 31, 3))
        assert corpus.ask(vectors, "q", EventSpan("a", 0, 30), limit=0).places == []
        near = corpus.ask(
            vectors, "text 2", EventSpan("a", 0, 9), limit=1
        )  # further back than before
        assert [seq for _, seq, _ in near.places] == [2]

    def test_an_event_log_of_many_chunks_is_ranked_completely(
        self, corpus: Corpus, opened: Any
    ) -> None:
        corpus.tell("long", *(f"line {n % 9000}" for n in range(1, 17001)))
        vectors = opened(Hashing(size=4))
        near = corpus.ask(vectors, "line 8500", corpus.span("long"), limit=2)
        assert (near.places[0][1], near.status) == (8500, "all")
        corpus.tell("long", *(f"late {n}" for n in range(10)))
        near = corpus.ask(vectors, "late 5", corpus.span("long"), limit=1)
        assert [seq for _, seq, _ in near.places] == [17006]

    def test_vectors_evicted_from_memory_are_read_again_not_embedded_again(
        self, corpus: Corpus, opened: Any
    ) -> None:
        corpus.tell("b", *(f"other {n}" for n in range(50)))
        embedder = Hashing()
        vectors = opened(embedder, max_bytes=100)
        first = corpus.ask(vectors, "q", corpus.span("a"))
        corpus.ask(vectors, "q", corpus.span("b"))
        assert corpus.ask(vectors, "q", corpus.span("a")) == first
        assert len(embedder.texts) == 81


class TestOnce:
    def test_no_text_is_embedded_twice(self, corpus: Corpus, opened: Any) -> None:
        corpus.tell("fork", *(f"text {n}" for n in range(1, 31)), "and its own")
        embedder = Hashing()
        vectors = opened(embedder)
        corpus.ask(vectors, "q", corpus.span("a"))
        corpus.ask(vectors, "q", corpus.span("a"), corpus.span("fork"))
        assert sorted(embedder.texts) == sorted(
            ["q", "and its own", *(f"text {n}" for n in range(1, 31))]
        )

    def test_no_text_is_embedded_again_for_a_new_index(
        self, corpus: Corpus, opened: Any, tmp_path: Path
    ) -> None:
        first = corpus.ask(opened(Hashing()), "q")
        again = Corpus(tmp_path / "new")
        again.tell("b", "unknown")  # so that lines have other numbers
        again.tell("a", *(f"text {n}" for n in range(1, 31)))
        embedder = Hashing()
        assert again.ask(opened(embedder), "q", again.span("a")) == first
        assert embedder.texts == ["q"]

    def test_only_new_texts_are_embedded(self, corpus: Corpus, opened: Any) -> None:
        embedder = Hashing()
        vectors = opened(embedder)
        corpus.ask(vectors, "q")
        embedder.texts.clear()
        corpus.tell("a", "news")
        assert corpus.ask(vectors, "news").places[0][1] == 31
        assert embedder.texts == ["news"] or sorted(embedder.texts) == ["news", "news"]

    def test_texts_are_read_in_pages(self, corpus: Corpus, opened: Any) -> None:
        corpus.tell("a", *(f"more {n}" for n in range(3000)))
        corpus.ask(opened(Hashing()), "q")
        assert len(corpus.read) <= 8


class TestEmbeddersThatAreSlow:
    def test_a_search_does_not_wait_for_a_slow_query_vector_and_caches_it(
        self, corpus: Corpus, opened: Any
    ) -> None:
        embedder = Gated()
        vectors = opened(embedder, query_timeout=0.01, fill_timeout=0)
        near = corpus.ask(vectors, "text 3")
        assert (near.places, near.status) == ([], "late")
        near = corpus.ask(vectors, "text 4")  # while it hangs
        assert near.status == "late"
        embedder.open.set()
        assert vectors.fill(corpus.index, corpus.news, [corpus.span("a")], TIERS, WAIT)
        assert corpus.ask(vectors, "text 3").status == "all"
        assert embedder.texts.count("text 3") == 2  # as a question, and as a document

    def test_texts_are_embedded_in_the_background(self, corpus: Corpus, opened: Any) -> None:
        embedder = Gated()
        embedder.open.set()
        vectors = opened(embedder)
        corpus.ask(vectors, "q")
        embedder.open.clear()
        embedder.reached.clear()
        corpus.tell("a", "news")
        slow = opened(embedder, fill_timeout=0, query_timeout=0)
        assert corpus.ask(slow, "q2").status == "late"
        embedder.open.set()
        assert slow.fill(corpus.index, corpus.news, [corpus.span("a")], TIERS, WAIT)
        assert corpus.ask(vectors, "news").places[0][1] == 31
        assert embedder.texts.count("news") == 2  # by one as a text, as a question by the other

    def test_the_status_is_some_while_vectors_are_still_missing(
        self, corpus: Corpus, opened: Any
    ) -> None:
        embedder = Gated()
        embedder.open.set()
        vectors = opened(embedder, fill_timeout=0.0)
        vectors.fill(corpus.index, corpus.news, [corpus.span("a")], TIERS, WAIT)
        corpus.ask(vectors, "text 3")
        embedder.open.clear()
        corpus.tell("a", *(f"more {n}" for n in range(40)))
        near = corpus.ask(vectors, "text 3")
        assert near.status == "some"
        assert near.places[0][:2] == ("a", 3)
        embedder.open.set()
        assert vectors.fill(corpus.index, corpus.news, [corpus.span("a")], TIERS, WAIT)
        assert corpus.ask(vectors, "text 3").status == "all"

    def test_close_does_not_wait_for_a_hanging_embedder(self, corpus: Corpus, opened: Any) -> None:
        embedder = Gated()
        vectors = opened(embedder, query_timeout=0, fill_timeout=0)
        corpus.ask(vectors, "q")
        assert embedder.reached.wait(WAIT)
        vectors.close()
        embedder.open.set()

    def test_only_one_thread_at_a_time_calls_the_embedder(
        self, corpus: Corpus, opened: Any
    ) -> None:
        inside = threading.Lock()

        class Single(Hashing):
            def embed(self, texts: Sequence[str], /) -> list[list[float]]:
                assert inside.acquire(blocking=False)
                try:
                    return super().embed(texts)
                finally:
                    inside.release()

        vectors = opened(Single())
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda n=n: found.append(corpus.ask(vectors, f"q{n}").status))
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["all"] * 4


class TestEmbeddersThatFail:
    def test_a_failing_embedder_is_reported_and_retried_with_backoff(
        self, corpus: Corpus, opened: Any
    ) -> None:
        embedder, clock = Failing(), ManualClock()
        vectors = opened(embedder, clock=clock)
        for _ in range(3):
            near = corpus.ask(vectors, "q")
            assert (near.places, near.status) == ([], "failed: OSError: no such host")
        assert embedder.calls == 1
        clock.advance(SECOND)
        corpus.ask(vectors, "q")
        clock.advance(SECOND)  # two, by now
        corpus.ask(vectors, "q")
        assert embedder.calls == 2
        clock.advance(SECOND)
        embedder.error = None
        assert corpus.ask(vectors, "q").status == "all"

    def test_a_clock_set_back_does_not_stop_embedding(self, corpus: Corpus, opened: Any) -> None:
        embedder, clock = Failing(), ManualClock()
        vectors = opened(embedder, clock=clock)
        corpus.ask(vectors, "q")
        clock.advance(-1000 * SECOND)
        embedder.error = None
        assert corpus.ask(vectors, "q").status == "all"

    def test_an_embedder_that_raises_system_exit_is_reported_as_failed(
        self, corpus: Corpus, opened: Any
    ) -> None:
        embedder = Failing()
        embedder.error = SystemExit(3)
        assert corpus.ask(opened(embedder), "q").status == "failed: SystemExit: 3"

    def test_a_text_that_cannot_be_embedded_does_not_block_the_others(
        self, corpus: Corpus, opened: Any
    ) -> None:
        class Picky(Hashing):
            def embed(self, texts: Sequence[str], /) -> list[list[float]]:
                if "text 20" in texts:
                    raise ValueError("too long")
                return super().embed(texts)

        clock = ManualClock()
        vectors = opened(Picky(), clock=clock)
        for _ in range(40):
            near = corpus.ask(vectors, "q", limit=100)
            clock.advance(400 * SECOND)
        assert near.status == "some"
        assert {seq for _, seq, _ in near.places} == {*range(1, 31)} - {20}

    def test_texts_that_could_not_be_read_are_requested_again(
        self, corpus: Corpus, opened: Any
    ) -> None:
        clock = ManualClock()
        vectors = opened(Hashing(), clock=clock)

        def closed(span: EventSpan, after: int) -> Any:
            raise OSError("the session was closed")

        asked = vectors.ranker(corpus.index, closed)
        near = asked.rank([corpus.span("a")], TIERS, "q", 5)
        assert near.status == "failed: OSError: the session was closed"
        clock.advance(SECOND)
        assert corpus.ask(vectors, "q").status == "all"


class TestNonsense:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (lambda rows: rows[:-1], "shape"),
            (lambda rows: [*rows, rows[0]], "shape"),
            (lambda rows: [], "shape"),
            (lambda rows: [row[:3] for row in rows], "3 numbers a text, where 8 are expected"),
            (lambda rows: [[]] * len(rows), "shape"),
            (lambda rows: [1.0] * len(rows), "shape"),
            (lambda rows: [["x"] * 8] * len(rows), "no vectors"),
            (lambda rows: None, "shape"),
            (lambda rows: [[0.0] * 8] * len(rows), "zero or not of numbers"),
            (lambda rows: [[float("nan")] * 8] * len(rows), "zero or not of numbers"),
            (lambda rows: [[float("inf")] + [1.0] * 7] * len(rows), "zero or not of numbers"),
        ],
    )
    def test_malformed_vectors_are_refused_and_not_stored(
        self, corpus: Corpus, opened: Any, given: Any, said: str
    ) -> None:
        class Wrong(Hashing):
            def embed(self, texts: Sequence[str], /) -> Any:
                return given(super().embed(texts)) if wrong else super().embed(texts)

        wrong = True
        clock = ManualClock()
        vectors = opened(Wrong(), clock=clock)
        near = corpus.ask(vectors, "q")
        assert near.places == []
        assert near.status.startswith("failed: the embedder hashing gave")
        assert said in near.status
        wrong = False
        clock.advance(SECOND)
        assert corpus.ask(vectors, "text 4").places[0][1] == 4

    def test_zero_vectors_for_some_texts_do_not_affect_the_others(
        self, corpus: Corpus, opened: Any
    ) -> None:
        class Half(Hashing):
            def embed(self, texts: Sequence[str], /) -> Any:
                rows = super().embed(texts)
                return [
                    [0.0] * 8 if text.endswith("7") else row
                    for text, row in zip(texts, rows, strict=True)
                ]

        embedder = Half()
        vectors = opened(embedder)
        near = corpus.ask(vectors, "q", limit=100)
        assert near.status == "some"
        assert {seq for _, seq, _ in near.places} == {*range(1, 31)} - {7, 17, 27}
        embedder.texts.clear()
        corpus.ask(vectors, "q")
        assert embedder.texts == []

    def test_a_model_with_another_vector_size_under_the_same_name_is_reported(
        self, corpus: Corpus, opened: Any
    ) -> None:
        class Sizeless(Hashing):
            def __init__(self, size: int) -> None:
                super().__init__()
                self._numbers = size
                del self.size

            def embed(self, texts: Sequence[str], /) -> list[list[float]]:
                return Hashing(size=self._numbers).embed(texts)

        assert corpus.ask(opened(Sizeless(8)), "q").status == "all"
        near = corpus.ask(opened(Sizeless(16)), "q")
        assert "16 numbers a text, where 8 are expected" in near.status

    def test_vectors_of_very_large_numbers_are_ranked(self, corpus: Corpus, opened: Any) -> None:
        class Large(Hashing):
            def embed(self, texts: Sequence[str], /) -> list[list[float]]:
                return [[x * 1e300 for x in row] for row in super().embed(texts)]

        _, seq, cosine = corpus.ask(opened(Large()), "text 5").places[0]
        assert seq == 5
        assert cosine == pytest.approx(1, abs=1e-6)

    def test_a_text_with_a_zero_vector_is_no_failure(self, corpus: Corpus, opened: Any) -> None:
        corpus.tell("a", "   ", "\n")
        near = corpus.ask(opened(Hashing()), "q", limit=100)
        assert near.status == "all"
        assert len(near.places) == 30


class TestAnotherEmbedder:
    def test_another_embedder_has_its_own_vectors_and_keeps_the_old_ones(
        self, corpus: Corpus, opened: Any
    ) -> None:
        old, new = Hashing("old"), Hashing("new", size=16)
        first = corpus.ask(opened(old), "q")
        assert corpus.ask(opened(new), "q").status == "all"
        assert len(new.texts) == 31
        assert corpus.ask(opened(old), "q") == first
        assert len(old.texts) == 32

    def test_prune_removes_the_vectors_of_other_embedders(
        self, corpus: Corpus, opened: Any
    ) -> None:
        corpus.ask(opened(Hashing("old")), "q")
        vectors = opened(Hashing("new"))
        first = corpus.ask(vectors, "q")
        assert vectors.prune() == 30
        assert vectors.prune() == 0
        assert corpus.ask(vectors, "q") == first
        old = Hashing("old")
        corpus.ask(opened(old), "q")
        assert len(old.texts) == 31


class TestErased:
    def test_an_erased_text_leaves_no_vector_in_the_files(
        self, corpus: Corpus, opened: Any
    ) -> None:
        vectors = opened(Hashing(size=64))
        corpus.ask(vectors, "q")
        digest = text_hash("text 12")
        kept = _unit(Hashing(size=64).embed(["text 12"])).astype(np.float16).tobytes()
        assert _found(corpus, digest) and _found(corpus, kept)
        other = opened(Hashing(size=64))
        corpus.ask(other, "q")
        corpus.docs["a"][11] = _without_text(corpus.docs["a"][11])
        assert vectors.forget([digest]) == 1
        assert not _found(corpus, digest) and not _found(corpus, kept)
        assert vectors.forget([digest]) == 0
        for one in (vectors, other):
            near = corpus.ask(one, "text 12", limit=100)
            assert 12 not in {seq for _, seq, _ in near.places}
            assert near.status == "all"
        assert not _found(corpus, kept)

    def test_a_text_erased_while_being_embedded_leaves_no_vector(
        self, corpus: Corpus, opened: Any
    ) -> None:
        embedder = Gated()
        vectors = opened(embedder, fill_timeout=0, query_timeout=0)
        vectors.fill(corpus.index, corpus.news, [corpus.span("a")], TIERS, 0)
        assert embedder.reached.wait(WAIT)  # the texts were read
        corpus.docs["a"][11] = _without_text(corpus.docs["a"][11])
        assert vectors.forget([text_hash("text 12")]) == 0
        embedder.open.set()
        vectors.fill(corpus.index, corpus.news, [], TIERS, WAIT)
        assert vectors.fill(corpus.index, corpus.news, [corpus.span("a")], TIERS, WAIT)
        assert not _found(corpus, text_hash("text 12"))
        assert _found(corpus, text_hash("text 13"))

    def test_drop_removes_every_vector(self, corpus: Corpus, opened: Any) -> None:
        vectors = opened(Hashing())
        first = corpus.ask(vectors, "q")
        vectors.drop()
        assert not _found(corpus, text_hash("text 12"))
        assert corpus.ask(vectors, "q") == first
        assert _found(corpus, text_hash("text 12"))


class TestTheFile:
    @pytest.mark.parametrize("damage", ["text", "zeros", "cut", "empty", "foreign", "middle"])
    def test_a_damaged_vector_file_is_rebuilt(
        self, corpus: Corpus, opened: Any, damage: str
    ) -> None:
        vectors = opened(Hashing(size=64))
        first = corpus.ask(vectors, "q")
        vectors.close()
        path = corpus.directory / "vectors.db"
        whole = path.read_bytes()
        middle = len(whole) // 2
        path.write_bytes(
            {
                "text": b"this is no database\n" * 500,
                "zeros": bytes(len(whole)),
                "cut": whole[:middle],
                "empty": b"",
                "foreign": _foreign(corpus.directory),
                "middle": whole[:4096] + os.urandom(len(whole) - 4096),
            }[damage]
        )
        assert corpus.ask(opened(Hashing(size=64)), "q") == first

    def test_stored_zero_vectors_are_computed_again(self, corpus: Corpus, opened: Any) -> None:
        vectors = opened(Hashing(size=64))
        first = corpus.ask(vectors, "q")
        vectors.close()
        with sqlite3.connect(corpus.directory / "vectors.db") as db:
            db.execute("UPDATE vectors SET vector = zeroblob(128) WHERE no = 3")
        db.close()
        again = opened(Hashing(size=64))
        corpus.ask(again, "q")
        assert corpus.ask(again, "q") == first

    def test_vectors_work_without_a_writable_directory(self, corpus: Corpus) -> None:
        (corpus.directory / "file").write_text("in the way")
        vectors = LocalSemanticIndex(
            corpus.directory / "file" / "vectors.db", Hashing(), fill_timeout=WAIT
        )
        assert corpus.ask(vectors, "text 5").places[0][1] == 5
        vectors.close()

    def test_a_forked_child_continues_with_the_vector_file(
        self, corpus: Corpus, opened: Any
    ) -> None:
        embedder = Hashing()
        vectors = opened(embedder)
        first = corpus.ask(vectors, "q")
        before = len(embedder.texts)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                same = corpus.ask(vectors, "q") == first
                corpus.tell("child", "of its own")
                own = corpus.ask(vectors, "of its own", corpus.span("child")).places[0][1] == 1
                status = 0 if same and own and len(embedder.texts) == before + 3 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert corpus.ask(vectors, "q") == first
        assert len(embedder.texts) == before

    def test_several_processes_share_one_vector_file(self, corpus: Corpus, opened: Any) -> None:
        program = (
            "import sys; from pathlib import Path; from tests.memory.embedding import *\n"
            "corpus = Corpus(Path(sys.argv[1]) / sys.argv[2])\n"
            "corpus.tell('a', *(f'text {n}' for n in range(1, 1001)))\n"
            "vectors = LocalSemanticIndex(Path(sys.argv[1]) / 'vectors.db', Hashing(),"
            " fill_timeout=WAIT, query_timeout=WAIT)\n"
            "print(corpus.ask(vectors, 'q'))\n"
        )
        root = Path(__file__).parents[3]
        running = [
            forked.Popen(
                [sys.executable, "-c", program, str(corpus.directory), name],
                stdout=subprocess.PIPE,
                text=True,
                cwd=root,
            )
            for name in ("x", "y", "z")
        ]
        said = {process.communicate()[0] for process in running}
        assert [process.returncode for process in running] == [0, 0, 0]
        assert len(said) == 1
        assert "status='all'" in said.pop()


def test_the_wordllama_model_ranks_by_meaning(corpus: Corpus, opened: Any) -> None:
    corpus.tell(
        "talk",
        "the cat sleeps on the sofa",
        "our database server crashed during the night",
        "she plays the violin in an orchestra",
    )
    vectors = opened(find_embedder("wordllama"))
    near = corpus.ask(vectors, "musical instruments", corpus.span("talk"))
    assert near.places[0][1] == 3
    near = corpus.ask(vectors, "postgres went down", corpus.span("talk"))
    assert near.places[0][1] == 2


def _unit(rows: Any) -> Any:
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _found(corpus: Corpus, what: bytes) -> bool:
    return any(what in path.read_bytes() for path in corpus.directory.glob("vectors.db*"))


def _without_text(doc: Any) -> Any:
    return type(doc)(doc.seq, doc.tier, "", doc.time)


def _foreign(directory: Path) -> bytes:
    path = directory / "foreign.db"
    db = sqlite3.connect(path)
    db.executescript("CREATE TABLE vectors (x); PRAGMA user_version = 7")
    db.close()
    return path.read_bytes()
