"""Which hosts have promised objects that are still on their own disks: a row each, as long as there
is something."""

from __future__ import annotations

import msgspec

from ortet.backend.abc import Catalog
from ortet.errors import Unavailable
from ortet.ids import Clock, Oid

_KIND = "uploads"


class _Owes(msgspec.Struct, frozen=True):
    host: str
    since: int


class Owing:
    """What this host tells the others of its queue, and they tell it. `key` tells hosts apart,
    `name` is for people."""

    def __init__(self, catalog: Catalog, key: str, *, name: str, clock: Clock) -> None:
        self._catalog = catalog
        self._key = key
        self._name = name
        self._clock = clock

    def tell(self) -> None:
        """Before anything can lead others to what is only here."""
        owes = _Owes(self._name, self._clock.now_ns())
        self._catalog.put_row(_KIND, self._key, msgspec.msgpack.encode(owes))

    def done(self) -> None:
        self._catalog.drop_row(_KIND, self._key)

    def missing(self, oid: Oid) -> Unavailable | None:
        """Why an object that is nowhere may come yet; None when no other host has one to send."""
        rows = self._catalog.rows(_KIND)
        hosts = [
            msgspec.msgpack.decode(row.value, type=_Owes).host
            for row in rows
            if row.key != self._key
        ]
        if not hosts:
            return None
        named = ", ".join(sorted(set(hosts)))
        return Unavailable(
            "not_uploaded_yet",
            f"object {oid.hex()} is not in the bucket, and not everything that was committed on "
            f"{named} is there yet: repeat the call later, or run `ortet commit --durable remote` "
            "there, which waits for it",
            oid=oid.hex(),
            hosts=sorted(set(hosts)),
        )
