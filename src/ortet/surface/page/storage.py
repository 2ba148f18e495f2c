"""What a store holds, by kind of object and by place on the disk, and what it saves by storing the
same once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from starlette.responses import Response

from ortet.errors import OrtetError, Refused
from ortet.graph.records import Entry
from ortet.ids import from_hex
from ortet.session.hub import Hub
from ortet.store.abc import Kind
from ortet.surface.page.plots import Bar, bars
from ortet.surface.page.visit import Visit
from ortet.surface.render import plural

_OBJECTS = 500_000
_FILES = 100_000
_COMMITS = 2000
"""How much is looked at for one page; beyond it, numbers are "at least"."""

KINDS = {
    Kind.BLOB: "file contents",
    Kind.BLOCKS: "lists of blocks of large files",
    Kind.TREE: "directories",
    Kind.META: "links, attributes, holes",
    Kind.IMAGE: "images of machines",
    Kind.STATE: "states",
    Kind.COMMIT: "commits",
    Kind.JOURNAL: "journals",
    Kind.SEGMENT: "events, sealed",
    Kind.BODIES: "what events say",
    Kind.FOLD: "minds",
    Kind.MAP: "pages of maps of minds",
    Kind.PROCESSES: "processes",
    Kind.PAGES: "lists of memory pages",
    Kind.MEMORY: "beliefs",
}
_PLACES = (
    ("packs", "bucket/packs"),
    ("open ends of writers", "local/tails"),
    ("indexes", "local/index"),
    ("machines", "local/machines"),
    ("shared layers", "local/bases"),
    ("memory index", "local/memory"),
)


class Storage(msgspec.Struct, frozen=True):
    """Bytes. `logical` is what the files of all `commits` would be as plain copies, `raw`
    the objects before compression, `stored` the packs; `partial`: not all was looked at."""

    root: str
    objects: int
    raw: int
    stored: int
    logical: int
    commits: int
    packs: int
    tails: int
    kinds: list[Bar]
    places: list[Bar]
    disk: int
    sessions: int
    statuses: list[Bar]
    partial: bool

    @property
    def saved(self) -> float:
        """How many times the stored bytes the copies would be; 0: nothing to compare."""
        return self.logical / self.stored if self.logical > self.stored > 0 else 0.0

    @property
    def packed(self) -> float:
        """How many times the stored bytes the objects are."""
        return self.raw / self.stored if self.stored else 0.0


def storage(hub: Hub) -> Storage:
    """What the page shows. A look, not an account: others write meanwhile."""
    stats = hub.objects.stats()
    sizes, counts, whole = _by_kind(hub)
    logical, commits, all_commits = _copies(hub)
    places, disk, all_files = _places(hub.root)
    rows = hub.sessions()
    statuses = Counter(row.status for row in rows)
    return Storage(
        root=str(hub.root),
        objects=stats.objects,
        raw=sum(sizes.values()),
        stored=stats.pack_bytes + stats.tail_bytes,
        logical=logical,
        commits=commits,
        packs=stats.packs,
        tails=stats.tails,
        kinds=bars(
            [
                (_kind(kind), float(size), plural(counts[kind], "object"))
                for kind, size in sizes.items()
            ]
        ),
        places=bars([(name, float(size), "") for name, size in places.items() if size]),
        disk=disk,
        sessions=len(rows),
        statuses=bars([(name, float(count), "") for name, count in statuses.items()]),
        partial=not (whole and all_commits and all_files),
    )


def _kind(kind: int) -> str:
    with suppress(ValueError):
        return KINDS.get(Kind(kind), Kind(kind).name.lower())
    return f"kind {kind}"


def _by_kind(hub: Hub) -> tuple[dict[int, int], dict[int, int], bool]:
    """Bytes and objects of each, those stored twice once; whether that is all."""
    sizes: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    seen: set[bytes] = set()
    for source in hub.objects.shelf.sources():
        for oid, (_, _, _, length, kind) in source.spots():
            if len(seen) >= _OBJECTS:
                return sizes, counts, False
            if oid not in seen:
                seen.add(oid)
                sizes[kind] += length
                counts[kind] += 1
    return sizes, counts, True


def _copies(hub: Hub) -> tuple[int, int, bool]:
    """What the files of commits would take if each were a directory of its own."""
    total = files = 0
    sizes: dict[bytes, int] = {}
    commits: set[str] = set()
    for branch in hub.refs.branches():
        for commit in hub.log(branch.name, limit=_COMMITS):
            if commit.oid in commits:
                break  # and all before it
            if len(commits) >= _COMMITS or files >= _FILES:
                return total, len(commits), False
            commits.add(commit.oid)
            try:
                root = hub.read_image(hub.image_oid(from_hex(commit.oid))).root
            except OrtetError:  # a mind without files
                continue
            if root.data not in sizes:
                sizes[root.data], count = _tree(hub, root, _FILES - files)
                files += count
            total += sizes[root.data]
    return total, len(commits), True


def _tree(hub: Hub, root: Entry, most: int) -> tuple[int, int]:
    size = count = 0
    for _, entry in hub.trees.walk(root):
        size += entry.size
        count += 1
        if count >= most:
            break
    return size, count


def _places(root: Path) -> tuple[dict[str, int], int, bool]:
    """Bytes on the disk; what is in none of them is the catalog's and small files."""
    found: dict[str, int] = {}
    left = _FILES
    for name, place in _PLACES:
        size = 0
        for one in _files(root / place):
            if left <= 0:
                break
            left -= 1
            size += one
        found[name] = size
    found["catalog"] = sum(_size(path) for path in root.glob("catalog.db*"))
    return found, sum(found.values()), left > 0


def _files(place: Path) -> Iterator[int]:
    """Bytes of every file below it, as the disk has them; what another removes meanwhile is not
    counted, what is mounted there is not entered."""
    todo = [place]
    try:
        device = place.stat().st_dev
    except OSError:
        return
    while todo:
        try:
            with os.scandir(todo.pop()) as names:
                for one in names:
                    with suppress(OSError):
                        stat = one.stat(follow_symlinks=False)
                        if one.is_dir(follow_symlinks=False):
                            if stat.st_dev == device:
                                todo.append(Path(one.path))
                        else:
                            yield stat.st_blocks * 512
        except OSError:
            continue


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def store(visit: Visit) -> Response:
    """The page; about all sessions, so not for a token that is for some."""
    if visit.caller.agents:
        raise Refused(
            "token_agents", "this is about all agents, and the token is for some: use another"
        )
    with visit.hub() as hub:
        found = storage(hub)
    return visit.show("storage.html", found=found)
