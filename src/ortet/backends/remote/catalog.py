"""The Catalog of a server over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from typing import Any, cast

import msgspec

from ortet.backends.base import (
    Append,
    Catalog,
    CatalogRow,
    EventRow,
    Head,
    Lease,
    LeaseClaim,
    Move,
    Op,
    RowChange,
    Timeline,
)
from ortet.backends.keys import check_limit, check_name
from ortet.backends.remote.client import RemoteClient
from ortet.backends.remote.protocol import (
    DONE_HEADER,
    EPOCH_HEADER,
    ONCE_ONLY_WRITES,
    PROTOCOL_VERSION,
    REQUEST_HEADER,
    SLOW_WRITES,
    TIME_HEADER,
    Hello,
    method_schema,
    pack,
    unpack,
)
from ortet.backends.sweep_epoch import EpochTracker
from ortet.errors import Conflict, Refused, Unavailable, Unsupported
from ortet.ids import Clock, Random, SystemClock, uuid7

_IGNORED_SKEW_NS = 1_000_000_000
"""Smaller clock differences are ignored.

Otherwise a lease would seem to end at another time with each call.
"""
_EVENTS_PER_QUERY_COST = 100
"""Reading this many unwanted events costs as much as one additional query."""
_SLOW_TIMEOUT_SECONDS = 3600.0
_DONE_IDS_PER_REQUEST = 32


class HttpCatalog(Catalog):
    """The catalog of a store behind a server, for clients with its token.

    Times are those of the server, except lease expiry, which is converted to the local clock. No
    write is applied twice, whatever breaks. A write that must not be repeated has a request id,
    which the server records in the same transaction.
    """

    def __init__(
        self, client: RemoteClient, clock: Clock | None = None, *, random: Random = os.urandom
    ) -> None:
        self._client = client
        self._clock = clock or SystemClock()
        self._random = random
        self._skew = 0
        self._done_requests: list[str] = []  # answered requests, which the server may forget
        self._lock = Lock()
        self.epochs = EpochTracker(lambda: self.hello().epoch)

    def hello(self) -> Hello:
        """Return the server's description of itself and of the store."""
        answer = self._client.call("GET", "/raw/hello")
        hello = cast(Hello, self._read(Hello, answer.body))
        if hello.version > PROTOCOL_VERSION:
            raise Unsupported(
                "newer_server",
                f"{self._client.url} speaks version {hello.version}, we {PROTOCOL_VERSION}: "
                "upgrade ortet",
            )
        return hello

    # heads

    def head(self, name: str) -> Head | None:
        return cast(Head | None, self._call("head", name=check_name(name)))

    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        values = {"prefix": prefix, "after": after, "limit": check_limit(limit)}
        return cast(list[Head], self._call("heads", **values))

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
        leases = self._call(
            "move",
            moves=moves,
            verb=verb,
            actor=actor,
            detail=detail,
            lease=lease,
            rows=rows,
            timelines=timelines,
            appends=appends,
            claims=claims,
        )
        return [self._to_local_lease(lease) for lease in cast(list[Lease], leases)]

    # operation log

    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        if name is not None:
            check_name(name)
        return cast(list[Op], self._call("ops", name=name, after=after, limit=check_limit(limit)))

    def last_op(self) -> int:
        return cast(int, self._call("last_op"))

    def trim_ops(self, before_time: int) -> int:
        return cast(int, self._call("trim_ops", before_time=before_time))

    # leases

    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        return self._to_local_lease(
            self._call("acquire", name=check_name(name), owner=owner, ttl_ns=ttl_ns)
        )

    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        return self._to_local_lease(self._call("extend", lease=lease, ttl_ns=ttl_ns))

    def release(self, lease: Lease) -> None:
        self._call("release", lease=lease)

    def seize(self, lease: Lease) -> None:
        self._call("seize", lease=lease)

    def lease(self, name: str) -> Lease | None:
        lease = self._call("lease", name=check_name(name))
        return self._to_local_lease(lease) if lease else None

    # records

    def row(self, kind: str, key: str) -> CatalogRow | None:
        return cast(
            CatalogRow | None, self._call("row", kind=check_name(kind), key=check_name(key))
        )

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[CatalogRow]:
        values = {"kind": check_name(kind), "after": after, "limit": check_limit(limit)}
        return cast(list[CatalogRow], self._call("rows", **values))

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        check_name(kind), check_name(key)
        return cast(
            CatalogRow, self._call("put_row", kind=kind, key=key, value=value, expect=expect)
        )

    def drop_row(self, kind: str, key: str) -> None:
        self._call("drop_row", kind=check_name(kind), key=check_name(key))

    def scrub(self) -> None:
        self._call("scrub")

    def reclaim(self) -> None:
        self._call("reclaim")

    def check(self) -> list[str]:
        return cast(list[str], self._call("check"))

    def close(self) -> None:
        self._client.close()

    # timelines

    def timeline(self, id_: str) -> Timeline | None:
        return cast(Timeline | None, self._call("timeline", id_=id_))

    def timelines(self, ids: Sequence[str]) -> list[Timeline]:
        timelines = (self.timeline(id_) for id_ in ids)
        return [one for one in timelines if one is not None]

    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        return cast(list[Timeline], self._call("children", id_=id_, after=after, limit=limit))

    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        self._call("append", timeline=timeline, events=events, lease=lease, rows=rows)

    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        values = {"timeline": timeline, "after": after, "limit": limit, "newest": newest}
        return cast(list[EventRow], self._call("events", **values))

    def events_by_seq(self, timeline: str, seqs: Sequence[int]) -> list[EventRow]:
        events, wanted = list[EventRow](), set(seqs)
        after, last = (seqs[0] - 1, seqs[-1]) if seqs else (0, 0)
        # few events, far apart: one query each
        if len(seqs) * _EVENTS_PER_QUERY_COST < last - after:
            asked = ((seq, self.events(timeline, seq - 1, 1)) for seq in seqs)
            return [row for seq, rows in asked for row in rows if row.seq == seq]
        while after < last and (rows := self.events(timeline, after, min(1000, last - after))):
            events += [row for row in rows if row.seq in wanted]
            after = rows[-1].seq
        return events

    def last_seq(self, timeline: str) -> int:
        return cast(int, self._call("last_seq", timeline=timeline))

    def last_heads(self, timelines: Sequence[str]) -> list[bytes]:
        ends = (self.events(one, limit=1, newest=True) for one in timelines)
        return [found[-1].head if found else b"" for found in ends]

    def trim_events(self, timeline: str, upto: int) -> int:
        return cast(int, self._call("trim_events", timeline=timeline, upto=upto))

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        return cast(int, self._call("erase_events", timeline=timeline, seqs=seqs))

    def drop_timeline(self, timeline: str) -> None:
        self._call("drop_timeline", timeline=timeline)

    def _call(self, name: str, /, **values: Any) -> Any:
        shape = method_schema(name)
        headers: dict[str, str] = {}
        reported: list[str] = []
        noted = name in ONCE_ONLY_WRITES and not values.get(
            "events"
        )  # a repeated append is recognised by its events
        if noted:
            headers, reported = self._request_headers()
        epoch = self.epochs.write_epoch() if name in ONCE_ONLY_WRITES else None
        if epoch is not None:
            headers[EPOCH_HEADER] = str(epoch)
        try:
            answer = self._client.call(
                "POST",
                f"/raw/catalog/{name}",
                pack(shape.args_type(**values)),
                headers=headers,
                timeout=_SLOW_TIMEOUT_SECONDS if name in SLOW_WRITES else None,
            )
        except Refused as error:
            if error.kind == "lease_held" and "expires" in error.details:
                error.details["expires"] -= self._skew
            raise
        except Conflict as error:
            if error.kind == "swept":
                self.epochs.observe(error.details["epoch"])
            raise
        self._observe_headers(answer.headers)
        if noted:
            self._acknowledge(headers[REQUEST_HEADER], reported)
        return self._read(shape.result_type, answer.body)

    def _request_headers(self) -> tuple[dict[str, str], list[str]]:
        """Return the headers of a write that must run once, and the acknowledged request ids."""
        with self._lock:
            done = self._done_requests[:_DONE_IDS_PER_REQUEST]
        headers = {REQUEST_HEADER: uuid7(self._clock, self._random)}
        if done:
            headers[DONE_HEADER] = ",".join(done)
        return headers, done

    def _acknowledge(self, request: str, acknowledged: Sequence[str]) -> None:
        with self._lock:
            self._done_requests = [
                one for one in self._done_requests if one not in acknowledged
            ] + [request]
            del self._done_requests[
                : -4 * _DONE_IDS_PER_REQUEST
            ]  # the server forgets the others by age

    def _observe_headers(self, headers: Any) -> None:
        epoch, now = headers.get(EPOCH_HEADER), headers.get(TIME_HEADER)
        if epoch is not None:
            self.epochs.observe(int(epoch))
        if now is not None:
            skew = int(now) - self._clock.now_ns()
            if abs(skew - self._skew) > _IGNORED_SKEW_NS:
                self._skew = skew if abs(skew) > _IGNORED_SKEW_NS else 0

    def _to_local_lease(self, lease: Lease) -> Lease:
        """Return the lease with its expiry on the local clock, which its holder compares.

        The server compares its own row.
        """
        if not self._skew:
            return lease
        return msgspec.structs.replace(lease, expires=lease.expires - self._skew)

    def _read(self, type_: Any, body: bytes) -> Any:
        try:
            return unpack(type_, body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Unavailable(
                "bad_answer",
                f"{self._client.url} answered what cannot be read ({error}): check the address, "
                "and "
                "that both sides have the same release of ortet",
            ) from error
