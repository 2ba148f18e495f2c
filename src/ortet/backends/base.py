"""The four storage contracts: Bucket (bytes), Catalog (rows), Signal (wake-up hints) and Cache.

The contracts fit S3, PostgreSQL and Valkey: batch operations, byte ranges, no append, no local
paths. All methods are synchronous. Several threads and processes may call them at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ortet.errors import Conflict, NotFound, Unsupported
from ortet.ids import Oid

# The records that a catalog returns and accepts.


class Head(msgspec.Struct, frozen=True):
    """The commit that a branch or tag points to.

    `version` grows by one with every move. A head that is deleted and created again continues above
    its last version.
    """

    name: str
    oid: Oid
    version: int
    time: int


class Move(msgspec.Struct, frozen=True):
    """One compare-and-set of a head.

    `expect` None: the head must not exist. `to` None: delete the head.
    """

    name: str
    expect: Oid | None
    to: Oid | None


class Op(msgspec.Struct, frozen=True):
    """One entry of the operation log. The entries of one `name` are the reflog of that head."""

    seq: int
    time: int
    verb: str
    name: str
    old: Oid | None
    new: Oid | None
    actor: str
    detail: str


class Lease(msgspec.Struct, frozen=True):
    """The right to write under `name` until `expires`. `fence` grows with every new holder."""

    name: str
    owner: str
    fence: int
    expires: int


class LeaseClaim(msgspec.Struct, frozen=True):
    """A request for a lease, as part of a transaction. It fails if the lease is held."""

    name: str
    owner: str
    ttl_ns: int


class CatalogRow(msgspec.Struct, frozen=True):
    """A small versioned record: a workspace, machine, session or hold. `value` is canonical bytes.

    `version` grows by one with every write. A row that is deleted and created again continues above
    its last version.
    """

    kind: str
    key: str
    value: bytes
    version: int


class RowChange(msgspec.Struct, frozen=True):
    """A write to a row, or its deletion if `value` is None.

    `expect` is the version that the row must have; 0: it must not exist; None: any version.
    """

    kind: str
    key: str
    value: bytes | None
    expect: int | None = None


# The event part of the Catalog contract: append-only events in timelines that can fork.


class Timeline(msgspec.Struct, frozen=True):
    """A sequence of events that starts after event `at` of `parent`.

    A timeline without a parent is the root of its family. Ids are 32 hexadecimal digits.
    """

    id: str
    parent: str = ""
    at: int = 0


class EventRow(msgspec.Struct, frozen=True):
    """One event: a hash-chained header, and apart from it salt and body, which can be erased."""

    seq: int
    head: bytes
    salt: bytes
    body: bytes


class Append(msgspec.Struct, frozen=True):
    """Events to append to one timeline."""

    timeline: str
    events: Sequence[EventRow]


class Timelines(ABC):
    """Storage of events. Events of a timeline are numbered without gaps, from `at` + 1.

    A fork shares the events before `at` with its parent. Appended events never change. They can
    only be trimmed, once they are stored elsewhere, and erased.
    """

    @abstractmethod
    def timeline(self, id_: str) -> Timeline | None: ...

    @abstractmethod
    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        """Return the timelines that exist among `ids`."""

    @abstractmethod
    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        """Return the timelines forked from this one, in id order, with ids greater than `after`."""

    @abstractmethod
    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        """Append all events and write all rows, or do nothing.

        Raises:
            Conflict: "seq_taken" with detail found (the last seq) if the first event is not the
                next.
            Refused: "lease_lost", under the conditions of `Catalog.move`.
            NotFound: "no_timeline".
        """

    @abstractmethod
    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        """Return events of the timeline itself, not of its parents, with seq greater than `after`.

        `newest` selects the last `limit` events instead of the first. The result is in order of seq
        either way.
        """

    @abstractmethod
    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        """Return the timeline's own events with the given numbers; missing numbers are left out.

        `seqs` must be in ascending order.
        """

    @abstractmethod
    def last_seq(self, timeline: str) -> int:
        """Return the seq of the last event, or `at` if there is none.

        Raise NotFound("no_timeline").
        """

    @abstractmethod
    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        """Return the header of the last event of each timeline, b"" for one without own events."""

    @abstractmethod
    def trim_events(self, timeline: str, upto: int) -> int:
        """Delete events up to `upto`, which are stored elsewhere. Return how many were deleted.

        The last event always stays.
        """

    @abstractmethod
    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        """Destroy salt and body of these events, also in the database file.

        Return how many of the events had salt or body.
        """

    @abstractmethod
    def drop_timeline(self, timeline: str) -> None:
        """Delete a timeline and its events. Raise Conflict("has_children") if it has forks."""


__all__ = [
    "Append",
    "Bucket",
    "BucketEntry",
    "Cache",
    "Catalog",
    "CatalogRow",
    "EventRow",
    "Head",
    "Lease",
    "LeaseClaim",
    "Move",
    "Op",
    "RowChange",
    "Signal",
    "Timeline",
    "Timelines",
    "UploadBacklog",
]


_ANY_TOPIC = "news"
"""The topic that the default `wait_any` waits on."""
_PROBE_KEY = "ready"
"""A key that is never written. Reading it checks that the bucket answers."""
_POLL_SECONDS = 1.0
"""The longest wait of the default `wait_any`. After it, any topic may have changed."""


class BucketEntry(msgspec.Struct, frozen=True):
    """The key and the size in bytes of one object."""

    key: str
    size: int


class UploadBacklog(msgspec.Struct, frozen=True):
    """Objects that are only on the local disk so far, and the reason if uploads fail."""

    objects: int = 0
    bytes: int = 0
    trouble: str = ""


class Bucket(ABC):
    """Write-once bytes by key. Keys are relative, `/`-separated, [a-z0-9._-] in each part.

    An object becomes visible completely or not at all. It is durable when `put` returns.
    """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Create an object. Raise Conflict("exists") if the key is taken."""

    def put_file(self, key: str, path: Path) -> None:
        """Create an object from a local file, with the contract of `put`.

        The file is consumed: it is moved or deleted.
        """
        self.put(key, path.read_bytes())
        path.unlink()

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes [start, start+length) of an object, fewer at its end.

        Raises:
            NotFound: "no_key" if the object does not exist.
        """

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several (start, length) ranges of one object, in the given order."""
        return [self.get(key, start, length) for start, length in ranges]

    def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return several complete objects; keys that do not exist are left out.

        All objects are in memory at once, so the caller must limit what it asks for.
        """
        objects: dict[str, bytes] = {}
        for key in keys:
            with suppress(NotFound):
                objects[key] = self.get(key)
        return objects

    def put_all(self, objects: Mapping[str, bytes]) -> set[str]:
        """Create several objects, in any order. Return the keys that were taken.

        Objects under taken keys are left unchanged.
        """
        taken: set[str] = set()
        for key, data in objects.items():
            try:
                self.put(key, data)
            except Conflict:
                taken.add(key)
        return taken

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the size of an object in bytes. Raise NotFound("no_key") if it does not exist."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        """Iterate over the objects whose keys start with `prefix`, in key order."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A key that does not exist is not an error."""

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002
        """Return a local file that holds the object and can be mapped into memory.

        None if there is no such file; use `get` then.
        """
        return None

    def check_reachable(self, seconds: float) -> None:  # noqa: ARG002
        """Check with one request that the bucket answers. Raise the error if it does not.

        A bucket on a server raises Unavailable if there is no answer within `seconds`.
        """
        try:
            self.get(_PROBE_KEY)
        except NotFound as error:
            if error.kind != "no_key":
                raise

    def close(self) -> None:  # noqa: B027
        """Release all handles. The bucket must not be used afterwards."""


