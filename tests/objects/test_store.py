"""The store as its callers see it: one handle, many handles, many processes, and full disks."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.fixtures import forked

from ortet.errors import Corrupt, Invalid, NotFound, Refused, Unavailable, Unsupported
from ortet.ids import Oid
from ortet.objects.base import Kind
from ortet.objects.pack import Pack
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]
WORKER = Path(__file__).parent / "worker.py"


def worker(verb: str, base: Path, name: str, count: int) -> subprocess.Popen[str]:
    return forked.Popen(
        [sys.executable, str(WORKER), verb, str(base), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def objects_of(lines: Sequence[str]) -> list[Oid]:
    return [Oid(bytes.fromhex(line.split()[1])) for line in lines if line.startswith("object ")]


def noise(count: int, seed: int = 1, size: int = 4000) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(dice.randrange(1, size)) for _ in range(count)]


def check(store: PackedObjectStore, contents: Sequence[bytes]) -> None:
    for data in contents:
        assert store.get(store.hasher.oid(data)) == data


def stored(root: Path) -> int:
    """Bytes in tails and packs; one that is being sealed right now may be both."""
    sizes: dict[int, int] = {}
    for place in (root / "local/tails", root / "bucket/packs"):
        for path in place.iterdir():
            with contextlib.suppress(FileNotFoundError):
                sizes[path.stat().st_ino] = path.stat().st_size
    return sum(sizes.values())


# one handle


def test_an_object_is_readable_before_flush_after_flush_and_after_sealing(open_store: Open) -> None:
    store = open_store(seal_bytes=50_000)
    contents = noise(200)
    for data in contents:
        oid = store.put(Kind.BLOB, data)
        assert store.has(oid)
        assert store.get(oid) == data
    store.flush()
    check(store, contents)
    store.writer.seal_now()
    check(store, contents)
    assert store.stats().packs >= 1
    assert store.stats().tails == 0
    assert dict(store.get_many(map(store.hasher.oid, contents))) == {
        store.hasher.oid(data): data for data in contents
    }


def test_the_same_bytes_are_stored_once(store: PackedObjectStore) -> None:
    for _ in range(3):
        assert store.put(Kind.BLOB, b"same") == store.put(Kind.TREE, b"same")
        store.flush()
    assert store.stats().objects == 1
    store.writer.seal_now()
    store.put(Kind.BLOB, b"same")
    store.flush()
    assert store.stats().objects == 1


def test_a_small_flush_is_one_frame(store: PackedObjectStore) -> None:
    for kind in Kind:
        store.put(kind, b"object of kind %d" % kind)
    store.flush()
    assert store.pack_set.own_tails[0].frames == 1


def test_a_large_flush_keeps_metadata_apart(open_store: Open, root: Path) -> None:
    store = open_store()
    for data in noise(400):
        store.put(Kind.BLOB, data)
        store.put(Kind.TREE, data[:50])
    store.flush()
    kinds: dict[int, set[int]] = {}
    for _, (_, offset, _, _, kind) in store.pack_set.own_tails[0].locations():
        kinds.setdefault(offset, set()).add(kind)
    assert len(kinds) >= 3
    assert all(len(found) == 1 for found in kinds.values())


def test_flush_without_objects_writes_no_tail(store: PackedObjectStore, root: Path) -> None:
    store.flush()
    store.flush(sync=False)
    assert list((root / "local/tails").iterdir()) == []


def test_missing_and_malformed_ids_are_refused(store: PackedObjectStore) -> None:
    with pytest.raises(NotFound) as caught:
        store.get(Oid(bytes(32)))
    assert caught.value.kind == "no_object"
    assert not store.has(Oid(bytes(32)))
    with pytest.raises(NotFound):
        list(store.get_many([Oid(bytes(32))]))
    for prefix in ("", "xyz", "a" * 65, "A-"):
        with pytest.raises(Invalid):
            store.find_by_prefix(prefix)


def test_find_returns_all_objects_with_a_hex_prefix(open_store: Open) -> None:
    store = open_store()
    kinds = [Kind.BLOB, Kind.TREE, Kind.COMMIT]
    put = {store.put(kinds[n % 3], b"%d" % n): kinds[n % 3] for n in range(300)}
    store.writer.seal_now()
    put |= {store.put(kinds[n % 3], b"%d" % n): kinds[n % 3] for n in range(300, 600)}
    store.flush()
    put |= {store.put(Kind.META, b"pending %d" % n): Kind.META for n in range(50)}
    for handle in (store, open_store()):
        known = put if handle is store else {o: k for o, k in put.items() if k != Kind.META}
        for digits in (1, 2, 3, 5, 64):
            for oid in list(known)[:40]:
                prefix = oid.hex()[:digits]
                want = sorted((o, k) for o, k in known.items() if o.hex().startswith(prefix))
                assert handle.find_by_prefix(prefix.upper() if digits == 5 else prefix) == want


def test_an_object_too_large_for_a_frame_is_refused(store: PackedObjectStore) -> None:
    with pytest.raises(Invalid) as caught:
        store.put(Kind.META, bytes((16 << 20) + 1))
    assert caught.value.kind == "object_too_large"
    store.flush()


@pytest.mark.parametrize("around", [0, 500_000])
def test_the_largest_object_is_stored_among_others(open_store: Open, around: int) -> None:
    store = open_store()
    contents = [*noise(around // 2000), bytes([1]) * (16 << 20), *noise(around // 2000, seed=2)]
    for kind in (Kind.BLOB, Kind.META):
        for data in contents:
            store.put(kind, data + bytes([kind])[: (16 << 20) - len(data)])
    store.flush()
    other = open_store()
    for kind in (Kind.BLOB, Kind.META):
        check(other, [data + bytes([kind])[: (16 << 20) - len(data)] for data in contents])


def test_the_empty_object_is_stored_and_read_back(store: PackedObjectStore) -> None:
    oid = store.put(Kind.BLOB, b"")
    store.flush()
    assert store.get(oid) == b""


def test_threads_put_and_read_together(open_store: Open) -> None:
    store = open_store(seal_bytes=300_000)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for data in noise(300, seed=number % 3):
                assert store.get(store.put(Kind.BLOB, data)) == data
            store.flush()
            check(store, noise(300, seed=number % 3))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    other = open_store()
    for seed in range(3):
        check(other, noise(300, seed=seed))


def test_get_many_gives_each_object_once(open_store: Open) -> None:
    store = open_store(seal_bytes=100_000)
    contents = noise(300)
    oids = [store.put(Kind.BLOB, data) for data in contents]
    store.flush()
    late = store.put(Kind.BLOB, b"not flushed")
    found = list(store.get_many([*oids, late, *oids]))
    assert len(found) == 301
    assert dict(found) == {store.hasher.oid(data): data for data in (*contents, b"not flushed")}


# opening


def test_objects_of_a_closed_handle_are_read_by_the_next_handle(open_store: Open) -> None:
    first = open_store()
    contents = noise(50)
    for data in contents:
        first.put(Kind.BLOB, data)
    first.close()
    check(open_store(), contents)


def test_close_flushes_pending_objects(open_store: Open) -> None:
    first = open_store()
    oid = first.put(Kind.BLOB, b"not flushed by hand")
    first.close()
    assert open_store().get(oid) == b"not flushed by hand"


def test_a_thousand_short_lived_writers_leave_one_tail(open_store: Open, root: Path) -> None:
    for turn in range(100):
        store = open_store()
        store.put(Kind.BLOB, b"turn %d" % turn)
        store.close()
    assert len(list((root / "local/tails").iterdir())) == 1
    check(open_store(), [b"turn %d" % turn for turn in range(100)])


def test_a_newer_frame_in_a_pack_is_unsupported(open_store: Open, root: Path) -> None:
    first = open_store()
    oid = first.put(Kind.BLOB, b"from the future")
    first.writer.seal_now()
    first.close()
    [pack] = (root / "bucket/packs").iterdir()
    with open(pack, "r+b") as file:
        file.seek(4)
        file.write(b"\2")
    with pytest.raises(Unsupported) as caught:
        open_store().get(oid)
    assert caught.value.kind == "newer_format"


# damage


def test_flipped_bits_are_never_returned(open_store: Open, root: Path) -> None:
    first = open_store()
    contents = noise(30, size=300)
    for data in contents[:15]:
        first.put(Kind.BLOB, data)
    first.writer.seal_now()
    for data in contents[15:]:
        first.put(Kind.BLOB, data)
    first.close()
    [pack] = (root / "bucket/packs").iterdir()
    [tail] = (root / "local/tails").iterdir()
    dice = random.Random(5)
    for path in (pack, tail):
        whole = path.read_bytes()
        for _ in range(40):
            broken = bytearray(whole)
            broken[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
            path.write_bytes(broken)
            for index in (root / "local/index").iterdir():
                index.unlink()
            store = open_store()
            for data in contents:
                with contextlib.suppress(Corrupt, NotFound, Unsupported):
                    assert store.get(store.hasher.oid(data)) == data
            store.close()
        path.write_bytes(whole)
    check(open_store(), contents)


def test_a_sound_copy_is_used_where_another_is_damaged(open_store: Open, root: Path) -> None:
    first, second = open_store(), open_store()
    for store in (first, second):  # neither knows of the other's tail when it puts
        store.put(Kind.BLOB, b"twice " * 100)
    for store in (first, second):
        store.flush()
        store.writer.seal_now()
    packs = sorted((root / "bucket/packs").iterdir())
    assert len(packs) == 2
    for pack in packs:
        whole = pack.read_bytes()
        pack.write_bytes(whole[:-3] + b"bad")
        assert open_store().get(first.hasher.oid(b"twice " * 100)) == b"twice " * 100
        pack.write_bytes(whole)


# several processes


def test_readers_see_what_other_processes_append(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    with worker("hold", tmp_path, "w", 20) as other:
        assert other.stdout is not None
        lines = [other.stdout.readline() for _ in range(21)]
        assert lines[-1] == "held\n"
        oids = objects_of(lines)
        assert all(store.has(oid) for oid in oids)
        assert store.get(oids[7]) == b"w 7"
        # its tail is held: ours is another
        mine = store.put(Kind.BLOB, b"mine")
        store.flush()
        assert store.stats().tails == 2
        other.communicate("go on\n")
    assert store.get(oids[8]) == b"w 8"
    assert store.get(mine) == b"mine"


def test_a_killed_writer_keeps_what_it_flushed(open_store: Open, tmp_path: Path) -> None:
    with worker("hold", tmp_path, "w", 20) as other:
        assert other.stdout is not None
        oids = objects_of([other.stdout.readline() for _ in range(21)])
        other.kill()
    store = open_store()
    new = store.put(Kind.BLOB, b"appended to the adopted tail")
    store.flush()
    assert store.stats().tails == 1
    assert len({store.get(oid) for oid in [*oids, new]}) == 21


def test_a_handle_survives_fork(open_store: Open, tmp_path: Path) -> None:
    with worker("fork", tmp_path, "f", 50) as other:
        said, _ = other.communicate()
    lines = said.splitlines()
    assert lines[-1] == "done"
    assert "child 0" in lines
    store = open_store()
    for oid in objects_of(lines):
        assert store.hasher.oid(store.get(oid)) == oid
    tails = {words[1]: words[2:] for words in map(str.split, lines) if words[0] == "tail"}
    assert len(tails["parent"]) == len(tails["child"]) == 1
    assert tails["parent"] != tails["child"]


def test_a_child_that_leaves_a_commit_does_not_unlock_it(tmp_path: Path) -> None:
    with worker("fork_inside", tmp_path, "f", 1) as other:
        said, _ = other.communicate()
    assert said.splitlines() == ["writer_busy", "free", "done"]


def test_an_object_of_another_writer_is_synced_with_ours(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = open_store(), open_store()
    oid = first.put(Kind.BLOB, b"written, not synced")
    first.flush(sync=False)
    assert second.has(oid)
    synced: list[int] = []
    real = os.fdatasync

    def count(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", count)
    second.flush()
    assert first.pack_set.own_tails[0].path.stat().st_ino in synced


# quotas and full disks


def test_a_put_beyond_the_quota_is_refused(open_store: Open, root: Path) -> None:
    store = open_store(quota=300_000, seal_bytes=60_000)
    put = 0
    with pytest.raises(Refused) as caught:
        for data in noise(1000, size=9000):
            store.put(Kind.BLOB, data)
            store.flush()
            put += 1
    assert caught.value.kind == "quota"
    assert put > 10
    store.writer.wait_for_seals()  # while one goes on, a tail and its pack are both there
    assert 250_000 < stored(root) <= 300_000
    check(store, noise(1000, size=9000)[:put])
    # a larger quota, and what was refused is written
    store.space._quota = 400_000
    store.flush()
    check(open_store(), noise(1000, size=9000)[: put + 1])


def test_an_abandoned_commit_does_not_fail_the_next_one(open_store: Open) -> None:
    store = open_store(quota=100_000)
    kept = store.put(Kind.BLOB, b"kept")
    store.flush()
    before = store.epoch
    with store.writing():
        large = store.put(Kind.BLOB, random.Random(1).randbytes(200_000))
        with pytest.raises(Refused):
            store.flush()
        with store.writing():  # nested: the outer commit may still need it
            store.abandon()
        assert store.has(large)
        store.abandon()
        assert not store.has(large)
    assert store.epoch != before
    with store.writing():
        small = store.put(Kind.BLOB, b"small")
        store.flush()
    other = open_store()
    assert (other.get(kept), other.get(small)) == (b"kept", b"small")


def test_the_quota_counts_other_writers(open_store: Open) -> None:
    first, second = open_store(quota=200_000), open_store()
    for data in noise(60, size=8000):
        second.put(Kind.BLOB, data)
    second.flush()
    first.put(Kind.BLOB, noise(1, seed=9)[0])
    with pytest.raises(Refused):
        first.flush()
    first.space._quota = None


def test_the_reserve_is_left_on_the_disk(open_store: Open, small_disk: Path) -> None:
    store = open_store(small_disk / "store", reserve=2 << 20)
    written = []
    with pytest.raises(Refused) as caught:
        for data in noise(1000, size=50_000):
            store.put(Kind.BLOB, data)
            store.flush()
            written.append(data)
    assert caught.value.kind == "disk_reserve"
    disk = os.statvfs(small_disk)
    assert disk.f_bavail * disk.f_frsize >= 2 << 20
    check(store, written)
    store.space._reserve = 0
    store.flush()


@pytest.mark.parametrize("batch", [1, 200])
def test_a_full_disk_loses_nothing(open_store: Open, small_disk: Path, batch: int) -> None:
    store = open_store(small_disk / "store", seal_bytes=800_000)
    contents = noise(4000, size=9000)
    flushed = 0
    with pytest.raises(Unavailable) as caught:
        for number, data in enumerate(contents):
            store.put(Kind.BLOB, data)
            if number % batch == 0:
                store.flush()
                flushed = number + 1
    assert caught.value.kind == "disk_full"
    last = number
    check(store, contents[: last + 1])
    check(open_store(small_disk / "store"), contents[:flushed])
    with contextlib.suppress(Unavailable):  # a seal that gave up may have left room
        store.flush()
    subprocess.run(["mount", "-o", "remount,size=32m", str(small_disk)], check=True)
    store.flush()
    check(open_store(small_disk / "store"), contents[: last + 1])


def test_a_failed_sync_is_tried_again(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    store.put(Kind.BLOB, b"first")
    store.flush()
    oid = store.put(Kind.BLOB, b"second")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(Unavailable) as caught:
        store.flush()
    assert caught.value.kind == "disk_full"
    monkeypatch.undo()
    assert store.get(oid) == b"second"
    store.flush()
    check(open_store(), [b"first", b"second"])


def test_opening_does_not_touch_the_memory_it_frees() -> None:
    """A command opens a store, and each attempt of a swarm does in a process of its own."""
    program = (
        "import resource, ortet.objects.store as o\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "before = faults(); o._raise_malloc_threshold()\n"
        "first = faults(); o._raise_malloc_threshold()\n"
        "print(first - before, faults() - first)\n"
    )
    said = forked.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert all(int(count) < 100 for count in said.stdout.split())


def filled(open_store: Open) -> list[bytes]:
    store = open_store(seal_bytes=600_000)
    dice = random.Random(4)
    contents = [dice.randbytes(dice.randrange(1, 20_000)) for _ in range(300)]
    for number, data in enumerate(contents):
        store.put(Kind.BLOB, data)
        if number % 20 == 0:
            store.flush()
    store.close()
    return contents


def test_each_frame_is_read_once_in_order(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = filled(open_store)
    store = open_store()
    oids = [store.hasher.oid(data) for data in contents]
    loads: list[tuple[str, int]] = []
    real = Pack.load

    def watched(self: Pack, offset: int) -> bytes:
        loads.append((self.id, offset))
        return real(self, offset)

    monkeypatch.setattr(Pack, "load", watched)
    random.Random(1).shuffle(oids)
    found = list(store.get_many(oids))
    assert dict(found) == {store.hasher.oid(data): data for data in contents}
    assert len(loads) == len(set(loads)) > 5
    spots = {oid: store.pack_set.find(oid) for oid, _ in found}
    order = [(spot[0].id, *spot[1:3]) for spot in spots.values() if spot is not None]
    assert order == sorted(order)


def test_a_reader_may_stop_early(open_store: Open) -> None:
    contents = filled(open_store)
    store = open_store()
    stream = store.get_many(store.hasher.oid(data) for data in contents)
    assert len([next(stream) for _ in range(3)]) == 3
    stream.close()  # type: ignore[attr-defined]
    assert store.get(store.hasher.oid(contents[0])) == contents[0]


def test_get_many_finds_objects_again_after_a_sweep_replaced_their_packs(
    open_store: Open, root: Path
) -> None:
    contents = filled(open_store)
    store = open_store()
    stream = store.get_many([store.hasher.oid(data) for data in contents])
    first = next(stream)
    # What a sweep does: the same objects in another pack, the old ones gone.
    other = open_store()
    tail = other.pack_set.new_tail()
    for data in contents:
        oid = other.hasher.oid(data)
        built = other.writer._build_compressed([(oid, 1, data)])
        tail.append(built, [(oid, 1, data)])
    old = list((root / "bucket/packs").iterdir())
    other.pack_set.seal(tail)
    for pack in old:
        pack.unlink()
    assert dict([first, *stream]) == {store.hasher.oid(data): data for data in contents}


def test_get_many_with_a_missing_object_raises_not_found(open_store: Open) -> None:
    contents = filled(open_store)
    store = open_store()
    oids = [store.hasher.oid(data) for data in contents]
    with pytest.raises(NotFound):
        list(store.get_many([*oids, store.hasher.oid(b"never put")]))
