"""The index trusts what it has seen, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from ortet.history.records import Image, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import (
    COARSE_NS,
    MAPPED,
    NOT_APPLIED,
    RACY,
    STAT,
    TICK_NS,
    DirectoryNode,
    StatIndex,
    StatRecord,
    ctime_granularity_ns,
    is_dir,
    is_linked,
    is_unchanged,
    keep_unapplied_metadata,
    marks_of,
    stat_record,
    with_mark,
)
from ortet.objects.store import PackedObjectStore

IMAGE = Oid(b"\x07" * 32)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "d" / "e").mkdir(parents=True)
    (root / "f").write_text("f")
    (root / "d" / "g").write_text("g")
    (root / "d" / "e" / "h\udcff").write_text("h")
    return root


class Setting:
    def __init__(self, root: Path, trees: Trees) -> None:
        self.root = root
        self.trees = trees
        self.index = StatIndex(trees)

    def scan(self) -> Image:
        assert isinstance(self.trees.objects, PackedObjectStore)
        found = scan(
            self.trees.objects,
            self.trees,
            root=self.root,
            index=self.index,
            rules=IgnoreRules(),
            losses=[],
        )
        return Image(found.root, found.links)

    def stat(self, path: bytes) -> os.stat_result:
        return os.lstat(os.fsencode(self.root) + b"/" + path)

    def lookup(self, path: bytes) -> TreeEntry | None:
        return self.index.lookup(path, self.stat(path))

    def known(self, path: bytes) -> TreeEntry:
        entry = self.lookup(path)
        assert entry is not None
        return entry

    def reload(self, file: Path) -> None:
        loaded = StatIndex.load(file, self.trees)
        assert loaded is not None
        self.index = loaded


@pytest.fixture
def setting(root: Path, shop: object) -> Setting:
    return Setting(root, shop.trees)  # type: ignore[attr-defined]


def test_lookup_returns_the_scanned_entry(setting: Setting) -> None:
    image = setting.scan()
    for path in (b"f", b"d", b"d/g", b"d/e", b"d/e/h\xff"):
        assert setting.lookup(path) == setting.trees.resolve(image.root, path)
    assert setting.lookup(b"") == image.root


def test_lookup_ignores_an_entry_with_another_stat(setting: Setting, root: Path) -> None:
    setting.scan()
    (root / "f").chmod(0o600)
    assert setting.lookup(b"f") is None
    assert setting.index.lookup(b"no/such", setting.stat(b"f")) is None
    assert setting.index.lookup(b"d/f", setting.stat(b"f")) is None


def test_a_recorded_file_is_known_and_reaches_the_tree(setting: Setting, root: Path) -> None:
    setting.scan()
    (root / "d" / "new").write_text("anything")
    entry = TreeEntry(b"new", 0o100644, 5, size=3, data=b"\x01" * 32)
    setting.index.record(b"d/new", setting.stat(b"d/new"), entry)
    assert setting.lookup(b"d/new") == entry
    image = setting.scan()
    found = setting.trees.resolve(image.root, b"d/new")
    assert found == entry, "what was recorded is believed, not read"


def test_recording_a_directory_records_its_tree(setting: Setting, root: Path) -> None:
    before = setting.scan()
    directory = setting.known(b"d")
    assert directory is not None
    (root / "d" / "x").write_text("x")
    leaf = TreeEntry(b"x", 0o100644, 5)
    tree = setting.trees.patch(Oid(directory.data), {b"x": leaf})
    target = msgspec.structs.replace(directory, data=tree.oid, cid=tree.cid, mtime=77)
    os.utime(root / "d", ns=(0, 77))
    setting.index.record(b"d/x", setting.stat(b"d/x"), leaf)
    setting.index.record(b"d", setting.stat(b"d"), target)
    after = setting.scan()
    assert setting.trees.resolve(after.root, b"d") == target
    assert after != before


def test_forgetting_a_name_removes_its_entry(setting: Setting, root: Path) -> None:
    setting.scan()
    (root / "d" / "g").unlink()
    setting.index.forget(b"d/g")
    setting.index.forget(b"no/such/thing")
    assert setting.index.lookup(b"d/g", setting.stat(b"f")) is None
    image = setting.scan()
    assert setting.trees.resolve(image.root, b"d/g") is None


def test_forgetting_a_directory_removes_all_entries_below(setting: Setting) -> None:
    setting.scan()
    setting.index.record(b"d/e/x", setting.stat(b"f"), TreeEntry(b"x", 0o100644, 1))
    setting.index.forget(b"d")
    assert setting.lookup(b"d") is None
    assert setting.lookup(b"d/e/h\xff") is None
    assert b"d/e" not in setting.index.pending
    image = setting.scan()
    assert setting.trees.resolve(image.root, b"d/e/h\xff") is not None, "it is still on disk"
    assert setting.trees.resolve(image.root, b"d/e/x") is None


def test_a_file_in_the_place_of_a_directory(setting: Setting, root: Path) -> None:
    setting.scan()
    (root / "d").rename(root.parent / "away")
    (root / "d").write_text("now a file")
    entry = TreeEntry(b"d", 0o100644, 1, size=10)
    setting.index.record(b"d", setting.stat(b"d"), entry)
    assert setting.lookup(b"d") == entry
    assert setting.index.find(b"d") is None


def test_a_loaded_index_has_the_entries_of_the_saved_index(
    setting: Setting, tmp_path: Path
) -> None:
    image = setting.scan()
    setting.index.record(b"later", setting.stat(b"f"), TreeEntry(b"later", 0o100600, 1))
    setting.index.save(tmp_path / "index", IMAGE)
    setting.reload(tmp_path / "index")
    assert setting.index.image == IMAGE
    for path in (b"f", b"d", b"d/g", b"d/e", b"d/e/h\xff"):
        assert setting.lookup(path) == setting.trees.resolve(image.root, path)
    assert list(setting.index.pending) == [b""]


def test_saving_an_unchanged_index_writes_the_same_bytes(setting: Setting, tmp_path: Path) -> None:
    setting.scan()
    setting.index.save(tmp_path / "one", IMAGE)
    setting.reload(tmp_path / "one")
    setting.index.save(tmp_path / "two", IMAGE)
    setting.scan()
    setting.index.save(tmp_path / "three", IMAGE)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()


def test_a_damaged_or_truncated_index_is_not_loaded(setting: Setting, tmp_path: Path) -> None:
    setting.scan()
    file = tmp_path / "index"
    setting.index.save(file, IMAGE)
    whole = file.read_bytes()
    for at in range(0, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert StatIndex.load(file, setting.trees) is None, at
    for size in (0, 3, 20, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert StatIndex.load(file, setting.trees) is None, size
    file.unlink()
    assert StatIndex.load(file, setting.trees) is None


def test_a_newer_version_is_left_alone(setting: Setting, tmp_path: Path) -> None:
    setting.scan()
    file = tmp_path / "index"
    setting.index.save(file, IMAGE)
    file.write_bytes(file.read_bytes().replace(b"index 1", b"index 2", 1))
    assert StatIndex.load(file, setting.trees) is None


def test_a_change_as_young_as_the_clock_is_not_trusted(setting: Setting, root: Path) -> None:
    """A later write could leave the very same stat: the index is told of one such here."""
    setting.index.horizon = setting.stat(b"f").st_ctime_ns
    setting.scan()
    assert setting.lookup(b"f") is None
    setting.index.horizon = setting.stat(b"f").st_ctime_ns + 10**12
    stale = setting.trees.resolve(setting.scan().root, b"f")
    assert stale is not None and setting.lookup(b"f") == stale
    (root / "f").write_text("F")
    setting.index.horizon = setting.stat(b"f").st_ctime_ns
    setting.index.record(b"f", setting.stat(b"f"), stale)
    fresh = setting.trees.resolve(setting.scan().root, b"f")
    assert fresh is not None and fresh.data != stale.data
    (root / "f").write_text("G")
    setting.index.horizon = 1 << 62
    setting.index.record(b"f", setting.stat(b"f"), stale)
    assert setting.trees.resolve(setting.scan().root, b"f") == stale, "the rule made the difference"


@pytest.mark.root
def test_owner_and_mode_that_could_not_be_applied_stay_in_the_state(
    setting: Setting, root: Path
) -> None:
    setting.scan()
    file = setting.known(b"d/g")
    meant = msgspec.structs.replace(file, uid=4242, gid=4343, mode=0o104755)
    setting.index.record(b"d/g", setting.stat(b"d/g"), meant)
    assert setting.lookup(b"d/g") == meant
    assert setting.trees.resolve(setting.scan().root, b"d/g") == meant
    (root / "d" / "g").write_text("changed in place")
    changed = setting.trees.resolve(setting.scan().root, b"d/g")
    assert changed is not None
    assert (changed.uid, changed.gid, changed.mode) == (4242, 4343, 0o104755)
    assert changed.data != meant.data and changed.mtime == setting.stat(b"d/g").st_mtime_ns
    os.chown(root / "d" / "g", 1, -1)
    moved = setting.trees.resolve(setting.scan().root, b"d/g")
    assert moved is not None and moved.uid == 1, "what the user changes is what the user means"


def test_a_directory_keeps_its_meant_owner_when_names_come(setting: Setting, root: Path) -> None:
    setting.scan()
    meant = msgspec.structs.replace(setting.known(b"d"), uid=4242)
    setting.index.record(b"d", setting.stat(b"d"), meant)
    (root / "d" / "more").write_text("more")
    found = setting.trees.resolve(setting.scan().root, b"d")
    assert found is not None and found.uid == 4242
    assert setting.trees.resolve(setting.scan().root, b"d/more") is not None


def test_a_device_that_could_not_be_created_stays_in_the_state(setting: Setting) -> None:
    """A device without the privilege to make it: the tree recorded for its directory holds it."""
    setting.scan()
    directory = setting.known(b"d")
    device = TreeEntry(b"null", 0o020666, 1, rdev=259)
    tree = setting.trees.patch(Oid(directory.data), {b"null": device})
    target = msgspec.structs.replace(directory, data=tree.oid, cid=tree.cid)
    setting.index.record(b"d", setting.stat(b"d"), target)
    assert setting.trees.resolve(setting.scan().root, b"d/null") == device


def test_marks_survive_saving(setting: Setting, tmp_path: Path, root: Path) -> None:
    setting.index.horizon = 0
    setting.scan()
    setting.index.horizon = 1 << 62
    meant = TreeEntry(b"g", 0o100600, 9, uid=5)
    setting.index.record(b"d/g", setting.stat(b"d/g"), meant)
    setting.index.mark_mapped(b"f", True)
    setting.index.losses[b"d/e"] = {}
    setting.index.save(tmp_path / "index", IMAGE)
    setting.reload(tmp_path / "index")
    node = setting.index.find(b"d")
    assert node is not None
    assert marks_of(node.stats["g"]) == NOT_APPLIED
    assert marks_of(setting.index.root.stats["f"]) & RACY
    assert setting.index.mapped == {b"f"}
    assert list(setting.index.losses) == [b"d/e"]


def test_probing_the_ctime_granularity_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    before = tmp_path.stat()
    assert ctime_granularity_ns(tmp_path) in (0, TICK_NS, COARSE_NS)
    after = tmp_path.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert os.listdir(tmp_path) == ["f"]


def test_granularity_is_zero_only_if_every_change_moves_the_ctime(tmp_path: Path) -> None:
    """Where it says 0, a thousand changes, each after a stat, have a thousand times."""
    file = tmp_path / "f"
    times = set()
    for number in range(1000):
        file.write_text(str(number))
        times.add(file.stat().st_ctime_ns)
    assert (ctime_granularity_ns(tmp_path) == 0) == (len(times) == 1000)


@pytest.mark.parametrize("place", ["/proc", "/no/such/place"])
def test_granularity_is_coarse_where_no_file_can_be_written(place: str) -> None:
    assert ctime_granularity_ns(Path(place)) == COARSE_NS


def test_a_file_system_with_whole_seconds_is_coarse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat

    def cut(fd: int) -> os.stat_result:
        st = real(fd)
        return os.stat_result(st[:10], {"st_ctime_ns": st.st_ctime_ns // 10**9 * 10**9})

    monkeypatch.setattr("ortet.machines.capture.stat_index.os.fstat", cut)
    assert ctime_granularity_ns(tmp_path) == COARSE_NS


def test_a_clock_that_ticks_needs_only_a_small_margin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstat
    first: list[int] = []

    def tick(fd: int) -> os.stat_result:
        st = real(fd)
        first.append(st.st_ctime_ns | 1)
        return os.stat_result(st[:10], {"st_ctime_ns": first[0]})

    monkeypatch.setattr("ortet.machines.capture.stat_index.os.fstat", tick)
    assert ctime_granularity_ns(tmp_path) == TICK_NS


FILE: StatRecord = (0o100644, 7, 1, 1, 0, 0, 5, -1, 2)


@pytest.mark.root
def test_every_metadata_change_changes_the_seen_stat(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("f")
    states = [stat_record(file.stat())]
    for change in (
        lambda: file.write_text("g"),
        lambda: file.chmod(0o600),
        lambda: os.utime(file, ns=(0, 1)),
        lambda: os.chown(file, 1, 2),
        lambda: os.link(file, tmp_path / "g"),
        lambda: os.setxattr(file, "user.x", b"1"),
    ):
        change()
        states.append(stat_record(file.stat()))
    assert len(set(states)) == len(states)


def test_a_marked_stat_is_compared_again_but_counts_as_unchanged(tmp_path: Path) -> None:
    st = tmp_path.stat()
    was = stat_record(st)
    assert is_unchanged(was, st) and marks_of(was) == 0
    odd = with_mark(was, NOT_APPLIED)
    assert odd != was and is_unchanged(odd, st) and marks_of(odd) == NOT_APPLIED
    racy = with_mark(odd, RACY)
    assert not is_unchanged(racy, st) and marks_of(racy) == NOT_APPLIED | RACY
    assert not is_unchanged((), st) and not is_unchanged(was, None)
    assert with_mark((), RACY) == ()


def test_is_linked_and_is_dir_read_the_packed_stat() -> None:
    linked = (*FILE[:3], 2, *FILE[4:])
    folder = (0o040755, *linked[1:])
    assert (is_linked(FILE), is_linked(linked), is_linked(folder)) == (False, True, False)
    assert (is_dir(FILE), is_dir(folder)) == (False, True)
    assert not is_linked(()) and not is_dir(())


def test_unapplied_metadata_is_kept_field_by_field() -> None:
    old = TreeEntry(b"x", 0o100755, 10, uid=1, gid=2)
    was: StatRecord = (0o100700, 0, 0, 1, 7, 8, 0, 11, 0, NOT_APPLIED)
    now = TreeEntry(b"x", 0o100700, 12, uid=7, gid=9)
    assert keep_unapplied_metadata(now, was, old) == TreeEntry(b"x", 0o100755, 12, uid=1, gid=9)
    assert keep_unapplied_metadata(now, was, None) == now
    link = TreeEntry(b"x", 0o120777, 12, uid=7)
    assert keep_unapplied_metadata(link, was, old) == link


def test_an_unpacked_directory_node_equals_the_packed_one() -> None:
    node = DirectoryNode()
    node.put("plain", FILE)
    node.put("raw\udcff", (*FILE, MAPPED))
    node.put("linked", (*FILE[:3], 3, *FILE[4:]))
    node.put("huge", (0o100644, 2**64 - 1, *FILE[2:]))
    again = DirectoryNode(node.pack())
    assert again.names() == ["plain", "raw\udcff", "linked", "huge"]
    assert again.linked == {"linked"}
    assert again.stats == node.stats
    assert again.linked == {"linked"}
    assert again.pack() == node.pack()


def test_times_of_another_millennium_are_packed_apart() -> None:
    node = DirectoryNode()
    node.put("now", FILE)
    node.put("far", (*FILE[:7], 10**20, FILE[8], NOT_APPLIED))
    node.put("early", (*FILE[:7], -(10**20), FILE[8]))
    again = DirectoryNode(node.pack())
    assert again.stats == node.stats


def test_changing_a_packed_node_unpacks_it() -> None:
    node = DirectoryNode(DirectoryNode().pack())
    assert node.names() == []
    node.put("a", FILE)
    assert node.packed is None
    assert node.pack().stats == STAT.pack(*FILE)
    node.drop("a")
    node.drop("never")
    assert node.pack().names == b""
