"""A sweep frees what nothing refers to, keeps all else, and never wins a race against a writer."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet._util.codec import encode
from ortet.errors import Corrupt, NotFound, Refused, Unavailable, Unsupported
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.gc.sweep import SweepReport, sweep
from ortet.objects.gc.verify import verify
from ortet.objects.store import PackedObjectStore

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
WORKER = Path(__file__).parents[1] / "worker.py"

Open = Callable[..., PackedObjectStore]
Commit = Callable[[PackedObjectStore, str, Sequence[bytes]], Oid]
Roots = Callable[[], Iterable[ObjectRef]]


def noise(seed: int, count: int = 20) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(dice.randrange(1, 3000)) for _ in range(count)]


def roots(*oids: Oid) -> Roots:
    return lambda: [ObjectRef(oid, Kind.COMMIT) for oid in oids]


def stored(root: Path) -> int:
    """Bytes in tails and packs; one that is being sealed right now may be both."""
    sizes: dict[int, int] = {}
    for place in (root / "local/tails", root / "bucket/packs"):
        for path in place.iterdir() if place.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                sizes[path.stat().st_ino] = path.stat().st_size
    return sum(sizes.values())


def present(store: PackedObjectStore, contents: Sequence[bytes]) -> int:
    return sum(store.has(store.hasher.oid(data)) for data in contents)


def test_a_sweep_removes_only_unreachable_objects(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store(seal_bytes=40_000)
    oids = [commit(store, f"c{n}", noise(n)) for n in range(12)]
    kept = roots(*oids[::3])
    store.close()  # a seal that is still at work has the same bytes twice
    store = open_store(seal_bytes=40_000)
    before = stored(root)
    report = sweep(store, kept, walk)
    assert report.removed == 8 * 22
    assert report.bytes_freed == before - stored(root) > before // 2
    assert report.bytes_after == stored(root)
    for handle in (store, open_store()):
        for number in range(12):
            assert present(handle, noise(number)) == (0 if number % 3 else 20)
    assert verify(store, kept, walk).problems == []


def test_a_dry_run_tells_the_same_and_writes_nothing(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    oids = []
    for number in range(9):
        oids.append(commit(store, f"c{number}", noise(number)))
        if number in (2, 5):
            store.writer.seal_now()

    def files() -> dict[Path, int]:
        listed = (path for path in root.rglob("*") if path.is_file() and path.name != "gc.busy")
        return {path: path.stat().st_mtime_ns for path in listed}

    before = files()
    dry = sweep(store, roots(*oids[:3]), walk, dry_run=True)
    assert files() == before
    wet = sweep(store, roots(*oids[:3]), walk)
    fields = [name for name in SweepReport.__struct_fields__ if name != "dry_run"]
    assert [getattr(dry, name) for name in fields] == [getattr(wet, name) for name in fields]
    assert dry.removed > 0


def test_a_second_sweep_finds_nothing(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store(seal_bytes=40_000)
    oids = [commit(store, f"c{n}", noise(n)) for n in range(9)]
    sweep(store, roots(oids[0]), walk)
    again = sweep(store, roots(oids[0]), walk)
    assert (again.removed, again.packs_removed, again.bytes_freed) == (0, 0, 0)
    assert again.kept == 22


def test_a_sweep_without_roots_empties_the_store(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    commit(store, "gone", noise(1))
    report = sweep(store, roots(), walk)
    assert (report.kept, report.removed) == (0, 22)
    assert stored(root) == 0
    assert list((root / "local/index").iterdir()) == []


def test_a_pack_with_little_garbage_is_left_alone(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    oids = [commit(store, f"c{n}", noise(n)) for n in range(20)]
    lazy = sweep(store, roots(*oids[1:]), walk, min_garbage=0.5)
    assert (lazy.removed, lazy.packs_removed) == (0, 0)
    keen = sweep(store, roots(*oids[1:]), walk, min_garbage=0.0)
    assert (keen.removed, keen.packs_removed) == (22, 1)


def test_small_packs_and_small_frames_are_merged(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    oids = []
    for turn in range(6):
        oids += [commit(store, f"c{turn} {n}", noise(turn * 100 + n, 3)) for n in range(60)]
        store.writer.seal_now()
    assert store.stats().packs == 6
    sweep(store, roots(*oids), walk)
    assert store.stats().packs == 1
    [pack] = store.pack_set.packs
    assert len({spot[1] for _, spot in pack.locations()}) < 10
    assert verify(store, roots(*oids), walk).problems == []


def test_an_object_stored_twice_is_kept_once(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    first, second = open_store(), open_store()
    oids = {commit(store, "same", noise(1)) for store in (first, second)}
    assert len(oids) == 1
    first.writer.seal_now()
    second.writer.seal_now()
    assert first.stats().objects == 44
    report = sweep(first, roots(*oids), walk, min_garbage=0.0)
    del report
    for _ in range(2):
        sweep(first, roots(*oids), walk)
    assert verify(second, roots(*oids), walk).problems == []


def test_a_held_tail_keeps_all_it_refers_to(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    first, second = open_store(), open_store()
    blob = first.put(Kind.BLOB, b"in a pack, referred to from a tail only")
    first.writer.seal_now()
    second.pack_set.refresh()
    tree = second.put(Kind.TREE, encode(("t", [(int(Kind.BLOB), blob)])))
    half = second.put(Kind.TREE, encode(("its blob was never written", [(1, bytes(32))])))
    second.flush()
    sweep(first, roots(), walk, min_garbage=0.0)
    assert first.get(blob)
    assert first.get(tree)
    assert first.get(half)
    second.close()
    sweep(first, roots(), walk, min_garbage=0.0)
    with pytest.raises(NotFound):
        first.get(blob)


def test_a_full_disk_can_be_swept(
    open_store: Open, small_disk: Path, walk: ReferenceParser, commit: Commit
) -> None:
    path = small_disk / "store"
    store = open_store(path, seal_bytes=300_000)
    kept = commit(store, "kept", noise(0))
    store.writer.seal_now()
    for number in range(1, 40):
        commit(store, f"c{number}", noise(number))
    store.writer.seal_now()
    with open(small_disk / "ballast", "wb", buffering=0) as ballast, pytest.raises(OSError):
        while True:
            ballast.write(bytes(4096))
    before = stored(path)
    report = sweep(store, roots(kept), walk)
    assert report.bytes_freed > before // 2
    assert stored(path) == report.bytes_after
    assert verify(open_store(path), roots(kept), walk).problems == []
    assert present(store, noise(0)) == 20


def test_a_store_at_its_quota_can_be_swept(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store(quota=200_000)
    kept = commit(store, "kept", noise(0))
    with pytest.raises(Refused):
        for number in range(1, 40):
            commit(store, f"c{number}", noise(number))
    sweep(store, roots(kept), walk)
    assert stored(root) < 100_000
    commit(store, "fits now", noise(99))


def test_a_second_copy_is_garbage(open_store: Open, walk: ReferenceParser, commit: Commit) -> None:
    first, second = open_store(), open_store()
    for store in (first, second):
        oid = commit(store, "same", noise(1, 200))
    first.writer.seal_now()
    second.writer.seal_now()
    report = sweep(first, roots(oid), walk)
    assert (report.kept, report.removed, report.packs_written) == (202, 202, 0)
    assert verify(second, roots(oid), walk).problems == []


def test_the_same_bytes_stored_as_blob_and_tree_survive_a_sweep(
    open_store: Open, walk: ReferenceParser
) -> None:
    store = open_store()
    blob = store.put(Kind.BLOB, b"leaf")
    data = encode(("both", [(int(Kind.BLOB), blob)]))
    both = store.put(Kind.BLOB, data)
    links = [(int(Kind.BLOB), both), (int(Kind.TREE), both)]
    top = store.put(Kind.COMMIT, encode(("top", links)))
    store.put(Kind.BLOB, b"garbage")
    report = sweep(store, roots(top), walk, min_garbage=0.0)
    assert report.removed == 1
    assert store.get(blob) == b"leaf"


def test_an_object_that_becomes_reachable_during_marking_is_kept(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store, other = open_store(), open_store()
    old = commit(store, "old", noise(1))
    store.writer.seal_now()
    asked: list[int] = []

    def moving() -> Iterable[ObjectRef]:
        asked.append(1)
        if len(asked) == 1:
            return []
        return [ObjectRef(old, Kind.COMMIT)]  # a branch was made at it since

    sweep(store, moving, walk)
    assert len(asked) == 2
    assert present(other, noise(1)) == 20
    assert verify(other, roots(old), walk).problems == []


def test_a_missing_object_stops_a_sweep_before_anything_is_deleted(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    commit(store, "garbage", noise(1))
    tree = store.put(Kind.TREE, encode(("broken", [(int(Kind.TREE), bytes(32))])))
    top = store.put(Kind.COMMIT, encode(("top", [(int(Kind.TREE), tree)])))
    store.writer.seal_now()
    before = stored(root)
    with pytest.raises(Corrupt) as caught:
        sweep(store, roots(top), walk)
    assert caught.value.kind == "missing_object"
    assert stored(root) == before


def test_damaged_reachable_data_stops_a_sweep_before_anything_is_deleted(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    kept = commit(store, "kept", noise(1))
    commit(store, "garbage", noise(2, 40))
    store.close()
    open_store().writer.seal_now()
    [pack] = (root / "bucket/packs").iterdir()
    whole = bytearray(pack.read_bytes())
    whole[len(whole) // 6] ^= 1
    pack.write_bytes(whole)
    with pytest.raises(Corrupt):
        sweep(open_store(), roots(kept), walk, min_garbage=0.0)
    assert pack.exists()


def test_a_record_of_a_newer_format_stops_the_sweep(open_store: Open, commit: Commit) -> None:
    store = open_store()
    oid = commit(store, "new", noise(1))

    def newer(kind: Kind, data: bytes) -> Iterable[ObjectRef]:
        raise Unsupported("newer_record", "upgrade ortet")

    with pytest.raises(Unsupported):
        sweep(store, roots(oid), newer)
    assert present(store, noise(1)) == 20


def test_a_writer_that_does_not_finish_is_reported(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store, other = open_store(), open_store()
    commit(store, "garbage", noise(1))
    with other.writing(), pytest.raises(Unavailable):
        sweep(store, roots(), walk, lock_timeout=0.01)
    assert present(store, noise(1)) == 20
    assert sweep(store, roots(), walk).removed == 22


def test_readers_go_on_while_packs_are_replaced(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store, reader = open_store(seal_bytes=40_000), open_store()
    oids = [commit(store, f"c{n}", noise(n)) for n in range(12)]
    store.writer.seal_now()
    reader.pack_set.refresh()
    sweep(store, roots(*oids[::2]), walk)
    for number in range(0, 12, 2):
        for data in noise(number):
            assert reader.get(reader.hasher.oid(data)) == data


def test_progress_reaches_its_total(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store()
    oids = [commit(store, f"c{n}", noise(n)) for n in range(5)]
    seen: list[tuple[int, int]] = []
    sweep(store, roots(*oids), walk, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (110, 110)
    assert all(0 <= done <= total for done, total in seen)


def test_threads_of_a_handle_commit_while_the_handle_sweeps(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    store = open_store(seal_bytes=30_000)
    heads: dict[int, Oid] = {}
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(25):
                with store.writing():
                    heads[number] = commit(store, f"{number} {turn}", noise(turn % 7, 5))
                for data in noise(turn % 7, 5):
                    assert store.get(store.hasher.oid(data)) == data
        except BaseException as error:
            failures.append(error)

    def now() -> Iterable[ObjectRef]:
        return [ObjectRef(oid, Kind.COMMIT) for oid in list(heads.values())]

    threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        sweep(store, now, walk, min_garbage=0.0)
    assert failures == []
    assert verify(store, roots(*heads.values()), walk).problems == []


def run(verb: str, base: Path, name: str, count: int) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, str(WORKER), verb, str(base), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.soak
def test_writers_in_other_processes_lose_nothing(
    open_store: Open, tmp_path: Path, walk: ReferenceParser
) -> None:
    """Blobs come and go and come back, so that writers find garbage the sweep is about to take."""
    turns = 60 * SOAK
    (tmp_path / "heads").mkdir()
    jobs = [run("commits", tmp_path, f"w{n}", turns) for n in range(3)]
    jobs += [run("sweeps", tmp_path, "s", turns // 4), run("check", tmp_path, "v", turns // 10)]
    for job in jobs:
        said, _ = job.communicate()
        assert job.returncode == 0, said[-500:]
        assert said.endswith("done\n")
    heads = [
        ObjectRef(Oid(bytes.fromhex(path.read_text())), Kind.COMMIT)
        for path in (tmp_path / "heads").glob("*.head")
    ]
    assert len(heads) == 3
    store = open_store()
    assert verify(store, lambda: heads, walk).problems == []
    final = sweep(store, lambda: heads, walk, min_garbage=0.0)
    assert final.kept <= 3 * 14
    assert verify(open_store(), lambda: heads, walk).problems == []
