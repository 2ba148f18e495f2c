"""However a directory came to be, a scan with an index says what a scan without one says."""

from __future__ import annotations

import gc
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ortet._util.codec import Hasher, decode
from ortet.backends.local.memory import MemoryBucket
from ortet.errors import Invalid, NotFound
from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.machines.base import Loss
from ortet.machines.capture.frames import DirtyPaths
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import ScanResult, scan
from ortet.machines.capture.stat_index import RACY, StatIndex, marks_of
from ortet.machines.capture.walk import ScanWatcher
from ortet.objects.base import Kind
from ortet.objects.blobs import read_file
from ortet.objects.store import PackedObjectStore


class Counting(PackedObjectStore):
    """Counts the contents it is given: that many files were read."""

    blobs = 0

    def put(self, kind: Kind, data: bytes) -> Oid:
        self.blobs += kind == Kind.BLOB
        return super().put(kind, data)


class Eye:
    """Scans one directory again and again."""

    def __init__(self, root: Path, store: Path) -> None:
        self.root = root
        self.objects = Counting(store, MemoryBucket(), hasher=Hasher(), clock=SystemClock())
        self.trees = Trees(self.objects)
        self.index = StatIndex(self.trees)
        self.rules = IgnoreRules()
        self.losses: list[Loss] = []
        self.read = 0
        self.result: ScanResult

    def scan(
        self, dirty: dict[bytes, set[bytes] | None] | None = None, watch: ScanWatcher | None = None
    ) -> Image:
        self.losses = []
        before = self.objects.blobs
        self.result = scan(
            self.objects,
            self.trees,
            root=self.root,
            index=self.index,
            rules=self.rules,
            losses=self.losses,
            dirty=None if dirty is None else DirtyPaths(dirty),
            watch=watch,
        )
        self.read = self.objects.blobs - before
        return Image(self.result.root, self.result.links)

    def afresh(self) -> Image:
        """What is there, by a scan that knows nothing."""
        found = scan(
            self.objects,
            self.trees,
            root=self.root,
            index=StatIndex(self.trees),
            rules=IgnoreRules(),
            losses=[],
        )
        return Image(found.root, found.links)

    def reload(self, file: Path) -> None:
        self.index.save(file, Oid(b"\1" * 32))
        loaded = StatIndex.load(file, self.trees)
        assert loaded is not None
        self.index = loaded
        self.rules = IgnoreRules()

    def entry(self, path: bytes) -> TreeEntry | None:
        return self.trees.resolve(self.result.root, path)

    def content(self, path: bytes) -> bytes:
        entry = self.entry(path)
        assert entry is not None
        return b"".join(read_file(self.objects, entry))

    def paths(self) -> set[bytes]:
        return {path for path, _ in self.trees.walk(self.result.root)}

    def links(self) -> list[list[bytes]]:
        found = self.result.links
        return decode(list[list[bytes]], self.objects.get(Oid(found))) if found else []


@pytest.fixture
def eye(place: Path) -> Iterator[Eye]:
    root = place / "root"
    for directory in ("a/b/c", "d", "e"):
        (root / directory).mkdir(parents=True)
    for name in ("top", "a/one", "a/b/two", "a/b/c/three", "d/four"):
        (root / name).write_text(name)
    root.chmod(0o755)
    eye = Eye(root, place / "store")
    yield eye
    eye.objects.close()


class Hook:
    """A watcher that is told of every directory as it is entered, and does something then."""

    def __init__(self, at: bytes, act: Callable[[], object]) -> None:
        self.at, self.act, self.done = at, act, False

    def add(self, fd: int, path: bytes) -> None:
        if path == self.at and not self.done:
            self.done = True
            self.act()

    def add_file(self, fd: int, path: bytes, *, linked: bool) -> None: ...
    def remove(self, path: bytes) -> None: ...


@contextmanager
def nobody() -> Iterator[None]:
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_an_unchanged_directory_is_not_read_again(eye: Eye, place: Path) -> None:
    first = eye.scan()
    assert (eye.read, eye.result.changed, bool(eye.result.learned)) == (5, 5, True)
    assert eye.scan() == first
    assert (eye.read, eye.result.changed, bool(eye.result.learned)) == (0, 0, False)
    eye.reload(place / "index")
    assert eye.scan() == first
    assert (eye.read, eye.result.changed, bool(eye.result.learned)) == (0, 0, False)
    assert eye.scan({}) == first


