"""The table of hosts with pending uploads: one catalog row per host."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.backends.base import Catalog
from ortet.errors import Invalid, NotFound, OrtetError, Unavailable
from ortet.ids import Clock, Oid

_KIND = "uploads"
MAX_COMMITS = 100
"""The maximum number of commits in a row; the newest are listed."""


class PendingUploads(msgspec.Struct, frozen=True):
    """A host with pending uploads.

    `since` is in ns since 1970. `commits` lists the commits announced so far; the queue may hold
    more.
    """

    host: str
    since: int
    commits: list[str] = []


class PendingUploadTable:
    """Announces the pending uploads of this host, and reads those of others.

    `key` identifies the host; `name` is its readable name.
    """

    def __init__(self, catalog: Catalog, key: str, *, name: str, clock: Clock) -> None:
        self._catalog = catalog
        self._key = key
        self._name = name
        self._clock = clock
        self._since = 0

    def announce(self, commits: Sequence[str] = ()) -> None:
        """Announce pending uploads, before anything refers to objects that only this host has.

        Called again when the commits are known.
        """
        self._since = self._since or self._clock.now_ns()
        owes = PendingUploads(self._name, self._since, list(commits[-MAX_COMMITS:]))
        self._catalog.put_row(_KIND, self._key, msgspec.msgpack.encode(owes))

    def clear(self) -> None:
        """Remove the announcement of this host: everything is uploaded."""
        self._since = 0
        self._catalog.drop_row(_KIND, self._key)

    def explain_missing(self, oid: Oid) -> Unavailable | None:
        """Return an error that names the hosts that may still upload a missing object, or None."""
        others = [
            owes for key, owes in list_pending_uploads(self._catalog).items() if key != self._key
        ]
        if not others:
            return None
        known = [owes for owes in others if oid.hex() in owes.commits]
        hosts = sorted({owes.host for owes in known or others})
        named = ", ".join(hosts)
        if known:
            what = f"commit {oid.hex()[:12]} was made on {named}, which has not uploaded it yet"
        else:
            what = (
                f"object {oid.hex()} is not in the bucket, and not everything that was committed "
                f"on {named} is there yet"
            )
        return Unavailable(
            "not_uploaded_yet",
            f"{what}: repeat the call later, or run `ortet commit --durable remote` there, which "
            "waits for it; `ortet doctor` tells how to give up a host that is lost",
            oid=oid.hex(),
            hosts=hosts,
        )


def list_pending_uploads(catalog: Catalog) -> dict[str, PendingUploads]:
    """Return every host with pending uploads, by key."""
    pending: dict[str, PendingUploads] = {}
    after = ""
    while rows := catalog.rows(_KIND, after):
        for row in rows:
            pending[row.key] = msgspec.msgpack.decode(
                row.value, type=thread_safe_struct(PendingUploads)
            )
        after = rows[-1].key
    return pending


def abandon_host(catalog: Catalog, host: str) -> list[PendingUploads]:
    """Remove the announcement of a host that will not come back.

    Objects that only its disk held then count as missing. If the host does come back, it continues
    its uploads, and nothing is lost.

    Args:
        catalog: The catalog of the store.
        host: The name of the host, its key, or a prefix of the key.

    Raises:
        NotFound: "no_host" if no such host has pending uploads.
        Invalid: "ambiguous" if several hosts match.
    """
    every = list_pending_uploads(catalog)
    chosen = {key: owes for key, owes in every.items() if owes.host == host}
    chosen = chosen or {key: owes for key, owes in every.items() if host and key.startswith(host)}
    if not chosen:
        raise _no_host(host, every)
    if len(chosen) > 1:
        keys = ", ".join(sorted(key[:12] for key in chosen))
        raise Invalid(
            "ambiguous",
            f"{len(chosen)} hosts are called {host!r}: give how the key of one begins ({keys})",
            candidates=sorted(chosen),
        )
    for key in chosen:
        catalog.drop_row(_KIND, key)
    return list(chosen.values())


def _no_host(host: str, pending: dict[str, PendingUploads]) -> OrtetError:
    names = ", ".join(sorted({owes.host for owes in pending.values()}))
    return NotFound(
        "no_host",
        f"no host {host!r} has anything to upload" + (f": {names} has" if names else ""),
    )
