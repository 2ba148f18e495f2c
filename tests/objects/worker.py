"""A process for tests: commits toy graphs to a store, sweeps it, and says what is acknowledged.

Heads are files in a directory, replaced atomically inside writing(): what a catalog would do.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from ortet._util.codec import Hasher, decode, encode
from ortet._util.failpoints import failpoint
from ortet.backends.local.bucket import FileBucket
from ortet.errors import OrtetError
from ortet.ids import Oid, SystemClock, from_hex
from ortet.objects.base import Kind, ObjectRef
from ortet.objects.gc.sweep import sweep
from ortet.objects.gc.verify import verify
from ortet.objects.store import PackedObjectStore


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def open_store(root: Path, seal_at: int = 200_000) -> PackedObjectStore:
    return PackedObjectStore(
        root, FileBucket(root / "bucket"), hasher=Hasher(), clock=SystemClock(), seal_bytes=seal_at
    )


def walk(kind: Kind, data: bytes) -> Iterable[ObjectRef]:
    if kind in (Kind.BLOB, Kind.META):
        return []
    _, links = decode(tuple[str, list[tuple[int, bytes]]], data)
    return [ObjectRef(Oid(oid), Kind(number)) for number, oid in links]


def heads(base: Path) -> Iterator[ObjectRef]:
    for path in sorted((base / "heads").glob("*.head")):
        yield ObjectRef(from_hex(path.read_text()), Kind.COMMIT)


def make_commit(store: PackedObjectStore, label: str, blobs: list[bytes]) -> Oid:
    oids = [store.put(Kind.BLOB, blob) for blob in blobs]
    tree = store.put(Kind.TREE, encode((label, [(int(Kind.BLOB), oid) for oid in oids])))
    return store.put(Kind.COMMIT, encode((label, [(int(Kind.TREE), tree)])))


def move_head(base: Path, name: str, oid: Oid) -> None:
    part = base / "heads" / f"{name}.part"
    part.write_text(oid.hex())
    os.replace(part, base / "heads" / f"{name}.head")


def blob(number: int) -> bytes:
    return random.Random(number).randbytes(number % 9000 + 1)


def commits(base: Path, name: str, count: int) -> None:
    """Commit again and again; each head forgets the one before, blobs come back after a while."""
    store = open_store(base / "store")
    dice = random.Random(name)
    say("ready")
    for turn in range(count):
        wanted = [dice.randrange(200) * 37 for _ in range(12)]
        with store.writing():
            oid = make_commit(store, f"{name} {turn}", [blob(number) for number in wanted])
            store.flush()
            failpoint("toy.before-head")
            move_head(base, name, oid)
        say("commit", oid.hex())
        for number in wanted:
            data = blob(number)
            if store.get(store.hasher.oid(data)) != data:
                raise AssertionError(number)
    store.close()


def sweeps(base: Path, name: str, count: int) -> None:
    store = open_store(base / "store")
    say("ready")
    for _ in range(count):
        try:
            report = sweep(store, lambda: heads(base), walk, min_garbage=0.0)
            say("swept", report.removed)
        except OrtetError as error:
            if error.kind != "sweep_busy":
                raise
            say("busy")
    store.close()
    del name


def check(base: Path, name: str, count: int) -> None:
    """Verify beside others, again and again."""
    store = open_store(base / "store")
    say("ready")
    for _ in range(count):
        try:
            with store.writing():  # heads that are read here stay until the walk is over
                report = verify(store, lambda: heads(base), walk)
        except OrtetError as error:
            if error.kind != "sweep_busy":
                raise
            continue
        if report.problems:
            raise AssertionError(report.problems[:3])
        say("verified", report.objects)
    store.close()
    del name


def hold(base: Path, name: str, count: int) -> None:
    """Put objects, flush, then keep the tail until told to go on."""
    store = open_store(base / "store", seal_at=64 << 20)
    for turn in range(count):
        say("object", store.put(Kind.BLOB, f"{name} {turn}".encode()).hex())
    store.flush()
    say("held")
    sys.stdin.readline()
    store.close()


def fork(base: Path, name: str, count: int) -> None:
    """Parent and children go on with one handle, each with objects the parent had not flushed."""
    store = open_store(base / "store", seal_at=64 << 20)
    before = [store.put(Kind.BLOB, f"{name} before {turn}".encode()) for turn in range(count)]
    flushed = store.put(Kind.BLOB, f"{name} flushed".encode())
    store.flush()
    pending = store.put(Kind.BLOB, f"{name} pending".encode())
    child = os.fork()
    who = "child" if child == 0 else "parent"
    mine = store.put(Kind.BLOB, f"{name} {who}".encode())
    with store.writing():
        store.flush()
    for oid in [*before, flushed, pending, mine]:
        if store.hasher.oid(store.get(oid)) != oid:
            raise AssertionError(oid.hex())
        say("object", oid.hex())
    say("tail", who, *[tail.id for tail in store.pack_set.own_tails])
    if child == 0:
        store.close()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    after = store.put(Kind.BLOB, f"{name} after".encode())
    store.flush()
    say("object", after.hex())
    store.close()
    say("child", os.waitstatus_to_exitcode(status))


def fork_inside(base: Path, name: str, count: int) -> None:
    """A child that leaves writing() must not unlock it for its parent."""
    store = open_store(base / "store")
    other = open_store(base / "store")
    with store.writing():
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            try:
                with other.sweep_lock.exclusive(0.0):
                    say("unlocked")
            except OrtetError as error:
                say(error.kind)
    if child == 0:
        with store.writing():
            store.put(Kind.BLOB, b"child")
        store.close()
        os._exit(0)
    with other.sweep_lock.exclusive(0.0):
        say("free")
    store.close()
    del name, count


VERBS = {
    "fork_inside": fork_inside,
    "commits": commits,
    "sweeps": sweeps,
    "check": check,
    "hold": hold,
    "fork": fork,
}


def main() -> None:
    verb, base, name, count = sys.argv[1:5]
    (Path(base) / "heads").mkdir(exist_ok=True)
    VERBS[verb](Path(base), name, int(count))
    say("done")


if __name__ == "__main__":
    main()