def test_one_changed_file_is_read_alone(eye: Eye, place: Path) -> None:
    eye.scan()
    (eye.root / "a/b/two").write_text("changed")
    after = eye.scan()
    assert eye.read == 1
    assert after == eye.afresh()
    eye.reload(place / "index")
    (eye.root / "a/b/two").write_text("again")
    assert eye.scan() == eye.afresh()


def test_same_size_and_mtime_are_not_enough(eye: Eye) -> None:
    eye.scan()
    file = eye.root / "d" / "four"
    times = file.stat()
    file.write_text("FIVE/5")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size
    eye.scan()
    assert eye.content(b"d/four") == b"FIVE/5"


def test_a_scan_of_some_names_looks_only_at_those_names(eye: Eye) -> None:
    eye.scan()
    (eye.root / "a/one").write_text("seen")
    (eye.root / "d/four").write_text("not yet")
    (eye.root / "a/new").write_text("not listed")
    eye.scan({b"a": {b"one"}})
    assert eye.content(b"a/one") == b"seen"
    assert eye.content(b"d/four") == b"d/four"
    assert b"a/new" not in eye.paths() or eye.entry(b"a/new") is not None
    eye.scan({b"a": None, b"d": {b"four", b"no-such"}})
    assert eye.scan({}) == eye.afresh()


def test_a_moved_directory_is_not_read_again(eye: Eye) -> None:
    eye.scan()
    (eye.root / "a").rename(eye.root / "e" / "moved")
    after = eye.scan()
    assert eye.read == 0
    assert after == eye.afresh()
    (eye.root / "e" / "moved").rename(eye.root / "a")
    assert eye.scan({b"": {b"a"}, b"e": {b"moved"}}) == eye.afresh()


@pytest.mark.slow
def test_a_scan_sees_every_change_of_file_type(eye: Eye) -> None:
    place = eye.root / "d" / "thing"
    makers: dict[str, Callable[[], object]] = {
        "file": lambda: place.write_text("file"),
        "link": lambda: place.symlink_to("four"),
        "fifo": lambda: os.mkfifo(place),
        "dir": lambda: (place / "inner").mkdir(parents=True),
        "socket": lambda: os.mknod(place, stat.S_IFSOCK | 0o600),
    }
    eye.scan()
    for before in makers:
        for after in makers:
            for kind in (before, after):
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                else:
                    place.unlink(missing_ok=True)
                makers[kind]()
                assert eye.scan() == eye.afresh(), (before, after)
                assert eye.scan({b"d": {b"thing"}}) == eye.afresh(), (before, after)


def test_a_directory_swapped_for_a_link_does_not_lead_out(eye: Eye, place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "secret").write_text("not ours")

    def swap() -> None:
        (eye.root / "a").rename(place / "away")
        (eye.root / "a").symlink_to(outside)

    eye.scan(watch=Hook(b"", swap))
    # it was entered in another order, or captured as the link that it is by then
    link = eye.entry(b"a")
    assert link is not None and (link.is_link or link.is_dir)
    assert not any(b"secret" in path for path in eye.paths())
    assert not eye.objects.has(eye.objects.hasher.oid(b"not ours"))
    eye.scan()
    link = eye.entry(b"a")
    assert link is not None and link.data == os.fsencode(outside)


def test_a_directory_swapped_between_listing_and_entering(eye: Eye, place: Path) -> None:
    """Entering `e` or `d` or `a`, the others are listed already: swap them all."""
    outside = place / "outside"
    outside.mkdir()
    (outside / "secret").write_text("not ours")

    def swap(entered: str) -> None:
        for name in {"a", "d", "e"} - {entered}:
            if not (eye.root / name).is_symlink():
                (eye.root / name).rename(place / f"away-{name}")
                (eye.root / name).symlink_to(outside)

    for entered in (b"a", b"d", b"e"):
        eye.index = StatIndex(eye.trees)
        eye.scan(watch=Hook(entered, lambda entered=entered: swap(entered.decode())))  # type: ignore[misc]
        assert not any(b"secret" in path for path in eye.paths())
    assert not eye.objects.has(eye.objects.hasher.oid(b"not ours"))
    assert eye.scan() == eye.afresh()


