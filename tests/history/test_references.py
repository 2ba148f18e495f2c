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
    BLOCK,
    Blocks,
    Commit,
    Entry,
    Flag,
    Image,
    Layer,
    Memory,
    Page,
    PageMap,
    PageRef,
    Processes,
    State,
    System,
)
from ortet.history.references import read_links, references
from ortet.ids import Oid
from ortet.objects.base import Kind, Link, Objects
from ortet.objects.blobs import put_bytes

A, B, C, D = (Oid(letter * 32) for letter in (b"a", b"b", b"c", b"d"))


def file(name: bytes, **fields: Any) -> Entry:
    return Entry(**{"name": name, "mode": stat.S_IFREG | 0o644, "mtime": 0, **fields})


def folder(name: bytes, **fields: Any) -> Entry:
    mode = stat.S_IFDIR | 0o755
    return Entry(**{"name": name, "mode": mode, "mtime": 0, "data": A, "cid": B, **fields})


ROOT = folder(b"")


def test_references_of_a_commit_are_its_state_and_parents() -> None:
    data = encode(Commit(A, [B, C], "message", 1, "me"))
    assert references(Kind.COMMIT, data) == [
        Link(A, Kind.STATE),
        Link(B, Kind.COMMIT),
        Link(C, Kind.COMMIT),
    ]


def test_references_of_a_state_are_its_image() -> None:
    assert references(Kind.STATE, encode(State(machine=A))) == [Link(A, Kind.IMAGE)]
    assert references(Kind.STATE, encode(State())) == []


def test_references_of_an_image_include_links_xattrs_and_system() -> None:
    layer = Layer(b"/", folder(b"", data=C, xattrs=D), links=B)
    image = Image(root=ROOT, links=C, system=System("base", [layer]), cwd="src/deep")
    assert references(Kind.IMAGE, encode(image)) == [
        Link(A, Kind.TREE),
        Link(C, Kind.META),
        Link(C, Kind.TREE),
        Link(D, Kind.META),
        Link(B, Kind.META),
    ]


def processes(**fields: Any) -> Processes:
    made = {"engine": "criu", "version": "4.2", "kernel": "6", "arch": "x86_64", "page_size": 4096}
    return Processes(**{**made, "cpu": [], "files": [], **fields})


def test_references_of_processes_include_files_and_page_maps() -> None:
    image = Image(root=ROOT, processes=C)
    assert references(Kind.IMAGE, encode(image))[-1] == Link(C, Kind.PROCESSES)
    files = [("core-1.img", 5, A), ("empty.img", 0, b""), ("ghost", BLOCK + 1, B)]
    memory = [("pages-1.img", C), ("pages-2.img", b"")]
    record = processes(files=files, memory=memory, covers=[Layer(b"/run", ROOT, D)])
    assert references(Kind.PROCESSES, encode(record)) == [
        Link(A, Kind.BLOB),
        Link(B, Kind.BLOCKS),
        Link(C, Kind.PAGES),
        Link(A, Kind.TREE),
        Link(D, Kind.META),
    ]


def test_references_of_a_page_map_are_its_blobs_or_maps() -> None:
    leaf = PageMap(0, 40, A + B, [(0, 0, 2), (-1, 0, 32), (1, 5, 5), (0, 3, 1)])
    assert references(Kind.PAGES, encode(leaf)) == [Link(A, Kind.BLOB), Link(B, Kind.BLOB)]
    above = PageMap(1, 9, A + B, [(0, 0, 4), (1, 0, 5)])
    assert references(Kind.PAGES, encode(above)) == [Link(A, Kind.PAGES), Link(B, Kind.PAGES)]


def test_references_of_a_tree_leaf_follow_the_type_of_each_entry() -> None:
    entries = [
        folder(b"dir"),
        file(b"empty"),
        file(b"large", size=BLOCK + 1, data=C, holes=D),
        Entry(b"link", stat.S_IFLNK | 0o777, 0, data=b"../anywhere"),
        Entry(b"pipe", stat.S_IFIFO | 0o644, 0),
        file(b"small", size=BLOCK, data=B, xattrs=A),
        Entry(b"white", 0, 0, flags=Flag.WHITEOUT),
    ]
    assert references(Kind.TREE, encode(Page(0, entries))) == [
        Link(A, Kind.TREE),
        Link(C, Kind.BLOCKS),
        Link(D, Kind.META),
        Link(B, Kind.BLOB),
        Link(A, Kind.META),
    ]


def test_references_of_a_page_of_pages_are_trees() -> None:
    page = Page(1, [], [PageRef(b"f", A, B), PageRef(b"m", C, D)])
    assert references(Kind.TREE, encode(page)) == [Link(A, Kind.TREE), Link(C, Kind.TREE)]


