"""Tenants: each has a store of its own, so nothing of one can be found, listed or told in another.

The first, without a name, is the store that the server was started with; the others lie in its
directory `tenants`, or beside it in the same database and bucket.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from ortet._util.codec import checksum
from ortet.config.open_shared_store import address_of, is_shared, with_query
from ortet.config.settings import Serve
from ortet.errors import Invalid, Unavailable
from ortet.hub.hub import Hub
from ortet.server.middleware.idempotency import forget_keys
from ortet.server.session_pool.pool import Rooms
from ortet.server.session_pool.slots import Told

PLACE = "tenants"
_LONGEST = 63
"""Bytes of a name in PostgreSQL, which cuts off the rest."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")

OpenHub = Callable[[str, bool], Hub]
"""Opens the store at a place; makes it, if the second says so."""


def check_tenant(name: str) -> str:
    if name and not _NAME.match(name):
        raise Invalid("bad_tenant", f"{name!r}: give small letters, digits and hyphens, 63 at most")
    return name


def store_of(root: str, tenant: str) -> str:
    """Where the store of a tenant is."""
    if not tenant:
        return root
    if is_shared(root):
        return _beside(root, check_tenant(tenant))
    return str(Path(root) / PLACE / check_tenant(tenant))


def _beside(url: str, name: str) -> str:
    """The address of a store of its own beside this one: another schema, a folder of the bucket."""
    address, parts = address_of(url), urlsplit(url)
    schema = f"{address.schema}.{name}"
    if len(schema.encode()) > _LONGEST:
        schema = f"{address.schema[:20]}.{checksum(schema.encode()).hex()[:32]}"
    bucket = urlsplit(address.bucket)
    folder = f"{bucket.path.rstrip('/')}/{PLACE}/{name}"
    ours = {"schema": schema, "bucket": urlunsplit(bucket._replace(path=folder))}
    kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in ours]
    query = urlencode([*kept, *ours.items()], quote_via=quote, safe="/")
    return with_query(parts, query)


class Tenants:
    """The stores that a server has open."""

    def __init__(self, root: str, open_hub: OpenHub, settings: Serve, told: Told) -> None:
        self._root = root
        self._open_hub = open_hub
        self._settings = settings
        self._told = told
        self._open: dict[str, Rooms] = {}
        self._lock = Lock()
        self._closed = False

    def rooms(self, tenant: str) -> Rooms:
        """Opened at its first request."""
        found = self._open.get(tenant)
        if found is not None:
            return found
        with self._lock:
            if self._closed:
                raise Unavailable("stopping", "this server is stopping: ask another, or try again")
            if tenant not in self._open:
                self._open[tenant] = self._rooms_at(store_of(self._root, tenant))
            return self._open[tenant]

    def _rooms_at(self, place: str) -> Rooms:
        settings = self._settings
        rooms = Rooms(
            lambda: self._open_hub(place, True),
            most=settings.sessions,
            linger=settings.linger,
            patience=settings.patience,
            told=self._told,
        )
        rooms.drives.ray = settings.ray
        with rooms.hub() as hub:
            forget_keys(hub)
        return rooms

    def open(self) -> dict[str, Rooms]:
        with self._lock:
            return dict(self._open)

    def forget_keys(self) -> int:
        """Of all stores that are open: idempotency keys that are too old."""
        count = 0
        for rooms in self.open().values():
            with rooms.hub() as hub:
                count += forget_keys(hub)
        return count

    def close(self, patience: float) -> int:
        """Let every session go, those that are busy within `patience` seconds; how many would
        not."""
        until = time.monotonic() + patience
        with self._lock:
            self._closed = True
            stores, self._open = list(self._open.values()), {}
        return sum(rooms.close(max(0.0, until - time.monotonic())) for rooms in stores)
