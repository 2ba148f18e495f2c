"""Tenants: each has a store of its own, so nothing of one can be found, listed or told in another.

The first, without a name, is the store that the server was started with; the others lie in its
directory `tenants`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from ortet.errors import Invalid, Unavailable
from ortet.session.hub import Hub
from ortet.surface.http.rooms import Rooms

PLACE = "tenants"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")

OpenHub = Callable[[str, bool], Hub]
"""Opens the store at a place; makes it, if the second says so."""


def check_tenant(name: str) -> str:
    if name and not _NAME.match(name):
        raise Invalid("bad_tenant", f"{name!r}: give small letters, digits and hyphens, 63 at most")
    return name


def store_of(root: str, tenant: str) -> str:
    """Where the store of a tenant is."""
    return str(Path(root) / PLACE / check_tenant(tenant)) if tenant else root


class Tenants:
    """The stores that a server has open."""

    def __init__(self, root: str, open_hub: OpenHub) -> None:
        self._root = root
        self._open_hub = open_hub
        self._open: dict[str, Rooms] = {}
        self._lock = Lock()
        self._closed = False

    def rooms(self, tenant: str) -> Rooms:
        """Opened at its first request."""
        with self._lock:
            if self._closed:
                raise Unavailable("stopping", "this server is stopping: ask another, or try again")
            if tenant not in self._open:
                place = store_of(self._root, tenant)
                self._open[tenant] = Rooms(lambda: self._open_hub(place, True))
            return self._open[tenant]

    def open(self) -> dict[str, Rooms]:
        with self._lock:
            return dict(self._open)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            stores, self._open = list(self._open.values()), {}
        for rooms in stores:
            rooms.close()
