"""Every reference is found with its kind, and nothing malformed passes."""

from __future__ import annotations

import stat
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortet._util.codec import encode
from ortet.errors import Corrupt, OrtetError
from ortet.history.records import (
    BLOCK_BYTES,
    Blocks,
    Commit,
    Flag,
    Image,
    Layer,
    Memory,
    PageMap,
    Processes,
    State,
    System,
    TreeEntry,
    TreePage,
    TreePageRef,
)
from ortet.history.references import read_hardlinks, references, walk_postorder
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef, ObjectStore
from ortet.objects.blobs import put_bytes

A, B, C, D = (Oid(letter * 32) for letter in (b"a", b"b", b"c", b"d"))


def file(name: bytes, **fields: Any) -> TreeEntry:
    return TreeEntry(**{"name": name, "mode": stat.S_IFREG | 0o644, "mtime": 0, **fields})


def folder(name: bytes, **fields: Any) -> TreeEntry:
    mode = stat.S_IFDIR | 0o755
    return TreeEntry(**{"name": name, "mode": mode, "mtime": 0, "data": A, "cid": B, **fields})


ROOT = folder(b"")


def test_references_of_a_commit_are_its_state_and_parents() -> None:
    data = encode(Commit(A, [B, C], "message", 1, "me"))
    assert references(Kind.COMMIT, data) == [
        ObjectRef(A, Kind.STATE),
        ObjectRef(B, Kind.COMMIT),
        ObjectRef(C, Kind.COMMIT),
    ]


def test_references_of_a_state_are_its_image() -> None:
    assert references(Kind.STATE, encode(State(machine=A))) == [ObjectRef(A, Kind.IMAGE)]
    assert references(Kind.STATE, encode(State())) == []


def test_references_of_an_image_include_links_xattrs_and_system() -> None:
    layer = Layer(b"/", folder(b"", data=C, xattrs=D), links=B)
    image = Image(root=ROOT, links=C, system=System("base", [layer]), cwd="src/deep")
    assert references(Kind.IMAGE, encode(image)) == [
        ObjectRef(A, Kind.TREE),
        ObjectRef(C, Kind.META),
        ObjectRef(C, Kind.TREE),
        ObjectRef(D, Kind.META),
        ObjectRef(B, Kind.META),
    ]


def processes(**fields: Any) -> Processes:
    made = {"engine": "criu", "version": "4.2", "kernel": "6", "arch": "x86_64", "page_size": 4096}
    return Processes(**{**made, "cpu": [], "files": [], **fields})


def test_references_of_processes_include_files_and_page_maps() -> None:
    image = Image(root=ROOT, processes=C)
    assert references(Kind.IMAGE, encode(image))[-1] == ObjectRef(C, Kind.PROCESSES)
    files = [("core-1.img", 5, A), ("empty.img", 0, b""), ("ghost", BLOCK_BYTES + 1, B)]
    memory = [("pages-1.img", C), ("pages-2.img", b"")]
    record = processes(files=files, memory=memory, covers=[Layer(b"/run", ROOT, D)])
    assert references(Kind.PROCESSES, encode(record)) == [
        ObjectRef(A, Kind.BLOB),
        ObjectRef(B, Kind.BLOCKS),
        ObjectRef(C, Kind.PAGES),
        ObjectRef(A, Kind.TREE),
        ObjectRef(D, Kind.META),
    ]


def test_references_of_a_page_map_are_its_blobs_or_maps() -> None:
    leaf = PageMap(0, 40, A + B, [(0, 0, 2), (-1, 0, 32), (1, 5, 5), (0, 3, 1)])
    assert references(Kind.PAGES, encode(leaf)) == [
        ObjectRef(A, Kind.BLOB),
        ObjectRef(B, Kind.BLOB),
    ]
    above = PageMap(1, 9, A + B, [(0, 0, 4), (1, 0, 5)])
    assert references(Kind.PAGES, encode(above)) == [
        ObjectRef(A, Kind.PAGES),
        ObjectRef(B, Kind.PAGES),
    ]


def test_references_of_a_tree_leaf_follow_the_type_of_each_entry() -> None:
    entries = [
        folder(b"dir"),
        file(b"empty"),
        file(b"large", size=BLOCK_BYTES + 1, data=C, holes=D),
        TreeEntry(b"link", stat.S_IFLNK | 0o777, 0, data=b"../anywhere"),
        TreeEntry(b"pipe", stat.S_IFIFO | 0o644, 0),
        file(b"small", size=BLOCK_BYTES, data=B, xattrs=A),
        TreeEntry(b"white", 0, 0, flags=Flag.WHITEOUT),
    ]
    assert references(Kind.TREE, encode(TreePage(0, entries))) == [
        ObjectRef(A, Kind.TREE),
        ObjectRef(C, Kind.BLOCKS),
        ObjectRef(D, Kind.META),
        ObjectRef(B, Kind.BLOB),
        ObjectRef(A, Kind.META),
    ]


