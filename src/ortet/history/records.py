"""The records that are hashed. Positions are the format: append fields, never reorder."""

from __future__ import annotations

import stat
from enum import IntFlag

from ortet._util.codec import StoredRecord
from ortet.ids import Oid
from ortet.objects.blobs import BLOCK_BYTES, Blocks

__all__ = [
    "BLOCK_BYTES",
    "Blocks",
    "Bodies",
    "Commit",
    "EventHeader",
    "Flag",
    "Fold",
    "Image",
    "JournalHead",
    "JournalSegment",
    "Layer",
    "Memory",
    "PageMap",
    "Processes",
    "State",
    "System",
    "TreeEntry",
    "TreePage",
    "TreePageRef",
]


class Flag(IntFlag):
    """Marks that only a difference (a machine's system delta) carries, never a workspace tree."""

    NONE = 0
    WHITEOUT = 1  # the name is gone from the layer below
    OPAQUE = 2  # nothing of the layer below shows through this directory


class TreeEntry(StoredRecord, frozen=True, gc=False):
    """One name in a directory, with everything that makes it identical.

    `data` is, of a file, the Oid of its blob or Blocks (b"" when empty); of a directory, the Oid of
    its tree; of a symlink, the target.
    """

    name: bytes
    mode: int  # full st_mode, type bits included
    mtime: int  # ns since 1970, may be negative
    uid: int = 0
    gid: int = 0
    size: int = 0  # regular files only
    data: bytes = b""
    cid: bytes = b""  # directory only: its content-only id
    xattrs: bytes = b""  # Oid of META list[(name, value)] sorted, b"" for none
    holes: bytes = b""  # Oid of META list[(start, length)], b"" for none
    rdev: int = 0
    flags: int = 0

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)

    @property
    def content(self) -> tuple[int, bytes]:
        """What "same content" means: type, executable bit, data; no times, owners or xattrs."""
        kind = stat.S_IFMT(self.mode)
        if self.is_dir:
            return kind, self.cid
        return kind | (self.mode & 0o100 if self.is_file else 0), self.data


class TreePage(StoredRecord, frozen=True):
    """A piece of a directory: `entries` at level 0, `pages` above; history/tree/tree.py cuts it."""

    level: int
    entries: list[TreeEntry] = []
    pages: list[TreePageRef] = []


class TreePageRef(StoredRecord, frozen=True, gc=False):
    last: bytes  # greatest name in the page
    oid: bytes
    cid: bytes


class Layer(StoredRecord, frozen=True):
    """What changed on one host mount: a delta tree whose entries may carry flags."""

    mount: bytes
    root: TreeEntry
    links: bytes = b""


class System(StoredRecord, frozen=True):
    """Changes outside the workspace, against a base whose fingerprint must match to apply them."""

    base: str
    layers: list[Layer] = []


class Image(StoredRecord, frozen=True):
    """A frozen machine. No host path enters it: `root` is the workspace with the name b"".

    `links` is the Oid of META list[list[path]], the hardlink groups: each sorted, the list sorted.
    """

    root: TreeEntry
    links: bytes = b""
    system: System | None = None
    env: dict[str, str | None] = {}  # only what differs from the opening environment; None: unset
    cwd: str = ""  # relative to the workspace
    services: bytes = b""  # Oid of META list[Service]: to start where processes are lost
    processes: bytes = b""  # Oid of Processes, b"" for none


class PageMap(StoredRecord, frozen=True):
    """Memory pages, in the order of their file.

    `children` is a run of 32-byte Oids, none of them twice: of blobs at level 0, of PageMaps one
    level lower above. An extent is (number of a child, first page in it, pages); the number -1
    stands for pages of zeros, and above level 0 an extent is all of its child.
    """

    level: int
    pages: int
    children: bytes
    extents: list[tuple[int, int, int]]


class Processes(StoredRecord, frozen=True):
    """Running processes, as the images an engine made of them, and the host it was on.

    `files` are (name, size, Oid of its blob or Blocks, b"" when empty) and `memory` the files that
    are made of pages, (name, Oid of its PageMap, b"" when empty); both sorted, no name twice.
    """

    engine: str
    version: str  # of the engine's program
    kernel: str  # its release
    arch: str
    page_size: int
    cpu: list[str]  # features of the processor that a program can see, sorted
    files: list[tuple[str, int, bytes]]
    memory: list[tuple[str, bytes]] = []
    covers: list[Layer] = []  # files outside of workspace and system that belong to the processes
    jobs: bytes = b""  # canonical bytes of the machine layer: what a restore report tells of them


class EventHeader(StoredRecord, frozen=True, gc=False):
    """What is chained of an event. `seal` commits to salt and body without telling them."""

    seq: int
    kind: str
    time: int
    actor: str
    seal: bytes
    prev: bytes  # hash of the event before, b"" for the first of a family


class Bodies(StoredRecord, frozen=True):
    """(salt, body) of each event of a segment; what is erased is in neither."""

    items: list[tuple[bytes, bytes]]


class JournalSegment(StoredRecord, frozen=True):
    """Events of one timeline, sealed by a commit, and the segment before them.

    `refs` are the objects that their bodies name: an artifact lives as long as its event.
    """

    timeline: bytes
    heads: list[bytes]
    bodies: Oid
    before: bytes = b""
    refs: list[tuple[bytes, int]] = []


class JournalHead(StoredRecord, frozen=True):
    """All that a mind has been through: the last segment, and what it adds up to."""

    segment: bytes
    seq: int
    hash: bytes  # of the last event
    fold: bytes


class Fold(StoredRecord, frozen=True):
    """A mind as a fold of its events: small things in `core`, the rest in maps that share pages.

    `core` is canonical bytes of the journal layer's own record; `maps` are (name, root of a map).
    """

    core: bytes
    maps: list[tuple[str, bytes]] = []


class Memory(StoredRecord, frozen=True):
    """What an agent shares with others, as far as it knew it: (scope, Oid of its Journal), sorted.

    A scope is "agent:NAME", "user:…" or "project:…", with a timeline and a mind of its own.
    """

    scopes: list[tuple[str, bytes]]


class State(StoredRecord, frozen=True):
    """The whole agent. Its hash is `c.state`."""

    journal: bytes = b""
    memory: bytes = b""  # Oid of a Memory, b"" where nothing is shared
    machine: bytes = b""  # Oid of an Image, b"" for none


class Commit(StoredRecord, frozen=True):
    """A state with its place in history."""

    state: Oid
    parents: list[Oid]
    message: str
    time: int
    author: str
