"""Verify finds every kind of damage, says where, and goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from ortet._util.codec import Compressor, Hasher, encode
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind, ObjectRef, ReferenceParser
from ortet.objects.gc.verify import VerifyReport, verify
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]
Commit = Callable[[PackedObjectStore, str, Sequence[bytes]], Oid]


def noise(seed: int, count: int = 10) -> list[bytes]:
    dice = random.Random(seed)
    return [dice.randbytes(dice.randrange(100, 2000)) for _ in range(count)]


def checked(store: PackedObjectStore, walk: ReferenceParser, *oids: Oid) -> VerifyReport:
    return verify(store, lambda: [ObjectRef(oid, Kind.COMMIT) for oid in oids], walk)


def filled(open_store: Open, commit: Commit) -> list[Oid]:
    """Three commits: in two packs and a tail."""
    store = open_store()
    oids = []
    for number in range(3):
        store.writer.seal_now()
        oids.append(commit(store, f"c{number}", noise(number)))
    store.close()
    return oids


def test_verify_of_a_sound_store_reports_no_problems(
    open_store: Open, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    seen: list[tuple[int, int]] = []
    report = verify(
        open_store(),
        lambda: [ObjectRef(oid, Kind.COMMIT) for oid in oids],
        walk,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert report.problems == []
    assert (report.objects, report.commits) == (36, 3)
    assert report.bytes > sum(len(data) for number in range(3) for data in noise(number))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


def test_verify_of_an_empty_store_reports_no_problems(
    store: PackedObjectStore, walk: ReferenceParser
) -> None:
    assert checked(store, walk).problems == []


def test_verify_accepts_objects_that_are_not_flushed(
    store: PackedObjectStore, walk: ReferenceParser
) -> None:
    blob = store.put(Kind.BLOB, b"pending")
    tree = store.put(Kind.COMMIT, encode(("c", [(int(Kind.BLOB), blob)])))
    assert checked(store, walk, tree).problems == []


def test_every_flipped_bit_in_packs_and_tails_is_found(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    dice = random.Random(8)
    for path in [*(root / "bucket/packs").iterdir(), *(root / "local/tails").iterdir()]:
        whole = path.read_bytes()
        for _ in range(25):
            at = dice.randrange(len(whole))
            broken = bytearray(whole)
            broken[at] ^= 1 << dice.randrange(8)
            path.write_bytes(broken)
            for index in (root / "local/index").iterdir():
                index.unlink()
            store = open_store()
            assert checked(store, walk, *oids).problems, (path, at)
            store.close()
        path.write_bytes(whole)
    assert checked(open_store(), walk, *oids).problems == []


def test_a_flipped_bit_in_an_index_is_found_and_mended(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    path = next((root / "local/index").iterdir())
    whole = path.read_bytes()
    for at in (0, 30, 2000, len(whole) - 5):
        broken = bytearray(whole)
        broken[at] ^= 4
        path.write_bytes(broken)
        store = open_store()
        [problem] = checked(store, walk, *oids).problems
        assert problem.where == f"index {path.stem}"
        assert path.read_bytes() == whole
        assert checked(store, walk, *oids).problems == []


def test_a_missing_index_is_no_problem(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    for path in (root / "local/index").iterdir():
        path.unlink()
    assert checked(open_store(), walk, *oids).problems == []


def test_missing_objects_are_all_named(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    sorted((root / "bucket/packs").iterdir())[0].unlink()
    report = checked(open_store(), walk, *oids)
    assert [problem.oid for problem in report.problems] == [oids[0].hex()]
    store = open_store()
    tree = store.put(Kind.TREE, encode(("t", [(1, bytes([n] * 32)) for n in range(5)])))
    top = store.put(Kind.COMMIT, encode(("c", [(int(Kind.TREE), tree)])))
    store.flush()
    report = checked(store, walk, top)
    assert [problem.oid for problem in report.problems] == [bytes([n] * 32).hex() for n in range(5)]
    assert all(tree.hex() in problem.where for problem in report.problems)


def test_verify_reports_an_object_of_the_wrong_kind(
    store: PackedObjectStore, walk: ReferenceParser
) -> None:
    blob = store.put(Kind.BLOB, b"not a tree at all")
    top = store.put(Kind.COMMIT, encode(("c", [(int(Kind.TREE), blob)])))
    store.flush()
    [problem] = checked(store, walk, top).problems
    assert problem.oid == blob.hex()


def test_verify_reports_a_wrong_hash_behind_right_checksums(
    open_store: Open, root: Path, walk: ReferenceParser
) -> None:
    store = open_store()
    store.put(Kind.BLOB, b"sound")
    store.writer.seal_now()
    liar = Hasher().oid(b"what it claims to be")
    data = frame.build([(liar, 1, b"what it is")], bytes(8), Compressor())
    store.bucket.put("packs/forged.pack", data)
    [problem] = checked(store, walk).problems
    assert (problem.oid, problem.where) == (liar.hex(), "pack forged")


def test_frames_of_another_key_are_found(open_store: Open, walk: ReferenceParser) -> None:
    store = open_store()
    data = frame.build([(Oid(bytes(32)), 1, b"theirs")], b"another!", Compressor())
    store.bucket.put("packs/theirs.pack", data)
    [problem] = checked(store, walk).problems
    assert "another key" in problem.what


def test_a_torn_end_of_a_tail_is_no_problem(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    [tail] = (root / "local/tails").iterdir()
    whole = tail.read_bytes()
    coming = frame.build([(Oid(bytes(32)), 1, b"coming " * 50)], bytes(8), Compressor())
    for room in (0, 3000):
        for cut in range(0, len(coming), 13):
            tail.write_bytes(whole + coming[:cut] + bytes(room))
            store = open_store()
            assert checked(store, walk, *oids).problems == [], (room, cut)
            store.close()


def test_damage_does_not_hide_more_damage(
    open_store: Open, root: Path, walk: ReferenceParser, commit: Commit
) -> None:
    oids = filled(open_store, commit)
    for path in (root / "bucket/packs").iterdir():
        whole = bytearray(path.read_bytes())
        whole[len(whole) // 2] ^= 1
        path.write_bytes(whole)
    report = checked(open_store(), walk, *oids)
    assert len({problem.where for problem in report.problems if "pack" in problem.where}) == 2