def test_references_of_a_page_of_pages_are_trees() -> None:
    page = TreePage(1, [], [TreePageRef(b"f", A, B), TreePageRef(b"m", C, D)])
    assert references(Kind.TREE, encode(page)) == [ObjectRef(A, Kind.TREE), ObjectRef(C, Kind.TREE)]


def test_references_of_a_block_list_are_its_blocks(objects: ObjectStore) -> None:
    content = b"".join(bytes([n]) * BLOCK_BYTES for n in range(3)) + b"end"
    links = references(Kind.BLOCKS, objects.get(Oid(put_bytes(objects, content))))
    assert [link.kind for link in links] == [Kind.BLOB] * 4
    assert b"".join(objects.get(link.oid) for link in links) == content
    above = Blocks(1, 256 * BLOCK_BYTES + 1, A + B)
    assert references(Kind.BLOCKS, encode(above)) == [
        ObjectRef(A, Kind.BLOCKS),
        ObjectRef(B, Kind.BLOCKS),
    ]


def test_blobs_and_meta_refer_to_nothing() -> None:
    assert references(Kind.BLOB, b"\xc1 not msgpack") == []
    assert references(Kind.META, b"\xc1 not msgpack") == []


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc", b"../x", b"nul\0"])
def test_names_that_could_leave_a_directory_are_corrupt(name: bytes) -> None:
    leaf = TreePage(0, [file(name)])
    above = TreePage(1, [], [TreePageRef(name, A, B)])
    for page in (leaf, above):
        with pytest.raises(Corrupt) as caught:
            references(Kind.TREE, encode(page))
        assert caught.value.kind == "bad_tree"


@pytest.mark.parametrize(
    "page",
    [
        TreePage(0, [file(b"b"), file(b"a")]),
        TreePage(0, [file(b"a"), file(b"a")]),
        TreePage(0, [file(b"a", size=1)]),
        TreePage(0, [file(b"a", data=A)]),
        TreePage(0, [file(b"a", size=1, data=b"short")]),
        TreePage(0, [file(b"a", size=-1, data=A)]),
        TreePage(0, [folder(b"a", data=b"")]),
        TreePage(0, [folder(b"a", cid=b"")]),
        TreePage(0, [TreeEntry(b"a", stat.S_IFLNK, 0)]),
        TreePage(0, [TreeEntry(b"a", stat.S_IFLNK, 0, data=b"x\0y")]),
        TreePage(0, [TreeEntry(b"a", stat.S_IFIFO, 0, data=b"x")]),
        TreePage(0, [TreeEntry(b"a", 0, 0)]),
        TreePage(0, [file(b"a", xattrs=b"short")]),
        TreePage(0, [], [TreePageRef(b"a", A, B)]),
        TreePage(1, [file(b"a")], [TreePageRef(b"a", A, B)]),
        TreePage(1, [], []),
        TreePage(7, [], [TreePageRef(b"a", A, B)]),
        TreePage(-1, [], [TreePageRef(b"a", A, B)]),
        TreePage(1, [], [TreePageRef(b"a", A, b"")]),
        TreePage(1, [], [TreePageRef(b"b", A, B), TreePageRef(b"a", A, B)]),
    ],
)
def test_malformed_pages_are_corrupt(page: TreePage) -> None:
    with pytest.raises(Corrupt) as caught:
        references(Kind.TREE, encode(page))
    assert caught.value.kind == "bad_tree"


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        (Kind.COMMIT, Commit(Oid(b"short"), [], "", 0, "")),
        (Kind.COMMIT, Commit(A, [Oid(b"")], "", 0, "")),
        (Kind.STATE, State(machine=b"short")),
        (Kind.IMAGE, Image(root=folder(b"named"))),
        (Kind.IMAGE, Image(root=file(b""))),
        (Kind.IMAGE, Image(root=ROOT, links=b"short")),
        (Kind.IMAGE, Image(root=ROOT, cwd="/etc")),
        (Kind.IMAGE, Image(root=ROOT, cwd="a/../..")),
        (Kind.BLOCKS, Blocks(0, BLOCK_BYTES + 1, A)),
        (Kind.BLOCKS, Blocks(0, BLOCK_BYTES + 1, A + B + b"x")),
        (Kind.BLOCKS, Blocks(0, 0, b"")),
        (Kind.BLOCKS, Blocks(-1, 10, A)),
        (Kind.BLOCKS, Blocks(10**6, 10, A)),
        (Kind.BLOCKS, Blocks(0, 257 * BLOCK_BYTES, A * 257)),
        (Kind.IMAGE, Image(root=ROOT, processes=b"short")),
        (Kind.PROCESSES, processes(files=[("../x", 1, A)])),
        (Kind.PROCESSES, processes(files=[("x", 0, A)])),
        (Kind.PROCESSES, processes(files=[("x", 1, b"")])),
        (Kind.PROCESSES, processes(files=[("b", 1, A), ("a", 1, A)])),
        (Kind.PROCESSES, processes(files=[("a", 1, A)], memory=[("a", A)])),
        (Kind.PROCESSES, processes(memory=[("a", b"short")])),
        (Kind.PROCESSES, processes(memory=[("a/b", A)])),
        (Kind.PROCESSES, processes(page_size=5000)),
        (Kind.PROCESSES, processes(page_size=0)),
        (Kind.PROCESSES, processes(covers=[Layer(b"/", file(b""))])),
        (Kind.PAGES, PageMap(0, 0, b"", [])),
        (Kind.PAGES, PageMap(0, 2, A, [(0, 0, 1)])),
        (Kind.PAGES, PageMap(0, 1, A, [(1, 0, 1)])),
        (Kind.PAGES, PageMap(0, 1, A, [(-2, 0, 1)])),
        (Kind.PAGES, PageMap(0, 1, A, [(0, -1, 1)])),
        (Kind.PAGES, PageMap(0, 0, A, [(0, 0, 0)])),
        (Kind.PAGES, PageMap(0, 1, A + B, [(0, 0, 1)])),
        (Kind.PAGES, PageMap(0, 1, A + b"x", [(0, 0, 1)])),
        (Kind.PAGES, PageMap(0, 1, b"", [(-1, 5, 1)])),
        (Kind.PAGES, PageMap(1, 1, A, [(-1, 0, 1), (0, 0, 0)])),
        (Kind.PAGES, PageMap(1, 1, A, [(0, 1, 1)])),
        (Kind.PAGES, PageMap(9, 1, A, [(0, 0, 1)])),
    ],
)
def test_malformed_records_are_corrupt(kind: Kind, record: msgspec.Struct) -> None:
    with pytest.raises(Corrupt):
        references(kind, encode(record))