class Catalog(Timelines):
    """Mutable rows: heads, leases, records, events and the operation log.

    Each method is one atomic, durable transaction. Times come from the clock passed to the
    constructor.
    """

    # heads: names are "branch:NAME" and "tag:NAME"; the caller adds and removes the prefix

    @abstractmethod
    def head(self, name: str) -> Head | None: ...

    @abstractmethod
    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        """Return heads in name order, with names greater than `after`."""

    @abstractmethod
    def move(
        self,
        moves: Sequence[Move],
        *,
        verb: str,
        actor: str = "",
        detail: str = "",
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
        timelines: Sequence[Timeline] = (),
        appends: Sequence[Append] = (),
        claims: Sequence[LeaseClaim] = (),
    ) -> list[Lease]:
        """Apply all changes in one transaction, or none of them.

        The order is: claims, new timelines, events, moves with one Op each, rows.

        Returns:
            The leases that were claimed.

        Raises:
            Conflict: "head_moved" with details name, expect and found if a head is not as expected;
                "row_moved" or "seq_taken" for a row or timeline; "timeline_exists".
            Refused: "lease_lost" if `lease` has expired or is not the newest of its name;
                "lease_held" if a claimed lease is live.
        """

    # operation log

    @abstractmethod
    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        """Return operations, oldest first, with seq greater than `after`.

        With `name`, return only the operations of that head.
        """

    @abstractmethod
    def last_op(self) -> int:
        """Return the newest seq, or 0 if there are no operations."""

    @abstractmethod
    def trim_ops(self, before_time: int) -> int:
        """Delete operations older than `before_time`. Return how many were deleted.

        The newest operation of every head stays, and the newest of all, so that no seq is reused.
        """

    # leases

    @abstractmethod
    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        """Acquire or renew the lease on `name`.

        The current owner keeps its fence. A new owner gets a fence higher than any before. Raise
        Refused("lease_held") with details owner and expires while another owner's lease is live.
        """

    @abstractmethod
    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        """Extend a lease, even an expired one if no other owner has acquired it.

        Raise Refused("lease_lost") if another owner has acquired it.
        """

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """End the lease. It can never be extended or used again. A lost lease is not an error."""

    @abstractmethod
    def seize(self, lease: Lease) -> None:
        """End exactly this lease because its holder is known to be dead.

        It is not an error if the lease no longer exists.
        """

    @abstractmethod
    def lease(self, name: str) -> Lease | None:
        """Return the newest lease on `name`, live or expired, or None if it was released."""

    # records

    @abstractmethod
    def row(self, kind: str, key: str) -> CatalogRow | None: ...

    @abstractmethod
    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[CatalogRow]:
        """Return rows in key order, with keys greater than `after`."""

    @abstractmethod
    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        """Write a row. Raise Conflict("row_moved") if its version is not `expect`.

        `expect` 0 means that the row must not exist; None accepts any version.
        """

    @abstractmethod
    def drop_row(self, kind: str, key: str) -> None:
        """Delete a row. A row that does not exist is not an error."""

    def scrub(self) -> None:
        """Remove deleted and replaced values from the database files. This may take long."""

    def reclaim(self) -> None:
        """Return the space of deleted rows to the file system, where that is worth the time."""

    def check_format(self) -> None:
        """Raise Unsupported("newer_format") if a newer program has upgraded the open catalog."""

    @abstractmethod
    def check(self) -> list[str]:
        """Check the stored rows. Return one text per problem; empty if there is none."""

    def copy_to(self, path: Path) -> None:
        """Write a copy of the catalog, as it is at one moment, to a new file. Leases stay out.

        Raises:
            Unsupported: "remote_store" if the catalog is not a file of this host.
        """
        raise Unsupported(
            "remote_store", f"this catalog is a database: use its own tools, not a copy to {path}"
        )

    def close(self) -> None:
        """Release all handles."""