def test_blocks_as_the_store_makes_them(objects: Objects) -> None:
    content = b"".join(bytes([n]) * BLOCK for n in range(3)) + b"end"
    links = references(Kind.BLOCKS, objects.get(Oid(put_bytes(objects, content))))
    assert [link.kind for link in links] == [Kind.BLOB] * 4
    assert b"".join(objects.get(link.oid) for link in links) == content
    above = Blocks(1, 256 * BLOCK + 1, A + B)
    assert references(Kind.BLOCKS, encode(above)) == [Link(A, Kind.BLOCKS), Link(B, Kind.BLOCKS)]


def test_blobs_and_meta_refer_to_nothing() -> None:
    assert references(Kind.BLOB, b"\xc1 not msgpack") == []
    assert references(Kind.META, b"\xc1 not msgpack") == []


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/etc", b"../x", b"nul\0"])
def test_names_that_could_leave_a_directory_are_corrupt(name: bytes) -> None:
    leaf = Page(0, [file(name)])
    above = Page(1, [], [PageRef(name, A, B)])
    for page in (leaf, above):
        with pytest.raises(Corrupt) as caught:
            references(Kind.TREE, encode(page))
        assert caught.value.kind == "bad_tree"


@pytest.mark.parametrize(
    "page",
    [
        Page(0, [file(b"b"), file(b"a")]),
        Page(0, [file(b"a"), file(b"a")]),
        Page(0, [file(b"a", size=1)]),
        Page(0, [file(b"a", data=A)]),
        Page(0, [file(b"a", size=1, data=b"short")]),
        Page(0, [file(b"a", size=-1, data=A)]),
        Page(0, [folder(b"a", data=b"")]),
        Page(0, [folder(b"a", cid=b"")]),
        Page(0, [Entry(b"a", stat.S_IFLNK, 0)]),
        Page(0, [Entry(b"a", stat.S_IFLNK, 0, data=b"x\0y")]),
        Page(0, [Entry(b"a", stat.S_IFIFO, 0, data=b"x")]),
        Page(0, [Entry(b"a", 0, 0)]),
        Page(0, [file(b"a", xattrs=b"short")]),
        Page(0, [], [PageRef(b"a", A, B)]),
        Page(1, [file(b"a")], [PageRef(b"a", A, B)]),
        Page(1, [], []),
        Page(7, [], [PageRef(b"a", A, B)]),
        Page(-1, [], [PageRef(b"a", A, B)]),
        Page(1, [], [PageRef(b"a", A, b"")]),
        Page(1, [], [PageRef(b"b", A, B), PageRef(b"a", A, B)]),
    ],
)
def test_malformed_pages_are_corrupt(page: Page) -> None:
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
        (Kind.BLOCKS, Blocks(0, BLOCK + 1, A)),
        (Kind.BLOCKS, Blocks(0, BLOCK + 1, A + B + b"x")),
        (Kind.BLOCKS, Blocks(0, 0, b"")),
        (Kind.BLOCKS, Blocks(-1, 10, A)),
        (Kind.BLOCKS, Blocks(10**6, 10, A)),
        (Kind.BLOCKS, Blocks(0, 257 * BLOCK, A * 257)),
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
    assert Link(Oid(A), Kind.MEMORY) in references(Kind.STATE, encode(State(memory=A)))
    memory = Memory([("agent:a", A), ("user:b", B)])
    assert references(Kind.MEMORY, encode(memory)) == [
        Link(Oid(A), Kind.JOURNAL),
        Link(Oid(B), Kind.JOURNAL),
    ]
    for second in ("agent:a", "user:b"):
        with pytest.raises(Corrupt):
            references(Kind.MEMORY, encode(Memory([("user:b", A), (second, B)])))


def test_services_are_followed() -> None:
    image = Image(root=ROOT, services=A)
    assert (Link(Oid(A), Kind.META)) in references(Kind.IMAGE, encode(image))


@settings(deadline=None)
@given(kind=st.sampled_from(Kind), data=st.binary(max_size=200))
def test_any_bytes_give_links_or_a_clear_error(kind: Kind, data: bytes) -> None:
    try:
        links = references(kind, data)
    except OrtetError as error:
        assert error.name in ("corrupt", "unsupported")
    else:
        assert all(len(link.oid) == 32 for link in links)


def test_read_links_refuses_groups_with_unsafe_paths(objects: Objects) -> None:
    assert read_links(objects, b"") == []
    groups = [[b"a", b"b/c"], [b"d", b"e"]]
    assert read_links(objects, objects.put(Kind.META, encode(groups))) == groups
    for bad in ([[b"../x", b"a"]], [[b"/x", b"a"]], [[b"a//b"]], [[b""]]):
        with pytest.raises(Corrupt):
            read_links(objects, objects.put(Kind.META, encode(bad)))
    with pytest.raises(Corrupt):
        read_links(objects, objects.put(Kind.META, b"garbage"))