def test_shared_memories_are_followed() -> None:
    assert ObjectRef(Oid(A), Kind.MEMORY) in references(Kind.STATE, encode(State(memory=A)))
    memory = Memory([("agent:a", A), ("user:b", B)])
    assert references(Kind.MEMORY, encode(memory)) == [
        ObjectRef(Oid(A), Kind.JOURNAL),
        ObjectRef(Oid(B), Kind.JOURNAL),
    ]
    for second in ("agent:a", "user:b"):
        with pytest.raises(Corrupt):
            references(Kind.MEMORY, encode(Memory([("user:b", A), (second, B)])))


def test_services_are_followed() -> None:
    image = Image(root=ROOT, services=A)
    assert (ObjectRef(Oid(A), Kind.META)) in references(Kind.IMAGE, encode(image))


@settings(deadline=None)
@given(kind=st.sampled_from(Kind), data=st.binary(max_size=200))
def test_any_bytes_give_links_or_a_clear_error(kind: Kind, data: bytes) -> None:
    try:
        links = references(kind, data)
    except OrtetError as error:
        assert error.name in ("corrupt", "unsupported")
    else:
        assert all(len(link.oid) == 32 for link in links)


def test_read_links_refuses_groups_with_unsafe_paths(objects: ObjectStore) -> None:
    assert read_hardlinks(objects, b"") == []
    groups = [[b"a", b"b/c"], [b"d", b"e"]]
    assert read_hardlinks(objects, objects.put(Kind.META, encode(groups))) == groups
    for bad in ([[b"../x", b"a"]], [[b"/x", b"a"]], [[b"a//b"]], [[b""]]):
        with pytest.raises(Corrupt):
            read_hardlinks(objects, objects.put(Kind.META, encode(bad)))
    with pytest.raises(Corrupt):
        read_hardlinks(objects, objects.put(Kind.META, b"garbage"))


def link(number: int, kind: Kind = Kind.TREE) -> ObjectRef:
    return ObjectRef(Oid(number.to_bytes(32, "big")), kind)


def number(found: ObjectRef) -> int:
    return int.from_bytes(found.oid, "big")


@given(st.data(), st.integers(1, 12))
def test_children_come_first_and_once(data: st.DataObject, size: int) -> None:
    # node n refers only to smaller ones, so there are no cycles, as among hashes
    below = {
        n: data.draw(st.lists(st.integers(0, n - 1)) if n else st.just([])) for n in range(size)
    }
    roots = data.draw(st.lists(st.integers(0, size - 1)))
    found = list(
        walk_postorder([link(n) for n in roots], lambda at: [link(n) for n in below[number(at)]])
    )
    seen: list[int] = []
    for at, links in found:
        assert [number(child) for child in links] == below[number(at)]
        assert set(below[number(at)]) <= set(seen)
        seen.append(number(at))
    wanted = set(roots)
    for n in reversed(range(size)):
        wanted |= set(below[n]) if n in wanted else set()
    assert sorted(seen) == sorted(wanted)


def test_blobs_are_not_read_for_references() -> None:
    def links_of(at: ObjectRef) -> list[ObjectRef]:
        assert at.kind is Kind.TREE
        return [link(1, Kind.BLOB), link(1, Kind.BLOB), link(2, Kind.BLOB)]

    found = [
        (number(at), at.kind) for at, _ in walk_postorder([link(1), link(2, Kind.BLOB)], links_of)
    ]
    assert found == [(1, Kind.BLOB), (2, Kind.BLOB), (1, Kind.TREE)]
