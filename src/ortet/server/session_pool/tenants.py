"""Tenants of a server. Each has a store of its own, so that no data can leak between them.

The tenant with the empty name uses the store that the server was started with. The stores of others
are in its directory `tenants`, or in other schemas of the same database and folders of the same
bucket.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from ortet._util.codec import checksum
from ortet.config.open_shared_store import is_shared, parse_shared_url, replace_query
from ortet.config.settings import ServeSettings
from ortet.errors import Invalid, Unavailable
from ortet.hub.hub import Hub
from ortet.server.middleware.idempotency import drop_old_keys
from ortet.server.session_pool.pool import SessionPool

TENANTS_FOLDER = "tenants"
_MAX_SCHEMA_BYTES = 63
"""Length limit of a PostgreSQL name; the rest would be cut off."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")

OpenHub = Callable[[str, bool], Hub]
"""Opens the store at a path or URL. Creates it if the second argument is True."""


def check_tenant(name: str) -> str:
    """Return the name, or raise Invalid. The empty name is the default tenant."""
    if name and not _NAME.match(name):
        raise Invalid("bad_tenant", f"{name!r}: give small letters, digits and hyphens, 63 at most")
    return name


def tenant_store(root: str, tenant: str) -> str:
    """Return the path or URL of a tenant's store."""
    if not tenant:
        return root
    if is_shared(root):
        return _tenant_url(root, check_tenant(tenant))
    return str(Path(root) / TENANTS_FOLDER / check_tenant(tenant))


def _tenant_url(url: str, name: str) -> str:
    """Return the URL of a tenant's store: another schema, and a folder of the bucket."""
    address, parts = parse_shared_url(url), urlsplit(url)
    schema = f"{address.schema}.{name}"
    if len(schema.encode()) > _MAX_SCHEMA_BYTES:
        schema = f"{address.schema[:20]}.{checksum(schema.encode()).hex()[:32]}"
    bucket = urlsplit(address.bucket)
    folder = f"{bucket.path.rstrip('/')}/{TENANTS_FOLDER}/{name}"
    ours = {"schema": schema, "bucket": urlunsplit(bucket._replace(path=folder))}
    others = [
        pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in ours
    ]
    query = urlencode([*others, *ours.items()], quote_via=quote, safe="/")
    return replace_query(parts, query)


class Tenants:
    """The session pools of all open stores."""

    def __init__(self, root: str, open_hub: OpenHub, settings: ServeSettings) -> None:
        self._root = root
        self._open_hub = open_hub
        self._settings = settings
        self._pools: dict[str, SessionPool] = {}
        self._lock = Lock()
        self._closed = False

    def session_pool(self, tenant: str) -> SessionPool:
        """Return the pool of a tenant. The first request opens its store."""
        pool = self._pools.get(tenant)
        if pool is not None:
            return pool
        with self._lock:
            if self._closed:
                raise Unavailable(
                    "stopping", "this server is stopping: use another server, or try again"
                )
            if tenant not in self._pools:
                self._pools[tenant] = self._open_pool(tenant_store(self._root, tenant))
            return self._pools[tenant]

    def _open_pool(self, store: str) -> SessionPool:
        settings = self._settings
        pool = SessionPool(
            lambda: self._open_hub(store, True),
            max_sessions=settings.sessions,
            linger=settings.linger,
            patience=settings.patience,
        )
        pool.swarm_jobs.ray_address = settings.ray
        with pool.hub() as hub:
            drop_old_keys(hub)
        return pool

    def open_pools(self) -> dict[str, SessionPool]:
        """Return the pools of all open stores, by tenant."""
        with self._lock:
            return dict(self._pools)

    def drop_old_keys(self) -> int:
        """Delete old idempotency keys in all open stores, and return their number."""
        count = 0
        for pool in self.open_pools().values():
            with pool.hub() as hub:
                count += drop_old_keys(hub)
        return count

    def close(self, timeout: float) -> int:
        """Release every session, waiting for busy ones.

        Returns:
            The number of sessions that were still busy after `timeout` seconds.
        """
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            stores, self._pools = list(self._pools.values()), {}
        return sum(pool.close(max(0.0, until - time.monotonic())) for pool in stores)
