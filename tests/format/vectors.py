"""The values whose encodings docs/format.md publishes."""

from __future__ import annotations

from ortet._util.codec import Hasher, encode
from ortet.history.records import (
    Bodies,
    Commit,
    EventHeader,
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
    TreePageRef,
)
from ortet.ids import Oid
from ortet.journal.events import EventBody
from ortet.objects.blobs import Blocks

HASH = Hasher().oid
BLOB = b"hello\n"
FILE = TreeEntry(b"hello.txt", 0o100644, 1_700_000_000_123_456_789, 1000, 1000, 6, HASH(BLOB))
LINK = TreeEntry(b"link\xff", 0o120777, -1, data=b"../hello.txt")
PAGE = TreePage(0, [FILE, LINK])
CONTENT = [
    (FILE.name, 0o100000, FILE.data),
    (LINK.name, 0o120000, LINK.data),
]
ROOT = TreeEntry(
    b"", 0o040755, 2**63 + 5, data=HASH(encode(PAGE)), cid=HASH(encode(CONTENT)), gid=7
)
IMAGE = Image(ROOT, env={"LANG": "C", "EDITOR": None}, cwd="src")
STATE = State(machine=HASH(encode(IMAGE)))
COMMIT = Commit(HASH(encode(STATE)), [Oid(bytes(32))], "first ✓", 1_700_000_001_000_000_000, "me")

PAGES = PageMap(0, 36, HASH(bytes(4096)) + HASH(BLOB), [(0, 0, 1), (-1, 0, 32), (1, 2, 3)])
ABOVE = PageMap(1, 36, HASH(encode(PAGES)), [(0, 0, 36)])
PROCESSES = Processes(
    "criu",
    "4.2.1",
    "6.18.1",
    "x86_64",
    4096,
    ["avx2", "sse2"],
    [("core-1.img", 6, HASH(BLOB)), ("fs-1.img", 0, b"")],
    [("pages-1.img", HASH(encode(ABOVE)))],
    [Layer(b"/run", ROOT)],
    b"\x90",
)

SALT, BODY = bytes(range(16)), encode(EventBody({"content": "hello", "role": "user"}))
HEADER = EventHeader(1, "message", 1_700_000_000_000_000_000, "me", HASH(SALT + BODY), b"")
BODIES = Bodies([(SALT, BODY)])
SEGMENT = JournalSegment(bytes(15) + b"\1", [encode(HEADER)], HASH(encode(BODIES)))
FOLD = Fold(b"\x80", [("facts", HASH(encode(TreePage(0))))])
JOURNAL = JournalHead(HASH(encode(SEGMENT)), 1, HASH(encode(HEADER)), HASH(encode(FOLD)))
MEMORY = Memory([("agent:default", HASH(encode(JOURNAL))), ("user:ann", HASH(b""))])

VECTORS: dict[str, bytes] = {
    "blob": BLOB,
    "blocks": encode(Blocks(0, 131_073, HASH(bytes(131_072)) + HASH(b"\0"))),
    "page": encode(PAGE),
    "content": encode(CONTENT),
    "upper": encode(
        TreePage(1, [], [TreePageRef(b"link\xff", HASH(encode(PAGE)), HASH(encode(CONTENT)))])
    ),
    "empty": encode(TreePage(0)),
    "xattrs": encode([(b"user.a", b"1")]),
    "image": encode(IMAGE),
    "pages": encode(PAGES),
    "above": encode(ABOVE),
    "processes": encode(PROCESSES),
    "state": encode(STATE),
    "commit": encode(COMMIT),
    "header": encode(HEADER),
    "body": BODY,
    "bodies": encode(BODIES),
    "segment": encode(SEGMENT),
    "fold": encode(FOLD),
    "journal": encode(JOURNAL),
    "memory": encode(MEMORY),
}


def published() -> str:
    """The block of docs/format.md."""
    lines: list[str] = []
    for name, data in VECTORS.items():
        lines += [f"{name}", f"  bytes {data.hex()}", f"  oid   {HASH(data).hex()}"]
    return "\n".join(lines)
