"""Bundles: there and back, interrupted and continued, and every way to be wrong."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.fixtures import forked

from ortet._util.codec import Compressor, Hasher, checksum, encode
from ortet.backends.local.memory import MemoryBucket
from ortet.errors import (
    Conflict,
    Corrupt,
    Invalid,
    NotFound,
    OrtetError,
    Refused,
    Unavailable,
    Unsupported,
)
from ortet.history.records import BLOCK_BYTES, Commit, Image, State, TreeEntry, TreePage
from ortet.history.references import references, walk_postorder
from ortet.history.transfer import bundle, bundle_file
from ortet.history.transfer.bundle_file import BundleLimits
from ortet.history.tree.tree import Trees
from ortet.ids import Oid, SystemClock
from ortet.objects import frame
from ortet.objects.base import Kind, ObjectRef, ObjectStore
from ortet.objects.blobs import put_bytes
from ortet.objects.store import PackedObjectStore

FILE, DIRECTORY = 0o100644, 0o040755

KILLED = """
import sys
from pathlib import Path
from ortet.backends.local.bucket import FileBucket
from ortet._util.codec import Hasher
from ortet.history.transfer import bundle
from ortet.history.references import references
from ortet.ids import SystemClock, from_hex
from ortet.objects.store import PackedObjectStore
verb, store, path, oid = sys.argv[1:]
objects = PackedObjectStore(
    Path(store), FileBucket(Path(store) / "bucket"), hasher=Hasher(), clock=SystemClock()
)
if verb == "export":
    bundle.export_bundle(objects, {"main": from_hex(oid)}, references, Path(path))
else:
    bundle.import_bundle(objects, Path(path), references)
    objects.flush()
