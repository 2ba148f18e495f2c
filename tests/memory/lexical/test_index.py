"""The index: what was taken in is there once; whatever becomes of its file, it can be filled."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fixtures.stores import Open

from ortet.errors import Invalid, Unavailable
from ortet.memory.lexical.index import VERSION, IndexLost, SqliteWordIndex, text_hash
from ortet.memory.lexical.index_file import IndexFile
from ortet.memory.lexical.reader import SqliteIndexReader
from ortet.memory.records import (
    IDS_PER_LINE,
    LINES_PER_TIMELINE,
    TIERS,
    FactEnd,
    IndexPosition,
    MemoryDocument,
    Tier,
    pack_timeline_seq,
)

LINE = "1" * 32
OTHER = "2" * 32
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "index.db"


@pytest.fixture(params=[False, True], ids=["own", "shared"])
def index(path: Path, request: pytest.FixtureRequest) -> Iterator[SqliteWordIndex]:
    made = SqliteWordIndex(path, shared=request.param)
    yield made
    made.close()


def said(seq: int, text: str) -> MemoryDocument:
    return MemoryDocument(seq, "working", text, time=seq * 10)


def pages(many: int, step: int = 10) -> Iterator[tuple[int, int, list[MemoryDocument]]]:
    for after in range(0, many, step):
        yield (
            after,
            after + step,
            [said(seq, f"word{seq} zebra") for seq in range(after + 1, after + step + 1)],
        )


def fill(index: SqliteWordIndex, many: int = 40, timeline: str = LINE) -> None:
    """As a caller does: from what is known, again when it was lost."""
    for _ in range(50):
        try:
            known = index.indexed_seq(timeline)
            for after, upto, docs in pages(many):
                if upto > known:
                    index.add(timeline, max(known, after), upto, docs, [])
            return
        except IndexLost:
            continue
    raise AssertionError("lost again and again")


def count(index: SqliteWordIndex, term: str, timeline: str = LINE) -> int:
    """How many messages of a timeline have it."""
    with index.open_reader() as lookup:
        number, _ = lookup.timeline(timeline)
        last = _place(lookup, number, "working", 1 << 30)
        low = last.id // IDS_PER_LINE * IDS_PER_LINE + 1
        return len(lookup.terms.ids_with_term(term, low, max(low, last.id)))


def whole(index: SqliteWordIndex, many: int = 40) -> bool:
    return count(index, "zebra") == many and all(
        count(index, f"word{seq}") == 1 for seq in range(1, many + 1)
    )


class TestTakingIn:
    def test_a_new_index_knows_no_events_and_has_no_file(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        assert not path.exists()
        assert index.indexed_seq(LINE) == 0
        assert not index.in_memory

    def test_known_returns_the_last_indexed_event_of_each_timeline(
        self, index: SqliteWordIndex
    ) -> None:
        index.add(LINE, 0, 7, [said(3, "hello")], [])
        assert (index.indexed_seq(LINE), index.indexed_seq(OTHER)) == (7, 0)
        index.add(LINE, 7, 9, [], [])
        assert index.indexed_seq(LINE) == 9

    def test_already_indexed_events_are_not_indexed_again(self, index: SqliteWordIndex) -> None:
        fill(index)
        index.add(LINE, 0, 20, [said(seq, "zebra again") for seq in range(1, 21)], [])
        index.add(LINE, 35, 42, [said(seq, "zebra late") for seq in range(36, 43)], [])
        assert index.indexed_seq(LINE) == 42
        assert count(index, "zebra") == 42
        assert (count(index, "again"), count(index, "late")) == (0, 2)

    def test_add_ignores_documents_outside_of_its_page(self, index: SqliteWordIndex) -> None:
        index.add(LINE, 0, 5, [said(4, "soon"), said(6, "late")], [FactEnd(9, "f", 1)])
        assert (count(index, "soon"), count(index, "late")) == (1, 0)
        with index.open_reader() as lookup:
            assert lookup.ends(["f"]) == []

    def test_a_gap_between_indexed_events_is_refused(self, index: SqliteWordIndex) -> None:
        index.add(LINE, 0, 5, [], [])
        with pytest.raises(IndexLost, match="6 to 8"):
            index.add(LINE, 8, 9, [said(9, "behind a gap")], [])
        with pytest.raises(IndexLost):
            index.add(OTHER, 3, 9, [], [])
        assert (index.indexed_seq(LINE), index.indexed_seq(OTHER)) == (5, 0)

    def test_an_index_keeps_its_content_when_reopened(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        fill(index)
        index.close()
        again = SqliteWordIndex(path)
        assert whole(again)
        again.close()

    def test_a_closed_index_refuses_use(self, index: SqliteWordIndex) -> None:
        index.close()
        with pytest.raises(Invalid, match="open the store again"):
            index.indexed_seq(LINE)

    def test_numbers_of_each_tier_have_no_gaps(self, index: SqliteWordIndex) -> None:
        docs = [
            MemoryDocument(seq, TIERS[seq % 3], "three little words", time=seq)
            for seq in range(1, 31)
        ]
        index.add(LINE, 0, 10, docs[:10], [])
        index.add(LINE, 10, 30, docs[10:], [])
        with index.open_reader() as lookup:
            for tier in TIERS:
                start, end = _place(lookup, 1, tier, 0), _place(lookup, 1, tier, 30)
                assert (end.id - start.id, end.total) == (10, 30)
                assert lookup.text_hashes(1, [tier], 0, 30)[0][1] == text_hash("three little words")

    def test_until_finds_the_last_id_before_a_time(self, index: SqliteWordIndex) -> None:
        fill(index)
        with index.open_reader() as lookup:
            start, end = _place(lookup, 1, "working", 0), _place(lookup, 1, "working", 40)
            assert lookup.last_before([(start, end)], 9)[0] == start
            assert lookup.last_before([(start, end)], 10)[0].id == start.id + 1
            assert lookup.last_before([(start, end)], 255)[0].id == start.id + 25
            assert lookup.last_before([(start, end)], 255)[0] == _place(lookup, 1, "working", 25)
            assert lookup.last_before([(start, end)], 10_000)[0] == end


@given(st.text(min_size=1, max_size=60))
def test_every_token_of_a_document_is_found(words_index: SqliteWordIndex, text: str) -> None:
    """The file splits tokens at spaces only, and nothing in a question is syntax."""
    known = words_index.indexed_seq(LINE)
    words_index.add(LINE, known, known + 1, [said(known + 1, text)], [])
    with words_index.open_reader() as lookup:
        place = _place(lookup, 1, "working", known + 1)
        (entry,) = lookup.entries([place.id]).values()
        tokens = words_index.tokenizer.tokens(text)
        assert entry.length == len(tokens)
        for token in tokens:
            assert lookup.terms.ids_with_term(token, place.id, place.id) == [place.id]


@pytest.fixture(scope="module")
def words_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteWordIndex]:
    made = SqliteWordIndex(tmp_path_factory.mktemp("words") / "index.db")
    yield made
    made.close()


class TestManyAtOnce:
    def test_threads_that_fill_one_index_store_everything_once(
        self, index: SqliteWordIndex
    ) -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: fill(index), range(4)))
        assert whole(index)

    def test_processes_that_fill_one_index_store_everything_once(self, path: Path) -> None:
        workers = [FORK.Process(target=lambda: fill(SqliteWordIndex(path), 200)) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        index = SqliteWordIndex(path)
        assert whole(index, 200)
        index.close()

    def test_a_forked_child_reopens_the_index(self, index: SqliteWordIndex) -> None:
        fill(index, 20)
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                fill(index, 40)
                code = 0 if whole(index) else 2
            finally:
                os._exit(code)
        fill(index, 40)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert whole(index)

    def test_a_child_has_an_index_in_memory_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        index = SqliteWordIndex(tmp_path / "file" / "index.db")
        fill(index)
        child = os.fork()
        if child == 0:  # pragma: no cover
            os._exit(0 if whole(index) and index.in_memory else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def test_an_index_emptied_by_another_process_is_filled_again(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        fill(index, 20)
        other = SqliteWordIndex(path)
        other.drop()
        with pytest.raises(IndexLost, match="fill the index again"):
            index.add(LINE, 20, 21, [said(21, "zebra")], [])
        fill(index, 40)
        assert whole(index)
        assert whole(other)
        other.close()

    def test_a_locked_index_file_is_unavailable_until_released(self, path: Path) -> None:
        index = SqliteWordIndex(path, busy_ms=1)
        fill(index, 10)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="try again"):
            index.add(LINE, 10, 11, [], [])
        other.execute("ROLLBACK")
        index.add(LINE, 10, 11, [], [])
        other.execute("BEGIN; SELECT * FROM docs")
        with pytest.raises(Unavailable, match="try again"):
            index.drop()
        other.close()
        index.drop()
        index.close()


def scramble(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "head":
            data[:100] = b"\x5a" * 100
        case "middle":
            data[4096:] = b"\x5a" * (len(data) - 4096)
        case "zeros":
            data[4096:] = bytes(len(data) - 4096)
        case "short":
            del data[len(data) // 2 :]
        case "text":
            data = bytearray(b"not a database at all " * 1000)
        case "empty":
            data.clear()
    path.write_bytes(bytes(data))


class TestFaults:
    @pytest.mark.parametrize("how", ["head", "middle", "zeros", "short", "text", "empty"])
    def test_a_damaged_index_file_is_rebuilt(self, path: Path, how: str) -> None:
        first = SqliteWordIndex(path)
        fill(first, 400)
        first.close()
        scramble(path, how)
        index = SqliteWordIndex(path)
        fill(index, 400)
        try:
            assert whole(index, 400)
        except IndexLost:
            fill(index, 400)
        assert whole(index, 400)
        assert not index.in_memory
        index.close()

    def test_an_index_damaged_while_open_is_rebuilt(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        fill(index, 400)
        with apsw.Connection(str(path)) as other:
            other.execute("DROP TABLE docs")
        with pytest.raises(IndexLost):
            whole(index, 400)
        fill(index, 400)
        assert whole(index, 400)

    def test_an_index_whose_file_was_deleted_is_rebuilt(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        fill(index, 20)
        for file in path.parent.iterdir():
            file.unlink()
        assert index.indexed_seq(LINE) == 0
        fill(index)
        assert whole(index)

    def test_an_index_whose_directory_was_moved_is_rebuilt(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        fill(index, 20)
        path.parent.rename(path.parent.with_name("away"))
        with pytest.raises(IndexLost):
            index.add(LINE, 20, 21, [], [])
        fill(index)
        assert whole(index)
        assert path.exists()

    def test_an_index_of_another_version_is_rebuilt(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        fill(index, 20)
        index.close()
        with apsw.Connection(str(path)) as other:
            other.execute(f"PRAGMA user_version = {VERSION + 1}")
        again = SqliteWordIndex(path)
        assert again.indexed_seq(LINE) == 0
        fill(again)
        assert whole(again)
        again.close()

    def test_an_index_file_of_another_program_is_replaced(self, path: Path) -> None:
        path.parent.mkdir()
        with apsw.Connection(str(path)) as other:
            other.execute(f"CREATE TABLE docs (a); PRAGMA user_version = {VERSION}")
        index = SqliteWordIndex(path)
        fill(index)
        assert whole(index)
        index.close()

    def test_an_index_without_a_writable_place_is_kept_in_memory(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        index = SqliteWordIndex(tmp_path / "file" / "index.db")
        fill(index)
        assert whole(index)
        assert index.in_memory
        index.drop()
        assert index.indexed_seq(LINE) == 0

    def test_an_index_in_an_unwritable_directory_is_kept_in_memory(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            Path(directory).chmod(0o555)
            worker = FORK.Process(target=_may_not_write, args=(Path(directory) / "index.db",))
            worker.start()
            worker.join()
            assert worker.exitcode == 0
            Path(directory).chmod(0o700)

    def test_an_index_on_a_full_disk_stays_usable(self, path: Path) -> None:
        worker = FORK.Process(target=_on_a_full_disk, args=(path,))
        worker.start()
        worker.join()
        assert worker.exitcode == 0


def _may_not_write(path: Path) -> None:
    if os.geteuid() == 0:  # who may write anywhere
        os.setgid(65534)
        os.setuid(65534)
    index = SqliteWordIndex(path)
    fill(index)
    assert whole(index)
    assert index.in_memory


def _on_a_full_disk(path: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    index = SqliteWordIndex(path)
    fill(index, 2000)
    assert index.in_memory
    assert whole(index, 2000)


class TestDropping:
    def leftovers(self, path: Path) -> list[str]:
        return [file.name for file in path.parent.iterdir() if b"xylophon" in file.read_bytes()]

    def test_drop_leaves_no_text_in_the_files(self, index: SqliteWordIndex, path: Path) -> None:
        for seq in range(1, 200):
            index.add(LINE, seq - 1, seq, [said(seq, f"my xylophone{seq} and my xylophon")], [])
        assert self.leftovers(path)
        index.drop()
        assert self.leftovers(path) == []
        assert index.indexed_seq(LINE) == 0
        fill(index)
        assert whole(index)

    def test_drop_leaves_no_text_written_by_another_handle(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        index.add(LINE, 0, 1, [said(1, "a xylophone")], [])
        other = SqliteWordIndex(path)
        other.drop()
        assert self.leftovers(path) == []
        index.drop()
        other.close()

    def test_drop_of_a_damaged_index_leaves_no_text(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        index.add(LINE, 0, 300, [said(seq, f"xylophone{seq}") for seq in range(1, 300)], [])
        index.close()
        scramble(path, "head")
        again = SqliteWordIndex(path)
        again.drop()
        assert self.leftovers(path) == []
        again.close()

    def test_drop_without_a_file_creates_none(self, index: SqliteWordIndex, path: Path) -> None:
        index.drop()
        assert not path.exists()

    @pytest.mark.parametrize("index", [False], indirect=True)
    def test_drop_empties_the_file_of_an_index_that_moved_into_memory(
        self, index: SqliteWordIndex, path: Path
    ) -> None:
        """An index in memory took its place: the file is emptied all the same."""
        index.add(LINE, 0, 1, [said(1, "a xylophone")], [])
        assert isinstance(index._file, IndexFile)
        index._file._switch_to_memory()
        index.drop()
        assert self.leftovers(path) == []
        assert not index.in_memory


def _place(lookup: SqliteIndexReader, timeline: int, tier: Tier, seq: int) -> IndexPosition:
    end = pack_timeline_seq(timeline, seq)
    first = IndexPosition((timeline * LINES_PER_TIMELINE + TIERS.index(tier)) * IDS_PER_LINE, 0)
    return lookup.last_positions([tier], [end])[tier].get(end, first)


@pytest.mark.parametrize("cut", [1, 3914, 4096, 20_000])
def test_a_cut_index_is_built_again(opened: Open, store: Path, cut: int) -> None:
    with opened() as hub, hub.session("s") as s:
        for number in range(40):
            s.learn(f"fact {number} about the harbour and the sky")
        before = [hit.text for hit in s.recall("harbour sky", k=40)]
    path = store / "local" / "memory" / "index.db"
    os.truncate(path, path.stat().st_size - cut)
    with opened() as hub, hub.session("s") as s:
        assert sorted(hit.text for hit in s.recall("harbour sky", k=40)) == sorted(before)