class Signal(ABC):
    """A hint that something changed under a topic.

    A hint may be lost or repeated, so the listener must always read the catalog.
    """

    @abstractmethod
    def notify(self, topic: str) -> None: ...

    @abstractmethod
    def token(self, topic: str) -> int:
        """Return a position to wait from. Take it, read the catalog, then call `wait`."""

    @abstractmethod
    def wait(self, topic: str, token: int, timeout: float) -> bool:
        """Wait until `topic` is notified after `token`. Return False on timeout."""

    def wait_any(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        """Wait until any topic is notified, so that one listener can serve many topics.

        Args:
            token: The position returned by the call before; None returns the current position at
                once.
            timeout: The longest wait in seconds.

        Returns:
            The next token, and the topics notified since `token`. None instead of the topics means
            that any topic may have been notified.
        """
        if token is not None:
            self.wait(_ANY_TOPIC, token, min(timeout, _POLL_SECONDS))
        return self.token(_ANY_TOPIC), set() if token is None else None

    def with_prefix(self, prefix: str) -> Signal:  # noqa: ARG002
        """Return a signal for topics that start with `prefix`, so that other topics do not wake it.

        The result may be this signal itself. The caller closes it.
        """
        return self

    def close(self) -> None:  # noqa: B027
        """Release all handles."""


class Cache(ABC):
    """Cached bytes by key. A cache may forget any entry at any time.

    Keys are any text without NUL. An unreachable server acts as an empty cache: no method raises,
    and no method waits longer than the saved work would take.
    """

    shared = False
    """True if other processes can read what this process has put."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the newest value of `key`, or None if it was forgotten or has expired."""

    @abstractmethod
    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:
        """Store `value` for at most `ttl_ns`.

        The previous value is never returned again, even if the new one could not be stored.
        """

    @abstractmethod
    def drop(self, prefix: str) -> None:
        """Forget every key that starts with `prefix`. Erasure relies on this method.

        This cache never returns the old values again, even if its server could not be reached.
        """

    def clear(self) -> None:
        """Forget every key."""
        self.drop("")

    def take_token(self, name: str, *, rate: float, burst: float) -> float | None:  # noqa: ARG002
        """Take one token from a rate limit that all users of this cache share.

        Args:
            name: The name of the token bucket.
            rate: How many tokens are added per second.
            burst: How many tokens the bucket holds at most.

        Returns:
            0 if a token was taken, otherwise the seconds until one is available. None if the cache
            is not shared at the moment.
        """
        return None

    def close(self) -> None:  # noqa: B027
        """Release all handles. The cache must not be used afterwards."""
