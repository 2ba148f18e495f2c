"""Which store a remote hub is given: its tenant's, without the server's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from starlette.requests import Request

from ortet.backend.abc import Bucket, Catalog, Row, RowChange, Signal
from ortet.errors import Refused
from ortet.ids import Clock
from ortet.store.objects import LocalObjects
from ortet.surface.http.desk import Desk
from ortet.surface.http.once import ASKED
from ortet.surface.http.operations import Needs
from ortet.surface.http.rawaccess import Access, Grant
from ortet.surface.http.tokens import TOKEN

_OURS = (TOKEN, ASKED, "serve")


class Given(NamedTuple):
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: LocalObjects
    clock: Clock


def grant_of(desk: Desk) -> Grant:
    """A token that is for some agents gets none of it: the store itself knows no agents."""

    def access(request: Request, needs: str) -> Access:
        caller = desk.known(request)
        caller.need(cast("Needs", needs))
        if caller.agents:
            raise Refused(
                "token_agents", "this is about all agents, and the token is for some: use another"
            )
        hub = desk.tenants.rooms(caller.tenant).door
        catalog = cast("Catalog", _Guarded(hub.catalog))
        return Given(catalog, hub.bucket, hub.signal, hub.objects, hub.clock)

    return access


class _Guarded:
    """A catalog in which tokens and keys of the server cannot be seen, and not be made."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def row(self, kind: str, key: str) -> Row | None:
        return None if _is_ours(kind) else self._catalog.row(kind, key)

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[Row]:
        return [] if _is_ours(kind) else self._catalog.rows(kind, after, limit)

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> Row:
        _check([kind])
        return self._catalog.put_row(kind, key, value, expect)

    def drop_row(self, kind: str, key: str) -> None:
        _check([kind])
        self._catalog.drop_row(kind, key)

    def move(self, *args: Any, rows: Sequence[RowChange] = (), **given: Any) -> Any:
        _check([row.kind for row in rows])
        return self._catalog.move(*args, rows=rows, **given)

    def append(self, *args: Any, rows: Sequence[RowChange] = (), **given: Any) -> Any:
        _check([row.kind for row in rows])
        return self._catalog.append(*args, rows=rows, **given)


def _is_ours(kind: str) -> bool:
    return kind.partition("/")[0] in _OURS


def _check(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if _is_ours(kind):
            raise Refused("not_yours", f"rows of kind {kind!r} are the server's own: leave them")