def test_a_directory_deleted_during_the_scan_is_left_out_without_a_loss(eye: Eye) -> None:
    eye.scan()
    eye.index = StatIndex(eye.trees)

    def clear() -> None:
        for name in ("a", "d", "e"):
            shutil.rmtree(eye.root / name, ignore_errors=True)

    for at in (b"a", b"d", b"e"):
        eye.scan(watch=Hook(at, clear))
    assert eye.paths() == {b"top"}
    assert eye.losses == []


@pytest.mark.root
def test_a_file_we_may_not_read_keeps_its_last_state(eye: Eye, place: Path) -> None:
    for path in [eye.root, *eye.root.rglob("*"), place / "store", *(place / "store").rglob("*")]:
        os.chown(path, 65534, 65534)
    with nobody():
        before = eye.scan()
        (eye.root / "a/one").chmod(0)
        (eye.root / "a/new").write_text("new")
        (eye.root / "a/new").chmod(0)
        (eye.root / "d").chmod(0)
        (eye.root / "e").chmod(0o600)
        for _ in range(2):
            eye.scan()
            lost = {(loss.path, loss.what) for loss in eye.losses}
            assert {("a/one", "unreadable"), ("a/new", "unreadable"), ("d", "unreadable")} <= lost
            assert eye.content(b"a/one") == b"a/one"
            assert eye.entry(b"a/new") is None
            assert eye.content(b"d/four") == b"d/four"
        eye.reload(place / "index")
        eye.scan()
        assert {("a/one", "unreadable"), ("a/new", "unreadable"), ("d", "unreadable")} <= {
            (loss.path, loss.what) for loss in eye.losses
        }
        eye.scan({b"a/b": {b"two"}})
        assert len(eye.losses) >= 3, "a loss is told at every scan, also one that looks elsewhere"
        for name, mode in (("a/one", 0o644), ("a/new", 0o644), ("d", 0o755), ("e", 0o755)):
            (eye.root / name).chmod(mode)
        after = eye.scan()
        assert eye.losses == []
        assert after == eye.afresh() != before


@pytest.mark.root
def test_a_file_we_may_not_read_in_the_place_of_a_directory(eye: Eye, place: Path) -> None:
    for path in [eye.root, *eye.root.rglob("*"), place / "store", *(place / "store").rglob("*")]:
        os.chown(path, 65534, 65534)
    with nobody():
        eye.scan()
        shutil.rmtree(eye.root / "d")
        (eye.root / "d").write_text("closed")
        (eye.root / "d").chmod(0)
        eye.scan()
        assert [(loss.path, loss.what) for loss in eye.losses] == [("d", "unreadable")]
        (eye.root / "d").unlink()
        assert eye.scan() == eye.afresh()
        assert eye.losses == []


