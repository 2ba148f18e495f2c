"""The records that are hashed.

Field positions are the format: append fields, never reorder them.
"""

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
    """Marks of entries in a delta tree (a machine's system delta).

    A workspace tree never has them.
    """

    NONE = 0
    WHITEOUT = 1  # the name is deleted from the layer below
    OPAQUE = 2  # the directory hides the same directory of the layer below


class TreeEntry(StoredRecord, frozen=True, gc=False):
    """One name in a directory, with all its metadata.

    `data` depends on the type. For a file it is the Oid of its blob or Blocks (b"" if empty). For a
    directory it is the Oid of its tree. For a symlink it is the target.
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
        """Type, executable bit and data: what "same content" means.

        Times, owners and xattrs are not part of the content.
        """
        kind = stat.S_IFMT(self.mode)
        if self.is_dir:
            return kind, self.cid
        return kind | (self.mode & 0o100 if self.is_file else 0), self.data


class TreePage(StoredRecord, frozen=True):
    """A page of a directory: `entries` at level 0, `pages` above.

    history/tree/tree.py decides where a directory is split into pages.
    """

    level: int
    entries: list[TreeEntry] = []
    pages: list[TreePageRef] = []


class TreePageRef(StoredRecord, frozen=True, gc=False):
    """A reference to a page one level lower."""

    last: bytes  # greatest name in the page
    oid: bytes
    cid: bytes


class Layer(StoredRecord, frozen=True):
    """The changes on one host mount: a delta tree whose entries may have flags."""

    mount: bytes
    root: TreeEntry
    links: bytes = b""


class System(StoredRecord, frozen=True):
    """Changes outside the workspace. They apply only to a base with the same fingerprint."""

    base: str
    layers: list[Layer] = []


class Image(StoredRecord, frozen=True):
    """A machine snapshot. It contains no host path: `root` is the workspace, with the name b"".

    `links` is the Oid of META list[list[path]], the hardlink groups. Each group and the list are
    sorted.
    """

    root: TreeEntry
    links: bytes = b""
    system: System | None = None
    env: dict[str, str | None] = {}  # only differences from the environment at open; None: unset
    cwd: str = ""  # relative to the workspace
    services: bytes = b""  # Oid of META list[Service], started if processes are lost
    processes: bytes = b""  # Oid of Processes, b"" for none


class PageMap(StoredRecord, frozen=True):
    """Memory pages, in the order of their file.

    `children` is a concatenation of distinct 32-byte Oids. They name blobs at level 0, and PageMaps
    of the next lower level above. An extent is (number of a child, first page in it, number of
    pages). The number -1 means pages of zeros. Above level 0, an extent covers its whole child.
    """

    level: int
    pages: int
    children: bytes
    extents: list[tuple[int, int, int]]


class Processes(StoredRecord, frozen=True):
    """Running processes, as an engine's image files, and facts about the host.

    `files` are (name, size, Oid of its blob or Blocks, b"" if empty). `memory` are the files that
    consist of pages: (name, Oid of its PageMap, b"" if empty). Both are sorted, and names are
    unique.
    """

    engine: str
    version: str  # of the engine's program
    kernel: str  # its release
    arch: str
    page_size: int
    cpu: list[str]  # CPU features visible to programs, sorted
    files: list[tuple[str, int, bytes]]
    memory: list[tuple[str, bytes]] = []
    covers: list[Layer] = []  # files outside of workspace and system that belong to the processes
    jobs: bytes = b""  # canonical bytes of the machine layer, for restore reports


class EventHeader(StoredRecord, frozen=True, gc=False):
    """The part of an event that is in the hash chain.

    `seal` is a commitment to salt and body that does not reveal them.
    """

    seq: int
    kind: str
    time: int
    actor: str
    seal: bytes
    prev: bytes  # hash of the previous event, b"" for the first of a family


class Bodies(StoredRecord, frozen=True):
    """(salt, body) of each event of a segment. Both are empty for an erased event."""

    items: list[tuple[bytes, bytes]]


class JournalSegment(StoredRecord, frozen=True):
    """Events of one timeline that a commit sealed, and the previous segment.

    `refs` are the objects that the event bodies name. An artifact lives as long as its event.
    """

    timeline: bytes
    heads: list[bytes]
    bodies: Oid
    before: bytes = b""
    refs: list[tuple[bytes, int]] = []


class JournalHead(StoredRecord, frozen=True):
    """The end of a journal: the last segment, and the state that all events fold to."""

    segment: bytes
    seq: int
    hash: bytes  # of the last event
    fold: bytes


class Fold(StoredRecord, frozen=True):
    """A session state as a fold of its events: small values in `core`, the rest in paged maps.

    `core` is the canonical bytes of the journal layer's own record. `maps` are (name, root of a
    map).
    """

    core: bytes
    maps: list[tuple[str, bytes]] = []


class Memory(StoredRecord, frozen=True):
    """The shared memory that an agent knew: (scope, Oid of its JournalHead), sorted.

    A scope is "agent:NAME", "user:…" or "project:…". It has its own timeline and state.
    """

    scopes: list[tuple[str, bytes]]


class State(StoredRecord, frozen=True):
    """The whole state of an agent. Its hash is `c.state`."""

    journal: bytes = b""
    memory: bytes = b""  # Oid of a Memory, b"" if nothing is shared
    machine: bytes = b""  # Oid of an Image, b"" for none


class Commit(StoredRecord, frozen=True):
    """A state with its position in history."""

    state: Oid
    parents: list[Oid]
    message: str
    time: int
    author: str
