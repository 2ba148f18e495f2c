"""Catalog of a server, over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from typing import Any, cast

import msgspec

from ortet.backends.base import (
    Append,
    Catalog,
    Claim,
    EventRow,
    Head,
    Lease,
    Move,
    Op,
    Row,
    RowChange,
    Timeline,
)
from ortet.backends.keys import check_limit, check_name
from ortet.backends.remote.client import Link
from ortet.backends.remote.protocol import (
    DONE,
    EPOCH,
    HEAVY,
    NOTED,
    REQUEST,
    TIME,
    VERSION,
    Hello,
    method,
    pack,
    unpack,
)
from ortet.backends.sweep_epoch import Epochs
from ortet.errors import Conflict, Refused, Unavailable, Unsupported
from ortet.ids import Clock, Random, SystemClock, uuid7

_SKEW = 1_000_000_000
"""Clocks that differ by less are taken for one, or a lease would end elsewhere at each look."""
_LONG = 3600.0
_MANY = 32


class HttpCatalog(Catalog):
    """The rows of the store that a server gives to whoever has its token.

    Times are the server's, but for the end of leases, which is told on the clock given here. No
    write is done twice, whatever breaks: those that must not be have an id that the server notes
    in the same transaction.
    """

    def __init__(
        self, link: Link, clock: Clock | None = None, *, random: Random = os.urandom
    ) -> None:
        self._link = link
        self._clock = clock or SystemClock()
        self._random = random
        self._skew = 0
        self._done: list[str] = []  # requests whose answer has come: the server may forget them
        self._lock = Lock()
        self.epochs = Epochs(lambda: self.hello().epoch)

    def hello(self) -> Hello:
        """What the server says of itself and of the store."""
        answer = self._link.call("GET", "/raw/hello")
        hello = cast(Hello, self._read(Hello, answer.body))
        if hello.version > VERSION:
            raise Unsupported(
                "newer_server",
                f"{self._link.url} speaks version {hello.version}, we {VERSION}: upgrade ortet",
            )
        return hello

    # heads

    def head(self, name: str) -> Head | None:
        return cast(Head | None, self._ask("head", name=check_name(name)))

    def heads(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[Head]:
        values = {"prefix": prefix, "after": after, "limit": check_limit(limit)}
        return cast(list[Head], self._ask("heads", **values))

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
        claims: Sequence[Claim] = (),
    ) -> list[Lease]:
        found = self._ask(
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
        return [self._ours(lease) for lease in cast(list[Lease], found)]

    # operation log

    def ops(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[Op]:
        if name is not None:
            check_name(name)
        return cast(list[Op], self._ask("ops", name=name, after=after, limit=check_limit(limit)))

    def last_op(self) -> int:
        return cast(int, self._ask("last_op"))

    def trim_ops(self, before_time: int) -> int:
        return cast(int, self._ask("trim_ops", before_time=before_time))

    # leases

    def acquire(self, name: str, owner: str, ttl_ns: int) -> Lease:
        return self._ours(self._ask("acquire", name=check_name(name), owner=owner, ttl_ns=ttl_ns))

    def extend(self, lease: Lease, ttl_ns: int) -> Lease:
        return self._ours(self._ask("extend", lease=lease, ttl_ns=ttl_ns))

    def release(self, lease: Lease) -> None:
        self._ask("release", lease=lease)

    def seize(self, lease: Lease) -> None:
        self._ask("seize", lease=lease)

    def lease(self, name: str) -> Lease | None:
        found = self._ask("lease", name=check_name(name))
        return self._ours(found) if found else None

    # records

    def row(self, kind: str, key: str) -> Row | None:
        return cast(Row | None, self._ask("row", kind=check_name(kind), key=check_name(key)))

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[Row]:
        values = {"kind": check_name(kind), "after": after, "limit": check_limit(limit)}
        return cast(list[Row], self._ask("rows", **values))

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> Row:
        check_name(kind), check_name(key)
        return cast(Row, self._ask("put_row", kind=kind, key=key, value=value, expect=expect))

    def drop_row(self, kind: str, key: str) -> None:
        self._ask("drop_row", kind=check_name(kind), key=check_name(key))

    def scrub(self) -> None:
        self._ask("scrub")

    def reclaim(self) -> None:
        self._ask("reclaim")

    def check(self) -> list[str]:
        return cast(list[str], self._ask("check"))

    def close(self) -> None:
        self._link.close()

    # timelines

    def timeline(self, id_: str) -> Timeline | None:
        return cast(Timeline | None, self._ask("timeline", id_=id_))

    def children(self, id_: str, after: str = "", limit: int = 1000) -> list[Timeline]:
        return cast(list[Timeline], self._ask("children", id_=id_, after=after, limit=limit))

    def append(
        self,
        timeline: str,
        events: Sequence[EventRow],
        *,
        lease: Lease | None = None,
        rows: Sequence[RowChange] = (),
    ) -> None:
        self._ask("append", timeline=timeline, events=events, lease=lease, rows=rows)

    def events(
        self, timeline: str, after: int = 0, limit: int = 1000, *, newest: bool = False
    ) -> list[EventRow]:
        values = {"timeline": timeline, "after": after, "limit": limit, "newest": newest}
        return cast(list[EventRow], self._ask("events", **values))

    def last_seq(self, timeline: str) -> int:
        return cast(int, self._ask("last_seq", timeline=timeline))

    def trim_events(self, timeline: str, upto: int) -> int:
        return cast(int, self._ask("trim_events", timeline=timeline, upto=upto))

    def erase_events(self, timeline: str, seqs: Sequence[int]) -> int:
        return cast(int, self._ask("erase_events", timeline=timeline, seqs=seqs))

    def drop_timeline(self, timeline: str) -> None:
        self._ask("drop_timeline", timeline=timeline)

    # inside

    def _ask(self, name: str, /, **values: Any) -> Any:
        shape = method(name)
        headers: dict[str, str] = {}
        told: list[str] = []
        noted = name in NOTED and not values.get("events")  # an append is known by its events
        if noted:
            headers, told = self._note()
        epoch = self.epochs.relied() if name in NOTED else None
        if epoch is not None:
            headers[EPOCH] = str(epoch)
        try:
            answer = self._link.call(
                "POST",
                f"/raw/catalog/{name}",
                pack(shape.args(**values)),
                headers=headers,
                timeout=_LONG if name in HEAVY else None,
            )
        except Refused as error:
            if error.kind == "lease_held" and "expires" in error.details:
                error.details["expires"] -= self._skew
            raise
        except Conflict as error:
            if error.kind == "swept":
                self.epochs.hear(error.details["epoch"])
            raise
        self._hear(answer.headers)
        if noted:
            self._settle(headers[REQUEST], told)
        return self._read(shape.answer, answer.body)

    def _note(self) -> tuple[dict[str, str], list[str]]:
        """Headers of a write that is done once, and the ids that the server may forget with it."""
        with self._lock:
            told = self._done[:_MANY]
        headers = {REQUEST: uuid7(self._clock, self._random)}
        if told:
            headers[DONE] = ",".join(told)
        return headers, told

    def _settle(self, request: str, told: Sequence[str]) -> None:
        with self._lock:
            self._done = [one for one in self._done if one not in told] + [request]
            del self._done[: -4 * _MANY]  # what is left out goes when it is old

    def _hear(self, headers: Any) -> None:
        epoch, now = headers.get(EPOCH), headers.get(TIME)
        if epoch is not None:
            self.epochs.hear(int(epoch))
        if now is not None:
            skew = int(now) - self._clock.now_ns()
            if abs(skew - self._skew) > _SKEW:
                self._skew = skew if abs(skew) > _SKEW else 0

    def _ours(self, lease: Lease) -> Lease:
        """With its end on our clock, where its holder looks; the server looks at its own row."""
        if not self._skew:
            return lease
        return msgspec.structs.replace(lease, expires=lease.expires - self._skew)

    def _read(self, type_: Any, body: bytes) -> Any:
        try:
            return unpack(type_, body)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise Unavailable(
                "bad_answer",
                f"{self._link.url} answered what cannot be read ({error}): check the address, and "
                "that both sides have the same release of ortet",
            ) from error
