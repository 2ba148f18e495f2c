"""The seams to the outside: Bucket (bytes), Catalog (rows), Signal (wake-up hint), Cache.

Shaped so that S3, PostgreSQL and Valkey fit: batch verbs, ranges, no append, no local paths.
All methods are synchronous and safe to call from several threads and processes at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from ortet.backends.records import CatalogRow, Head, Lease, LeaseClaim, Move, Op, RowChange
from ortet.backends.timelines import Append, EventRow, Timeline, Timelines
from ortet.errors import Conflict, NotFound

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
"""A topic to wait under for what a signal cannot tell by itself."""
_PROBE_KEY = "ready"
"""A key that nobody puts."""
_POLL_SECONDS = 1.0
"""Seconds after which anything may have happened."""


class BucketEntry(msgspec.Struct, frozen=True):
    key: str
    size: int


class UploadBacklog(msgspec.Struct, frozen=True):
    """What is on this disk only, and why, if something is wrong."""

    objects: int = 0
    bytes: int = 0
    trouble: str = ""


class Bucket(ABC):
    """Write-once bytes by key. Keys are relative, `/`-separated, [a-z0-9._-] in each part.

    An object becomes visible whole or not at all, and is durable when `put` returns.
    """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Create; Conflict("exists") if the key is taken."""

    def put_file(self, key: str, path: Path) -> None:
        """Create from a local file, which is consumed (it may be moved). Same contract as put."""
        self.put(key, path.read_bytes())
        path.unlink()

    @abstractmethod
    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes [start, start+length), short at the end of the object; NotFound("no_key")."""

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several (start, length) reads of one object, in order."""
        return [self.get(key, start, length) for start, length in ranges]

    def get_all(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Several objects, whole; those that are not there are left out. All are in memory: the
        caller asks for no more than fits."""
        found: dict[str, bytes] = {}
        for key in keys:
            with suppress(NotFound):
                found[key] = self.get(key)
        return found

    def put_all(self, objects: Mapping[str, bytes]) -> set[str]:
        """Create several, in any order; returns the keys that were taken, and are as they were."""
        taken: set[str] = set()
        for key, data in objects.items():
            try:
                self.put(key, data)
            except Conflict:
                taken.add(key)
        return taken

    @abstractmethod
    def size(self, key: str) -> int:
        """NotFound("no_key") if it is not there."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[BucketEntry]:
        """In key order."""

    @abstractmethod
    def delete(self, keys: Sequence[str]) -> None:
        """Remove; a key that is not there is no error."""

    def local_path(self, key: str) -> Path | None:  # noqa: ARG002
        """Where it can be mapped on this host; None if it cannot or is not there: use get."""
        return None

    def check_reachable(self, seconds: float) -> None:  # noqa: ARG002
        """That it is there, asked once: raises why not, and Unavailable when it has said nothing
        for so long, where it is a server."""
        try:
            self.get(_PROBE_KEY)
        except NotFound as error:
            if error.kind != "no_key":
                raise

    def close(self) -> None:  # noqa: B027
        """Release handles; further calls are undefined."""


class Catalog(Timelines):
    """Rows that move: heads, leases, records, events, and the log of what was done.

    Each method is one atomic, durable transaction. Times come from the clock given at construction.
    """

    # heads: names are "branch:NAME" and "tag:NAME"; the caller makes and takes off the prefix

    @abstractmethod
    def head(self, name: str) -> Head | None: ...

    @abstractmethod
    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        """In name order, names greater than `after`."""

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
        """All of it in this order, or nothing: claims, new timelines, events, moves with one Op
        each, rows. Returns the leases that were claimed.

        Conflict("head_moved") with details name/expect/found when an expectation fails, "row_moved"
        and "seq_taken" likewise, "timeline_exists"; Refused("lease_lost") when `lease` is not the
        newest of its name or has expired, "lease_held" when a claimed one is live.
        """

    # operation log

    @abstractmethod
    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        """Oldest first, seq greater than `after`; of one head when `name` is given."""

    @abstractmethod
    def last_op(self) -> int:
        """The newest seq, 0 when there is none."""

    @abstractmethod
    def trim_ops(self, before_time: int) -> int:
        """Forget ops older than this; returns how many.

        The newest of every head stays, and the newest of all: a seq is never given twice.
        """

    # leases

    @abstractmethod
    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        """The same owner renews and keeps its fence; a new holder gets one higher than any before.

        Refused("lease_held") with details owner/expires while another's is live.
        """

    @abstractmethod
    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        """Refused("lease_lost") if it was taken over; an expired one nobody took is extended."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """Give it up: nobody can extend or use it again. No error if it is already lost."""

    @abstractmethod
    def seize(self, lease: Lease) -> None:
        """End this very lease at once (its holder is known dead); no error if it is gone."""

    @abstractmethod
    def lease(self, name: str) -> Lease | None:
        """The newest lease of this name, live or expired; None when it was given up."""

    # records

    @abstractmethod
    def row(self, kind: str, key: str) -> CatalogRow | None: ...

    @abstractmethod
    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[CatalogRow]:
        """In key order, keys greater than `after`."""

    @abstractmethod
    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        """Write; `expect` is the version that must be there (0: none), else "row_moved"."""

    @abstractmethod
    def drop_row(self, kind: str, key: str) -> None:
        """Delete; a row that is not there is no error."""

    def scrub(self) -> None:
        """Leave nothing in the files of what was deleted or replaced; may take time."""

    def reclaim(self) -> None:
        """Give the room of deleted rows back to the disk, where it is worth the time."""

    def check_format(self) -> None:
        """Unsupported("newer_format") when a newer program has changed it since it was opened."""

    @abstractmethod
    def check(self) -> list[str]:
        """What is wrong with the stored rows, in words; empty when sound."""

    def close(self) -> None:
        """Release handles."""


class Signal(ABC):
    """A hint that something changed under a topic. It may be lost or repeated: never the truth."""

    @abstractmethod
    def notify(self, topic: str) -> None: ...

    @abstractmethod
    def token(self, topic: str) -> int:
        """A mark to wait from: take it, look at the catalog, then wait."""

    @abstractmethod
    def wait(self, topic: str, token: int, timeout: float) -> bool:
        """True as soon as the topic was notified after `token`; False at the time-out."""

    def wait_any(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        """Topics notified after `token`, as soon as there are any or at the time-out, and the token
        to go on from: one listener for any number of topics. None instead of the topics: any may
        have been. Without a token it begins now, at once."""
        if token is not None:
            self.wait(_ANY_TOPIC, token, min(timeout, _POLL_SECONDS))
        return self.token(_ANY_TOPIC), set() if token is None else None

    def with_prefix(self, prefix: str) -> Signal:  # noqa: ARG002
        """One for topics that begin so, for who would be woken by all others in vain. It is closed
        by whoever asked for it; it may be this one itself."""
        return self

    def close(self) -> None:  # noqa: B027
        """Release handles."""


class Cache(ABC):
    """Bytes by key that spare work done before. It may forget anything any time: never the truth.

    Keys are any text without NUL. A server that cannot be reached is a cache that is empty: no
    method raises for it, and nothing waits for it longer than the work would take.
    """

    shared = False
    """Whether other processes find here what this one has put."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """What was put last under this key, whole; None when it was forgotten or its time is up."""

    @abstractmethod
    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:
        """Remember, for `ttl_ns` at most. The value before is not given again, even where this one
        could not be kept."""

    @abstractmethod
    def drop(self, prefix: str) -> None:
        """Forget every key that begins so, for erasure: what was put before is not given again by
        this cache, even where its server could not be told."""

    def clear(self) -> None:
        """Forget everything."""
        self.drop("")

    def take_token(self, name: str, *, rate: float, burst: float) -> float | None:  # noqa: ARG002
        """One drop of a bucket that all who use this cache share: it holds `burst`, and `rate` of
        them come back each second. 0 when there was one, else the seconds until there is; None
        where nobody shares it now."""
        return None

    def close(self) -> None:  # noqa: B027
        """Release handles; further calls are undefined."""