def test_a_tree_deeper_than_the_stack_and_the_descriptors_is_scanned(eye: Eye) -> None:
    """A comb: at each of 1 500 levels a directory beside the way down."""
    fd = os.open(eye.root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("down", dir_fd=fd)
        os.mkdir("beside", dir_fd=fd)
        inner = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    first = eye.scan()
    assert first == eye.scan() == eye.afresh()
    deepest = b"/".join([b"down"] * 1500)
    entry = eye.entry(deepest + b"/..") or eye.entry(deepest)
    assert entry is not None and entry.is_dir
    assert eye.scan({deepest: None}) == first


def test_many_files_are_read_by_threads(eye: Eye) -> None:
    for number in range(400):
        (eye.root / "e" / f"f{number}").write_bytes(os.urandom(number * 100))
    eye.scan()
    assert eye.result.changed == 405
    for number in range(0, 400, 37):
        expected = (eye.root / "e" / f"f{number}").read_bytes()
        assert eye.content(b"e/f%d" % number) == expected


def test_a_failure_in_a_reader_thread_fails_the_scan(
    eye: Eye, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        (eye.root / "e" / f"f{number}").write_text(str(number))

    def full(kind: Kind, data: bytes) -> Oid:
        raise OSError(28, "No space left on device")

    eye.scan()
    (eye.root / "top").write_text("changed")
    for number in range(400):
        (eye.root / "e" / f"f{number}").write_text(f"{number} changed")
    gc.collect()  # what earlier tests left open
    descriptors = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(eye.objects, "put", full)
        with pytest.raises(OSError, match="No space left"):
            eye.scan()
    assert set(os.listdir("/proc/self/fd")) - descriptors == set()
    assert eye.index.root.entry is None, "a half true index is worse than none"
    assert eye.scan() == eye.afresh()


def test_hardlinks_come_and_go(eye: Eye) -> None:
    eye.scan()
    os.link(eye.root / "a/one", eye.root / "d/uno")
    eye.scan({b"d": {b"uno"}})
    assert eye.links() == [[b"a/one", b"d/uno"]], "the other name had no event of its own"
    (eye.root / "d/uno").write_text("through one name")
    assert eye.scan({b"d": {b"uno"}}) == eye.afresh()
    assert eye.content(b"a/one") == b"through one name"
    os.link(eye.root / "d/uno", eye.root / "e/yksi")
    os.link(eye.root / "top", eye.root.parent / "outside")
    assert eye.scan() == eye.afresh()
    assert eye.links() == [[b"a/one", b"d/uno", b"e/yksi"]], "a name outside is no name of ours"
    (eye.root / "a").rename(eye.root / "z")
    assert eye.scan() == eye.afresh()
    assert eye.links() == [[b"d/uno", b"e/yksi", b"z/one"]]
    (eye.root / "e/yksi").unlink()
    (eye.root / "z/one").unlink()
    assert eye.scan({b"e": {b"yksi"}, b"z": {b"one"}}) == eye.afresh()
    assert eye.links() == []


def test_linked_symlinks_are_a_group(eye: Eye) -> None:
    (eye.root / "l").symlink_to("nowhere")
    os.link(eye.root / "l", eye.root / "a/l", follow_symlinks=False)
    eye.scan()
    assert eye.links() == [[b"a/l", b"l"]]


def test_ignore_rules_of_each_directory_apply_and_can_change(eye: Eye, place: Path) -> None:
    eye.scan()
    (eye.root / ".ortetignore").write_text("two\n*.tmp\n")
    (eye.root / "d" / ".ortetignore").write_text("!keep.tmp\nfour\n")
    for name in ("x.tmp", "d/keep.tmp", "d/drop.tmp", "a/b/c/y.tmp"):
        (eye.root / name).write_text("t")
    eye.scan()
    known = {b"a", b"a/b", b"a/b/c", b"a/b/c/three", b"a/one", b"d", b"d/.ortetignore"}
    assert eye.paths() == known | {b"d/keep.tmp", b".ortetignore", b"e", b"top"}
    eye.reload(place / "index")
    eye.scan()
    assert eye.paths() == known | {b"d/keep.tmp", b".ortetignore", b"e", b"top"}
    assert eye.rules.is_ignored(b"a/z.tmp", False), "a loaded index brings the rules back"
    (eye.root / "d" / ".ortetignore").unlink()
    eye.scan({b"d": {b".ortetignore"}})
    assert b"d/four" in eye.paths() and b"d/keep.tmp" not in eye.paths()
    (eye.root / ".ortetignore").write_text("e/\n")
    assert eye.scan({b"": {b".ortetignore"}}) == eye.scan() == eye.afresh()
    assert {b"a/b/two", b"x.tmp"} <= eye.paths() and b"e" not in eye.paths()


def test_a_file_over_the_size_limit_is_reported_by_every_scan(eye: Eye, place: Path) -> None:
    (eye.root / ".ortetignore").write_text("size > 100B\nsize > 1MB *.db\n")
    (eye.root / "a" / "big").write_bytes(b"x" * 101)
    (eye.root / "a" / "big.db").write_bytes(b"x" * 101)
    (eye.root / "a" / "fits").write_bytes(b"x" * 100)
    eye.scan()
    assert {b"a/big.db", b"a/fits"} <= eye.paths() and b"a/big" not in eye.paths()
    for _ in range(2):
        assert [(loss.path, loss.what) for loss in eye.losses] == [("a/big", "size")]
        eye.scan()
    eye.reload(place / "index")
    eye.scan()
    assert [loss.path for loss in eye.losses] == ["a/big"]
    (eye.root / "a" / "fits").write_bytes(b"x" * 200)
    eye.scan({b"a": {b"fits"}})
    assert [loss.path for loss in eye.losses] == ["a/big", "a/fits"]
    assert b"a/fits" not in eye.paths()
    (eye.root / ".ortetignore").unlink()
    assert eye.scan() == eye.afresh()
    assert eye.losses == []


def test_a_broken_rule_is_refused_and_named(eye: Eye) -> None:
    (eye.root / "d" / ".ortetignore").write_text("size > huge\n")
    with pytest.raises(Invalid) as caught:
        eye.scan()
    assert caught.value.kind == "bad_rule"
    assert "d/.ortetignore line 1" in caught.value.message


def test_the_pointer_and_stage_files_are_not_part_of_the_state(eye: Eye) -> None:
    before = eye.scan()
    times = eye.root.stat().st_mtime_ns
    (eye.root / ".ortet").write_text("pointer")
    (eye.root / ".ortet.stage.x").mkdir()
    (eye.root / ".ortet.stage.x" / "f").write_text("f")
    os.utime(eye.root, ns=(times, times))
    assert eye.scan() == before


def test_a_second_scan_of_the_torture_tree_reads_nothing(
    eye: Eye, torture: Callable[[Path], None], place: Path
) -> None:
    eye.root = place / "torture"
    torture(eye.root)
    first = eye.scan()
    assert eye.scan() == first == eye.afresh()
    eye.reload(place / "index")
    assert eye.scan() == first
    assert eye.read == 0


def test_the_root_may_be_reached_by_a_link(eye: Eye, place: Path) -> None:
    first = eye.scan()
    (place / "link").symlink_to(eye.root)
    eye.root = place / "link"
    assert eye.scan() == first


def test_a_replaced_root_directory_is_scanned_again(eye: Eye) -> None:
    eye.scan()
    eye.root.rename(eye.root.parent / "old")
    shutil.copytree(eye.root.parent / "old", eye.root, symlinks=True)
    assert eye.scan({}) == eye.afresh()


def test_a_scan_of_a_missing_root_or_a_file_is_refused(eye: Eye, place: Path) -> None:
    eye.root = place / "nowhere"
    with pytest.raises(NotFound) as missing:
        eye.scan()
    assert missing.value.kind == "no_directory"
    eye.root.write_text("a file")
    with pytest.raises(Invalid) as wrong:
        eye.scan()
    assert wrong.value.kind == "not_a_directory"


def test_times_that_do_not_fit_a_record_are_clamped_and_reported(eye: Eye, place: Path) -> None:
    """A file system such as tmpfs keeps any time; a record ends in the year 2554."""
    far = Path("/dev/shm") / place.name
    shutil.copytree(eye.root, far, symlinks=True)
    try:
        eye.root = far
        for number, name in enumerate(("top", "a/b", "a/b/two")):
            os.utime(far / name, (0, 10.0**11 * (number + 1)))
        os.utime(far / "d/four", ns=(0, -(10**19)))
        for _ in range(2):
            eye.scan()
            lost = {(loss.path, loss.what) for loss in eye.losses}
            assert lost == {(name, "time") for name in ("top", "a/b", "a/b/two", "d/four")}
            entries = [eye.entry(path) for path in (b"top", b"a/b", b"d/four")]
            assert [e.mtime for e in entries if e] == [2**64 - 1, 2**64 - 1, -(2**63)]
            eye.reload(place / "index")
        assert eye.scan() == eye.afresh()
        assert eye.read == 0
    finally:
        shutil.rmtree(far)


def test_times_of_a_mounted_file_system_are_not_trusted_as_those_of_the_root(
    tmp_path: Path,
) -> None:
    """The root gives each change a time of its own; what is mounted below may count in seconds."""
    root = tmp_path / "store"
    objects = Counting(root, MemoryBucket(), hasher=Hasher(), clock=SystemClock())
    index = StatIndex(Trees(objects))
    file = tmp_path / "file"
    file.write_text("x")
    st = file.stat()
    entry = TreeEntry(b"file", st.st_mode, st.st_mtime_ns, st.st_uid, st.st_gid)
    index.device, index.foreign_horizon = st.st_dev, st.st_ctime_ns
    assert not marks_of(index.stat_with_marks(st, entry)) & RACY
    index.device = st.st_dev + 1
    assert marks_of(index.stat_with_marks(st, entry)) & RACY
    index.foreign_horizon = st.st_ctime_ns + 1
    assert not marks_of(index.stat_with_marks(st, entry)) & RACY
    objects.close()
