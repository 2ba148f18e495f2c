"""Parses and checks the references inside each object. Sweep, verify and import all use it."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from ortet._util.codec import decode
from ortet.errors import Corrupt
from ortet.history.records import (
    BLOCK_BYTES,
    Blocks,
    Bodies,
    Commit,
    EventHeader,
    Flag,
    Fold,
    Image,
    JournalHead,
    JournalSegment,
    Layer,
    Memory,
    PageMap,
    Processes,
    State,
    TreeEntry,
    TreePage,
)
from ortet.history.tree.page import MAX_PAGE_LEVEL
from ortet.ids import OID_BYTES, Oid
from ortet.objects.base import Kind, ObjectRef, ObjectStore, ReferenceParser
from ortet.objects.blobs import BLOCK_FANOUT
from ortet.objects.source import kind_of

ChildrenOf = Callable[[ObjectRef], Iterable[ObjectRef]]


def walk_postorder(
    roots: Iterable[ObjectRef], children_of: ChildrenOf
) -> Iterator[tuple[ObjectRef, list[ObjectRef]]]:
    """Yield each distinct (oid, kind) once with its references, after everything it refers to.

    `children_of` is not called for blobs. The walk uses a stack, because a history is deeper than
    the recursion limit.
    """
    done: set[ObjectRef] = set()
    for root in roots:
        stack = [(root, [root], iter([root]))]  # the root is visited as its own only child
        while stack:
            link, links, rest = stack[-1]
            for child in rest:
                if child in done:
                    continue
                if child.kind is not Kind.BLOB:
                    below = list(children_of(child))
                    stack.append((child, below, iter(below)))
                    break
                done.add(child)
                yield child, []
            else:
                stack.pop()
                if link not in done:
                    done.add(link)
                    yield link, links


_TIMELINE_BYTES = 16


def references(kind: Kind, data: bytes) -> list[ObjectRef]:
    """Return every reference inside an object of this kind.

    Raises Corrupt if the object is not valid for its kind. A name that could leave its directory is
    Corrupt("bad_tree"), so every tree that passes can be restored safely.
    """
    return _PARSERS[kind](data)


ERASABLE_KINDS = frozenset({Kind.SEGMENT, Kind.BODIES, Kind.FOLD})
"""Kinds that an erasure may replace. A reference to an erased object means its replacement."""


def references_after_erasure(objects: ObjectStore) -> ReferenceParser:
    """Return a parser like `references` that names the replacement of each erased object."""

    def walk(kind: Kind, data: bytes) -> list[ObjectRef]:
        return [
            ObjectRef(objects.replacement_of(link.oid), link.kind)
            if link.kind in ERASABLE_KINDS
            else link
            for link in references(kind, data)
        ]

    return walk


def read_hardlinks(objects: ObjectStore, oid: bytes) -> list[list[bytes]]:
    """Return the hardlink groups of an image as lists of safe relative paths. b"" means none."""
    if not oid:
        return []
    groups: list[list[bytes]] = decode(list[list[bytes]], objects.get(Oid(oid)))
    for group in groups:
        for path in group:
            for name in path.split(b"/"):
                if not _is_safe_name(name):
                    raise _bad_tree(f"hardlink path {path!r} could leave the workspace")
    return groups


def _nothing(data: bytes) -> list[ObjectRef]:
    del data
    return []


def _commit(data: bytes) -> list[ObjectRef]:
    commit = decode(Commit, data)
    links = [_make_ref(commit.state, Kind.STATE)]
    links += [_make_ref(parent, Kind.COMMIT) for parent in commit.parents]
    return links


def _state(data: bytes) -> list[ObjectRef]:
    state = decode(State, data)
    mind = _optional(state.journal, Kind.JOURNAL) + _optional(state.memory, Kind.MEMORY)
    return mind + _optional(state.machine, Kind.IMAGE)


def _memory(data: bytes) -> list[ObjectRef]:
    memory = decode(Memory, data)
    names = [name for name, _ in memory.scopes]
    if names != sorted(set(names)):
        raise Corrupt("bad_memory", "scopes of a memory are out of order or there twice")
    return [_make_ref(oid, Kind.JOURNAL) for _, oid in memory.scopes]


def _journal(data: bytes) -> list[ObjectRef]:
    journal = decode(JournalHead, data)
    return _optional(journal.segment, Kind.SEGMENT) + _optional(journal.fold, Kind.FOLD)


def _segment(data: bytes) -> list[ObjectRef]:
    segment = decode(JournalSegment, data)
    if len(segment.timeline) != _TIMELINE_BYTES or not segment.heads:
        raise Corrupt("bad_segment", "a segment of events has no timeline, or no events")
    for head in segment.heads:
        decode(EventHeader, head)
    links = [_make_ref(segment.bodies, Kind.BODIES), *_optional(segment.before, Kind.SEGMENT)]
    return links + [_make_ref(oid, kind_of(number)) for oid, number in segment.refs]


def _bodies(data: bytes) -> list[ObjectRef]:
    decode(Bodies, data)
    return []


def _fold(data: bytes) -> list[ObjectRef]:
    return [_make_ref(root, Kind.MAP) for _, root in decode(Fold, data).maps]


def _map(data: bytes) -> list[ObjectRef]:
    """Parse a map: a tree whose entries are keys and values, not files."""
    page = decode(TreePage, data)
    return [_make_ref(ref.oid, Kind.MAP) for ref in page.pages]


def _image(data: bytes) -> list[ObjectRef]:
    image = decode(Image, data)
    if any(not _is_safe_name(name) for name in image.cwd.encode().split(b"/")) and image.cwd:
        raise Corrupt("bad_image", f"working directory {image.cwd!r} is not below the workspace")
    links = _root(image.root, image.links)
    if image.system is not None:
        links += _layers(image.system.layers)
    links += _optional(image.services, Kind.META)
    return links + _optional(image.processes, Kind.PROCESSES)


def _layers(layers: Sequence[Layer]) -> list[ObjectRef]:
    return [link for layer in layers for link in _root(layer.root, layer.links)]


def _root(root: TreeEntry, groups: bytes) -> list[ObjectRef]:
    if root.name or not root.is_dir:
        raise _bad_tree("the root of an image is not a nameless directory")
    return _entry(root) + _optional(groups, Kind.META)


def _processes(data: bytes) -> list[ObjectRef]:
    processes = decode(Processes, data)
    plain = [name.encode() for name, _, _ in processes.files]
    paged = [name.encode() for name, _ in processes.memory]
    for names in (plain, paged, sorted(plain + paged)):
        _check_names(names)
    if not _is_page_size(processes.page_size):
        raise _bad_pages(f"pages cannot have {processes.page_size} bytes")
    links: list[ObjectRef] = []
    for name, size, oid in processes.files:
        if bool(size) != bool(oid) or size < 0:
            raise _bad_pages(f"file {name!r} has size {size} but not the data for it")
        links += _optional(oid, Kind.BLOB if size <= BLOCK_BYTES else Kind.BLOCKS)
    links += [link for _, oid in processes.memory for link in _optional(oid, Kind.PAGES)]
    return links + _layers(processes.covers)


def _page_map(data: bytes) -> list[ObjectRef]:
    page_map = decode(PageMap, data)
    count, rest = divmod(len(page_map.children), OID_BYTES)
    sane = 0 <= page_map.level < 8 and not rest and page_map.pages > 0
    used, pages = set[int](), 0
    for number, first, length in page_map.extents if sane else ():
        zeros = number == -1 and not page_map.level
        sane = sane and (zeros or 0 <= number < count) and length > 0 <= first
        sane = sane and (not first or (not page_map.level and not zeros))
        pages += length
        used.add(number)
    if not sane or pages != page_map.pages or len(used - {-1}) != count:
        raise _bad_pages("its extents are malformed")
    kind = Kind.PAGES if page_map.level else Kind.BLOB
    starts = range(0, len(page_map.children), OID_BYTES)
    return [ObjectRef(Oid(page_map.children[start : start + OID_BYTES]), kind) for start in starts]


def _tree(data: bytes) -> list[ObjectRef]:
    page = decode(TreePage, data)
    if page.level == 0 and not page.pages:
        _check_names([entry.name for entry in page.entries])
        return [link for entry in page.entries for link in _entry(entry)]
    if not 0 < page.level <= MAX_PAGE_LEVEL or page.entries or not page.pages:
        raise _bad_tree(f"a page of level {page.level} holds what does not belong there")
    _check_names([ref.last for ref in page.pages])
    for ref in page.pages:
        _check_oid(ref.cid)
    return [_make_ref(ref.oid, Kind.TREE) for ref in page.pages]


def _blocks(data: bytes) -> list[ObjectRef]:
    blocks = decode(Blocks, data)
    run = blocks.children
    sane = 0 <= blocks.level < 8 and blocks.size > 0
    count = -(-blocks.size // (BLOCK_BYTES * BLOCK_FANOUT**blocks.level)) if sane else 0
    if not 0 < count <= BLOCK_FANOUT or len(run) != count * OID_BYTES:
        raise Corrupt("bad_blocks", "a file's list of blocks is malformed: run `ortet verify`")
    kind = Kind.BLOCKS if blocks.level else Kind.BLOB
    starts = range(0, len(run), OID_BYTES)
    return [ObjectRef(Oid(run[start : start + OID_BYTES]), kind) for start in starts]


def _entry(entry: TreeEntry) -> list[ObjectRef]:
    kind = stat.S_IFMT(entry.mode)
    links: list[ObjectRef] = []
    if kind == stat.S_IFREG:
        if bool(entry.size) != bool(entry.data) or entry.size < 0:
            raise _bad_tree(f"file {entry.name!r} has size {entry.size} but not the data for it")
        links = _optional(entry.data, Kind.BLOB if entry.size <= BLOCK_BYTES else Kind.BLOCKS)
    elif kind == stat.S_IFDIR:
        _check_oid(entry.cid)
        links = [_make_ref(entry.data, Kind.TREE)]
    elif kind == stat.S_IFLNK:
        if not entry.data or b"\0" in entry.data:
            raise _bad_tree(f"symlink {entry.name!r} has no usable target")
    elif entry.data or (kind == 0 and not entry.flags & Flag.WHITEOUT):
        raise _bad_tree(f"{entry.name!r} is of unknown type {entry.mode:o}")
    if entry.xattrs:
        links.append(_make_ref(entry.xattrs, Kind.META))
    if entry.holes:
        links.append(_make_ref(entry.holes, Kind.META))
    return links


def _optional(oid: bytes, kind: Kind) -> list[ObjectRef]:
    return [_make_ref(oid, kind)] if oid else []


def _make_ref(oid: bytes, kind: Kind) -> ObjectRef:
    _check_oid(oid)
    return ObjectRef(Oid(oid), kind)


def _check_oid(oid: bytes) -> None:
    if len(oid) != OID_BYTES:
        raise _bad_tree(f"a reference is {len(oid)} bytes long instead of {OID_BYTES}")


def _check_names(names: Sequence[bytes]) -> None:
    before = b""
    for name in names:
        if not _is_safe_name(name):
            raise _bad_tree(f"{name!r} cannot be a file name")
        if name <= before:
            raise _bad_tree(f"name {name!r} is out of order or there twice")
        before = name


def _is_safe_name(name: bytes) -> bool:
    return bool(name) and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def _is_page_size(size: int) -> bool:
    return 4096 <= size <= BLOCK_BYTES and not size & (size - 1)


def _bad_pages(what: str) -> Corrupt:
    return Corrupt("bad_pages", f"stored processes: {what}; run `ortet verify`")


def _bad_tree(what: str) -> Corrupt:
    return Corrupt("bad_tree", f"{what}: run `ortet verify` to see which commits are damaged")


_PARSERS: dict[Kind, Callable[[bytes], list[ObjectRef]]] = {
    Kind.BLOB: _nothing,
    Kind.BLOCKS: _blocks,
    Kind.TREE: _tree,
    Kind.META: _nothing,
    Kind.IMAGE: _image,
    Kind.STATE: _state,
    Kind.COMMIT: _commit,
    Kind.JOURNAL: _journal,
    Kind.SEGMENT: _segment,
    Kind.BODIES: _bodies,
    Kind.FOLD: _fold,
    Kind.MAP: _map,
    Kind.PROCESSES: _processes,
    Kind.PAGES: _page_map,
    Kind.MEMORY: _memory,
}