"""


class Shelf(ObjectStore):
    """Objects in a dict, with their kinds."""

    def __init__(self, key: bytes | None = None) -> None:
        self.hasher = Hasher(key)
        self.held: dict[Oid, tuple[Kind, bytes]] = {}
        self.puts = 0

    def put(self, kind: Kind, data: bytes) -> Oid:
        oid = self.hasher.oid(data)
        self.held[oid] = (kind, data)
        self.puts += 1
        return oid

    def get(self, oid: Oid) -> bytes:
        if oid not in self.held:
            raise NotFound("no_object", "it is not in the dict")
        return self.held[oid][1]

    def has(self, oid: Oid) -> bool:
        return oid in self.held


def file_entry(objects: ObjectStore, name: bytes, data: bytes) -> TreeEntry:
    return TreeEntry(name, FILE, 1, size=len(data), data=put_bytes(objects, data))


def commit_tree(objects: ObjectStore, root: Oid, *parents: Oid, cid: bytes = bytes(32)) -> Oid:
    image = Image(TreeEntry(b"", DIRECTORY, 1, data=root, cid=cid))
    state = State(machine=objects.put(Kind.IMAGE, encode(image)))
    state_oid = objects.put(Kind.STATE, encode(state))
    commit = Commit(state_oid, list(parents), "message", 1, "ann")
    return objects.put(Kind.COMMIT, encode(commit))


def commit_files(objects: ObjectStore, files: dict[bytes, bytes], *parents: Oid) -> Oid:
    entries = [file_entry(objects, name, data) for name, data in files.items()]
    tree = Trees(objects).build(entries)
    return commit_tree(objects, tree.oid, *parents, cid=tree.cid)


def sample(objects: ObjectStore) -> Oid:
    """Two commits with small and large files that do not compress: four frames of them."""
    noise = Random(7)
    first = {b"%04d" % n: noise.randbytes(6000) for n in range(200)}
    first[b"large"] = noise.randbytes(3 * BLOCK_BYTES + 5)
    first[b"empty"] = b""
    one = commit_files(objects, first)
    return commit_files(objects, {**first, b"0007": b"changed"}, one)


Frames = Sequence[Sequence[tuple[Oid, int, bytes]]]


def write(path: Path, refs: dict[str, Oid], frames: Frames, *, key_id: bytes = bytes(8)) -> Path:
    """A bundle with right checksums, whatever is in it."""
    head = bundle_file.build_header(key_id, refs)
    built = [frame.build(items, key_id, Compressor()) for items in frames]
    raw = sum(len(data) for items in frames for _, _, data in items)
    headers = [data[: frame.HEADER_BYTES] for data in built]
    count = sum(len(items) for items in frames)
    path.write_bytes(head + b"".join(built) + bundle_file.build_trailer(count, raw, head, headers))
    return path


def items(objects: Shelf) -> list[tuple[Oid, int, bytes]]:
    return [(oid, kind, data) for oid, (kind, data) in objects.held.items()]


def refused(path: Path, *, limits: BundleLimits | None = None) -> OrtetError:
    """How an import fails; it must, and must have put nothing."""
    target = Shelf()
    with pytest.raises(OrtetError) as caught:
        bundle.import_bundle(target, path, references, limits=limits)
    assert target.held == {}
    return caught.value


@pytest.fixture
def source() -> Shelf:
    return Shelf()


@pytest.fixture
def small(source: Shelf, tmp_path: Path) -> Path:
    """A bundle of one small commit."""
    path = tmp_path / "small.bundle"
    oid = commit_files(source, {b"a": b"first", b"b": b"second"})
    bundle.export_bundle(source, {"main": oid}, references, path)
    return path


def local(path: Path) -> PackedObjectStore:
    return PackedObjectStore(path, MemoryBucket(), hasher=Hasher(), clock=SystemClock())


# there and back


def test_an_exported_bundle_imports_all_objects_and_refs(source: Shelf, tmp_path: Path) -> None:
    oid, path = sample(source), tmp_path / "b"
    report = bundle.export_bundle(source, {"main": oid, "tag/x": oid}, references, path)
    assert report.objects == len(source.held)
    assert report.size == path.stat().st_size
    assert report.refs == {"main": oid.hex(), "tag/x": oid.hex()}
    assert report.resumed == 0
    assert os.listdir(tmp_path) == ["b"]
    target = Shelf()
    assert bundle.import_bundle(target, path, references).refs == {"main": oid, "tag/x": oid}
    assert target.held == source.held


def test_a_bundle_copies_a_commit_between_local_stores(tmp_path: Path) -> None:
    source, target = local(tmp_path / "one"), local(tmp_path / "two")
    oid, path = sample(source), tmp_path / "b"
    source.flush()
    bundle.export_bundle(source, {"main": oid}, references, path)
    bundle.import_bundle(target, path, references)
    target.flush()
    for link, _ in walk_postorder(
        [ObjectRef(oid, Kind.COMMIT)], lambda link: references(link.kind, source.get(link.oid))
    ):
        assert target.get(link.oid) == source.get(link.oid)
    source.close()
    target.close()


def test_export_writes_only_objects_reachable_from_the_refs(source: Shelf, tmp_path: Path) -> None:
    commit_files(source, {b"other": b"unrelated"})
    oid = commit_files(source, {b"a": b"wanted"})
    report = bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    target = Shelf()
    bundle.import_bundle(target, tmp_path / "b", references)
    assert len(target.held) == report.objects == 5
    assert b"unrelated" not in [data for _, data in target.held.values()]


def test_import_puts_only_missing_objects(source: Shelf, small: Path) -> None:
    target = Shelf()
    for oid, (kind, data) in list(source.held.items())[:2]:
        assert target.put(kind, data) == oid
    bundle.import_bundle(target, small, references)
    assert target.puts == len(source.held)
    bundle.import_bundle(target, small, references)
    assert target.puts == len(source.held)


def test_import_puts_referenced_objects_before_their_parents(source: Shelf, tmp_path: Path) -> None:
    bundle.export_bundle(source, {"main": sample(source)}, references, tmp_path / "b")
    target = Shelf()
    bundle.import_bundle(target, tmp_path / "b", references)
    seen: set[Oid] = set()
    for oid, (kind, data) in target.held.items():
        assert {link.oid for link in references(kind, data)} <= seen
        seen.add(oid)


def test_an_object_that_is_both_blob_and_tree_is_imported(source: Shelf, tmp_path: Path) -> None:
    tree = Trees(source).build([file_entry(source, b"inner", b"x")])
    page = source.get(tree.oid)
    entries = [
        file_entry(source, b"a", page),
        TreeEntry(b"b", DIRECTORY, 1, data=tree.oid, cid=tree.cid),
    ]
    outer = Trees(source).build(entries)
    oid = commit_tree(source, outer.oid)
    bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    target = Shelf()
    bundle.import_bundle(target, tmp_path / "b", references)
    assert target.held.keys() == source.held.keys()


def test_deep_histories_and_directories_are_exported_and_imported(
    source: Shelf, tmp_path: Path
) -> None:
    tree = Trees(source).build([])
    for _ in range(2000):
        below = TreeEntry(b"d", DIRECTORY, 1, data=tree.oid, cid=tree.cid)
        tree = Trees(source).build([below])
    oid = commit_tree(source, tree.oid)
    for _ in range(2000):
        oid = commit_tree(source, tree.oid, oid)
    report = bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    target = Shelf()
    bundle.import_bundle(target, tmp_path / "b", references)
    assert len(target.held) == report.objects > 4000


def test_export_and_import_progress_reach_their_total(source: Shelf, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    bundle.export_bundle(
        source, {"main": sample(source)}, references, tmp_path / "b", progress=progress
    )
    assert seen == [(n, len(source.held)) for n in range(1, len(source.held) + 1)]
    seen.clear()
    bundle.import_bundle(Shelf(), tmp_path / "b", references, progress=progress)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert 0.9 < seen[-1][0] / seen[-1][1] <= 1


def test_names_no_branch_could_have_are_replaced(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b""})
    names = {"main~2": oid, "HEAD": oid, oid.hex(): oid, "fine": oid}
    bundle.export_bundle(source, names, references, tmp_path / "b")
    found = bundle.import_bundle(Shelf(), tmp_path / "b", references)
    assert found.refs == {"fine": oid, f"bundle-{oid.hex()[:12]}": oid}


def test_a_bundle_replaces_a_bundle_and_nothing_else(source: Shelf, small: Path) -> None:
    oid = commit_files(source, {b"a": b"other"})
    bundle.export_bundle(source, {"other": oid}, references, small)
    assert bundle.import_bundle(Shelf(), small, references).refs == {"other": oid}
    small.write_bytes(b"my notes")
    (small.parent / "directory").mkdir()
    for path in (small, small.parent / "directory"):
        with pytest.raises(Conflict) as caught:
            bundle.export_bundle(source, {"other": oid}, references, path)
        assert caught.value.kind == "exists"
    assert small.read_bytes() == b"my notes"


def test_a_bundle_needs_a_commit(source: Shelf, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        bundle.export_bundle(source, {}, references, tmp_path / "b")
    assert caught.value.kind == "no_refs"


def test_damage_in_the_store_is_not_exported(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b"first"})
    blob = source.hasher.oid(b"first")
    source.held[blob] = (Kind.BLOB, b"worse")
    with pytest.raises(Corrupt) as caught:
        bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    assert caught.value.kind == "bad_hash"
    del source.held[blob]
    with pytest.raises(NotFound):
        bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    assert not (tmp_path / "b").exists()


# interrupted and continued


def exported(source: ObjectStore, oid: Oid, path: Path) -> bundle.BundleReport:
    report = bundle.export_bundle(source, {"main": oid}, references, path)
    target = Shelf()
    assert bundle.import_bundle(target, path, references).refs == {"main": oid}
    assert not path.with_name(path.name + ".part").exists()
    return report


def cut_in_a_frame(part: Path, whole: bytes, middle: int) -> None:
    part.write_bytes(whole[: middle + 1000])


def damage_a_payload(part: Path, whole: bytes, middle: int) -> None:
    part.write_bytes(whole[: middle - 1] + bytes([whole[middle - 1] ^ 1]))


def keep_the_end(part: Path, whole: bytes, middle: int) -> None:
    part.write_bytes(whole)


def zeros_behind(part: Path, whole: bytes, middle: int) -> None:
    part.write_bytes(whole[:middle] + bytes(5000))


def another_header(part: Path, whole: bytes, middle: int) -> None:
    head = bundle_file.build_header(bytes(8), {"other": Oid(bytes(32))})
    part.write_bytes(head + whole[middle:])


def nothing_of_use(part: Path, whole: bytes, middle: int) -> None:
    part.write_bytes(b"nothing of use" * 9000)


@pytest.mark.parametrize(
    ("spoil", "kept"),
    [
        (cut_in_a_frame, 2),
        (damage_a_payload, 1),
        (keep_the_end, None),
        (zeros_behind, 2),
        (another_header, 0),
        (nothing_of_use, 0),
    ],
)
def test_export_goes_on_behind_the_last_whole_frame(
    source: Shelf, tmp_path: Path, spoil: Callable[[Path, bytes, int], None], kept: int | None
) -> None:
    path = tmp_path / "b"
    oid = sample(source)
    exported(source, oid, path)
    with bundle_file.BundleFile(path, BundleLimits()) as file:
        leads = file.frames
    assert len(leads) > 2
    whole = path.read_bytes()
    path.unlink()
    spoil(tmp_path / "b.part", whole, leads[2].offset)
    report = exported(source, oid, path)
    assert report.resumed == sum(lead.header.count for lead in leads[:kept])
    assert path.read_bytes() == whole


def killed(verb: str, store: Path, path: Path, oid: Oid, fault: str) -> None:
    command = [sys.executable, "-c", KILLED, verb, str(store), str(path), oid.hex()]
    done = forked.run(command, env={**os.environ, "ORTET_FAULT": fault}, check=False)
    assert done.returncode == -9


@pytest.mark.parametrize("fault", ["export.after-frame:kill:2", "export.before-rename:kill"])
def test_a_killed_export_is_resumed(tmp_path: Path, fault: str) -> None:
    source = local(tmp_path / "one")
    oid = sample(source)
    source.flush()
    killed("export", tmp_path / "one", tmp_path / "b", oid, fault)
    assert not (tmp_path / "b").exists()
    assert exported(source, oid, tmp_path / "b").resumed > 0
    source.close()


def test_a_killed_import_can_be_repeated(source: Shelf, tmp_path: Path) -> None:
    oid = sample(source)
    bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    killed("import", tmp_path / "two", tmp_path / "b", oid, "import.after-frame:kill:2")
    target = local(tmp_path / "two")
    assert bundle.import_bundle(target, tmp_path / "b", references).refs == {"main": oid}
    for held in source.held:
        assert target.get(held) == source.get(held)
    target.close()


def test_a_second_export_to_the_same_file_is_refused(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b""})
    with open(tmp_path / "b.part", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Unavailable) as caught:
            bundle.export_bundle(source, {"main": oid}, references, tmp_path / "b")
    assert caught.value.kind == "export_busy"


@pytest.mark.root
@pytest.mark.disk("600k")
def test_export_to_a_full_disk_goes_on_when_there_is_room(source: Shelf, small_disk: Path) -> None:
    oid = sample(source)
    with pytest.raises(Unavailable) as caught:
        bundle.export_bundle(source, {"main": oid}, references, small_disk / "b")
    assert caught.value.kind == "disk_full"
    assert os.listdir(small_disk) == ["b.part"]
    subprocess.run(["mount", "-o", "remount,size=8m", small_disk], check=True)
    assert exported(source, oid, small_disk / "b").resumed > 0


# wrong


def test_a_file_that_is_not_a_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "garbage").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("empty", "garbage", "directory", "fifo"):
        assert refused(tmp_path / name).kind == "not_a_bundle"
    error = refused(tmp_path / "absent")
    assert isinstance(error, NotFound)


def test_every_truncation_is_found(small: Path) -> None:
    whole = small.read_bytes()
    for size in range(len(whole)):
        small.write_bytes(whole[:size])
        error = refused(small)
        assert isinstance(error, Corrupt | Invalid), size
    assert refused(small).kind == "bundle_truncated"
    small.write_bytes(whole + b"\0")
    assert refused(small).kind == "bundle_truncated"


def test_every_changed_byte_is_found(small: Path) -> None:
    whole = small.read_bytes()
    for at in range(len(whole)):
        small.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        error = refused(small)
        assert isinstance(error, Corrupt | Invalid | Unsupported), at
        assert str(small) in error.message


def test_a_bundle_of_a_newer_format_is_refused(small: Path) -> None:
    whole = bytearray(small.read_bytes())
    whole[8] = bundle_file.VERSION + 1
    small.write_bytes(whole)
    error = refused(small)
    assert isinstance(error, Unsupported)
    assert error.kind == "newer_format"
    assert "upgrade" in error.message


def test_a_bundle_of_another_key_is_refused(small: Path) -> None:
    target = Shelf(key=b"k" * 32)
    with pytest.raises(Unsupported) as caught:
        bundle.import_bundle(target, small, references)
    assert caught.value.kind == "other_key"
    assert target.held == {}


def test_a_frame_under_another_key_is_refused(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b"first"})
    path = write(tmp_path / "b", {"main": oid}, [items(source)])
    whole = path.read_bytes()
    other = frame.build(items(source), b"otherkey", Compressor())
    head = bundle_file.build_header(bytes(8), {"main": oid})
    raw = sum(len(data) for _, data in source.held.values())
    end = bundle_file.build_trailer(len(source.held), raw, head, [other[: frame.HEADER_BYTES]])
    path.write_bytes(head + other + end)
    assert "another key" in refused(path).message
    path.write_bytes(whole)
    bundle.import_bundle(Shelf(), path, references)


def test_an_object_with_a_wrong_hash_is_refused(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b"first"})
    lying = [
        (held, kind, b"FIRST" if data == b"first" else data) for held, kind, data in items(source)
    ]
    error = refused(write(tmp_path / "b", {"main": oid}, [lying]))
    assert error.kind == "bad_bundle"
    assert "hash" in error.message


def test_a_bundle_with_a_missing_object_is_refused(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b"first"}, commit_files(source, {b"a": b"parent"}))
    for left_out in source.held:
        rest = [item for item in items(source) if item[0] != left_out]
        error = refused(write(tmp_path / "b", {"main": oid}, [rest]))
        assert error.kind == "bad_bundle"
        assert f"{left_out.hex()} is missing" in error.message


def test_a_bundle_with_unreachable_objects_is_refused(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b"first"})
    source.put(Kind.BLOB, b"stray")
    assert "no commit" in refused(write(tmp_path / "b", {"main": oid}, [items(source)])).message


def test_a_bundle_with_a_duplicate_object_is_refused(source: Shelf, tmp_path: Path) -> None:
    oid = commit_files(source, {b"a": b"first"})
    path = write(tmp_path / "b", {"main": oid}, [items(source), items(source)[:1]])
    assert "twice" in refused(path).message


def test_a_bundle_with_an_object_of_the_wrong_kind_is_refused(
    source: Shelf, tmp_path: Path
) -> None:
    blob = source.put(Kind.BLOB, b"I am no commit")
    for entry in (
        TreeEntry(b"a", DIRECTORY, 1, data=blob, cid=bytes(32)),
        TreeEntry(b"a", FILE, 1, size=BLOCK_BYTES + 1, data=blob),
    ):
        shelf = Shelf()
        shelf.put(Kind.TREE, b"I am no commit")  # whatever the table says it is
        root = shelf.put(Kind.TREE, encode(TreePage(0, [entry])))
        oid = commit_tree(shelf, root)
        assert refused(write(tmp_path / "b", {"main": oid}, [items(shelf)])).kind == "bad_bundle"
    path = write(tmp_path / "b", {"main": blob}, [[(blob, Kind.COMMIT, b"I am no commit")]])
    assert refused(path).kind == "bad_bundle"


@pytest.mark.parametrize(
    "name", [b"../escape", b"..", b".", b"", b"/etc/passwd", b"a/b", b"nul\0", b"a/../../b"]
)
def test_a_bundle_with_names_outside_their_directory_is_refused(
    tmp_path: Path, name: bytes
) -> None:
    shelf = Shelf()
    page = TreePage(0, [file_entry(shelf, name, b"evil")])
    oid = commit_tree(shelf, shelf.put(Kind.TREE, encode(page)))
    error = refused(write(tmp_path / "b", {"main": oid}, [items(shelf)]))
    assert error.kind == "bad_bundle"
    assert "name" in error.message


@pytest.mark.parametrize("name", ["../x", "/x", "a..b", "", "-x", "a\0", "a\n", "\x1b[31m", "HEAD"])
def test_a_bundle_with_invalid_ref_names_is_refused(
    source: Shelf, tmp_path: Path, name: str
) -> None:
    oid = commit_files(source, {b"a": b"first"})
    assert refused(write(tmp_path / "b", {name: oid}, [items(source)])).kind == "bad_name"


def test_a_bundle_without_refs_or_with_bad_ids_is_refused(source: Shelf, tmp_path: Path) -> None:
    assert refused(write(tmp_path / "b", {}, [])).kind == "bad_bundle"
    assert refused(write(tmp_path / "b", {"main": Oid(b"short")}, [])).kind == "bad_bundle"


# bombs


@pytest.mark.parametrize(
    "limits",
    [
        BundleLimits(objects=4),
        BundleLimits(raw_bytes=100),
        BundleLimits(room=100),
        BundleLimits(files=1),
    ],
)
def test_a_bundle_over_an_import_limit_is_refused(small: Path, limits: BundleLimits) -> None:
    error = refused(small, limits=limits)
    assert isinstance(error, Refused)
    assert error.kind == "bundle_too_large"


def test_a_compressed_bomb_in_a_bundle_is_refused(source: Shelf, tmp_path: Path) -> None:
    zeros = bytes(12 * 1024 * 1024)
    body = frame.build([(source.hasher.oid(zeros), Kind.BLOB, zeros)], bytes(8), Compressor())
    head = bundle_file.build_header(bytes(8), {"main": Oid(bytes(32))})
    headers = [body[: frame.HEADER_BYTES]] * 100
    end = bundle_file.build_trailer(100, 100 * len(zeros), head, headers)
    (tmp_path / "b").write_bytes(head + body * 100 + end)
    assert (tmp_path / "b").stat().st_size < 2_000_000
    assert "expand" in refused(tmp_path / "b").message


def test_a_frame_larger_than_its_header_says_is_refused(small: Path) -> None:
    with bundle_file.BundleFile(small, BundleLimits()) as file:
        offset = file.frames[0].offset
    whole = bytearray(small.read_bytes())
    payload = Compressor().compress(bytes(10_000_000))
    oid = Hasher().oid(b"")
    body = frame.build([(oid, Kind.BLOB, b"x" * 100_000)], bytes(8), Compressor())
    head = bytes(whole[:offset])
    header = frame.parse_header(body)
    assert header.codec == frame.ZSTD
    forged = _forge(body, payload)
    end = bundle_file.build_trailer(1, 100_000, head, [forged[: frame.HEADER_BYTES]])
    small.write_bytes(head + forged + end)
    error = refused(small)
    assert error.kind == "bad_bundle"
    assert "its header says 100000" in error.message


def _forge(body: bytes, payload: bytes) -> bytes:
    """The frame with another payload under right checksums."""
    header = frame.parse_header(body)
    table = body[frame.HEADER_BYTES : header.payload_start]
    start = bytearray(body[: frame.HEADER_BYTES - 8])
    start[24:28] = len(payload).to_bytes(4, "little")
    start[28:36] = checksum(payload)
    return bytes(start) + checksum(bytes(start), table) + table + payload


def test_a_small_tree_that_expands_to_countless_files_is_refused(tmp_path: Path) -> None:
    shelf = Shelf()
    tree = Trees(shelf).build([file_entry(shelf, b"%02d" % n, b"ha") for n in range(40)])
    for _ in range(30):
        entries = [
            TreeEntry(b"%02d" % n, DIRECTORY, 1, data=tree.oid, cid=tree.cid) for n in range(40)
        ]
        tree = Trees(shelf).build(entries)
    oid = commit_tree(shelf, tree.oid, cid=tree.cid)
    path = write(tmp_path / "b", {"main": oid}, [items(shelf)])
    assert path.stat().st_size < 1_000_000
    error = refused(path)
    assert isinstance(error, Refused)
    assert "files" in error.message


def test_a_long_history_is_not_refused_as_a_bomb(source: Shelf, tmp_path: Path) -> None:
    files = {b"%02d" % n: b"%d" % n for n in range(20)}
    oid = commit_files(source, files)
    for n in range(50):
        oid = commit_files(source, {**files, b"new": b"%d" % n}, oid)
    path = write(tmp_path / "b", {"main": oid}, [items(source)])
    bundle.import_bundle(Shelf(), path, references, limits=BundleLimits(files=21))


def test_a_bundle_changed_between_check_and_import_is_refused(
    source: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.export_bundle(source, {"main": sample(source)}, references, tmp_path / "b")

    class Late(Shelf):
        def has(self, oid: Oid) -> bool:
            """The first question after all was proved."""
            zeros = lambda _, lead: bytes(lead.header.raw)  # noqa: E731
            monkeypatch.setattr(bundle_file.BundleFile, "load", zeros)
            return super().has(oid)

    with pytest.raises(Corrupt) as caught:
        bundle.import_bundle(Late(), tmp_path / "b", references)
    assert "changed" in caught.value.message
