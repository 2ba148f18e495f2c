"""Which store a remote hub is given: its tenant's, without the server's own rows, and without those
that would let a token do what its scope does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, cast

from starlette.requests import Request

from ortet._util.codec import decode
from ortet.backends.base import Bucket, Catalog, CatalogRow, RowChange, Signal
from ortet.errors import Invalid, OrtetError, Refused
from ortet.ids import Clock
from ortet.objects.store import LocalObjectStore
from ortet.server.auth.tokens import TOKEN_KIND, Caller
from ortet.server.context import AppContext
from ortet.server.middleware.idempotency import IDEMPOTENCY_KIND
from ortet.server.operations.registry import TokenScope
from ortet.server.raw_store.rawaccess import Grant, RawStoreAccess
from ortet.sessions.table import SessionRow
from ortet.vault.vault import BROWSER_PREFIX
from ortet.vault.vault import VAULT_ROW_KIND as VAULT
from ortet.workspaces.table import WorkspaceRow

_SERVER_ROW_KINDS = (TOKEN_KIND, IDEMPOTENCY_KIND, "serve")
_ADMIN_ROW_KINDS = ("hold", "retention", "tombstone", "erasure", "erasing")
"""Kinds of rows that only operations write which need an admin's token."""


class GrantedStore(NamedTuple):
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: LocalObjectStore
    clock: Clock


def make_grant(context: AppContext) -> Grant:
    """A token that is for some agents gets none of it: the store itself knows no agents."""

    def access(request: Request, needs: str) -> RawStoreAccess:
        caller = context.authenticate_sync(request)
        caller.need(cast("TokenScope", needs))
        caller.need_raw()
        hub = context.tenants.session_pool(caller.tenant).shared_hub
        catalog = cast("Catalog", _GuardedCatalog(hub.catalog, caller, hub._store.host))
        return GrantedStore(catalog, hub.bucket, hub.signal, hub.objects, hub.clock)

    return access


class _GuardedCatalog:
    """A catalog in which tokens and keys of the server cannot be seen, and not be made; nor, by
    those who may run nothing on its host, what would lead it to files there."""

    def __init__(self, catalog: Catalog, caller: Caller, host: str) -> None:
        self._catalog = catalog
        self._caller = caller
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def row(self, kind: str, key: str) -> CatalogRow | None:
        hidden = _is_server_kind(kind) or (
            self._is_hidden(kind) and not key.startswith(BROWSER_PREFIX)
        )
        return None if hidden else self._catalog.row(kind, key)

    def rows(self, kind: str, after: str = "", limit: int = 1000) -> list[CatalogRow]:
        if _is_server_kind(kind):
            return []
        if self._is_hidden(kind):
            found = self._catalog.rows(kind, max(after, BROWSER_PREFIX), limit)
            return [row for row in found if row.key.startswith(BROWSER_PREFIX)]
        return self._catalog.rows(kind, after, limit)

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        self._check_changes([RowChange(kind, key, value)])
        return self._catalog.put_row(kind, key, value, expect)

    def drop_row(self, kind: str, key: str) -> None:
        self._check_changes([RowChange(kind, key, None)])
        self._catalog.drop_row(kind, key)

    def move(self, *args: Any, rows: Sequence[RowChange] = (), **given: Any) -> Any:
        self._check_changes(rows)
        return self._catalog.move(*args, rows=rows, **given)

    def append(self, *args: Any, rows: Sequence[RowChange] = (), **given: Any) -> Any:
        self._check_changes(rows)
        return self._catalog.append(*args, rows=rows, **given)

    def erase_events(self, *args: Any, **given: Any) -> Any:
        self._caller.need("admin")
        return self._catalog.erase_events(*args, **given)

    def trim_ops(self, *args: Any, **given: Any) -> Any:
        self._caller.need("admin")
        return self._catalog.trim_ops(*args, **given)

    def _is_hidden(self, kind: str) -> bool:
        """Names of secrets are told to admins only; states of browsers belong to sessions."""
        return kind == VAULT and not self._caller.may("admin")

    def _check_changes(self, rows: Sequence[RowChange]) -> None:
        for row in rows:
            if _is_server_kind(row.kind):
                raise Refused(
                    "not_yours", f"rows of kind {row.kind!r} are the server's own: leave them"
                )
            if row.kind in _ADMIN_ROW_KINDS or (
                self._is_hidden(row.kind) and not row.key.startswith(BROWSER_PREFIX)
            ):
                self._caller.need("admin")
            if not self._caller.runs:
                self._check_files_location(row)

    def _check_files_location(self, row: RowChange) -> None:
        """Whose row says that its files are on this host could have the server read and write any
        directory there: a remote hub has its own at its own."""
        if row.kind == "place" and row.key.startswith(f"{self._host}:"):
            _refuse_host_files()
        if row.kind == "session":
            self._check_session(row)
        if row.kind != "workspace":
            return
        before = self._catalog.row(row.kind, row.key)
        if before is not None and decode(WorkspaceRow, before.value).host == self._host:
            _refuse_host_files()
        if row.value is None:
            return
        try:
            new = decode(WorkspaceRow, row.value)
        except OrtetError as error:
            raise Invalid("bad_row", f"this is no workspace ({error.message}): leave it") from error
        if new.host == self._host or not (new.machine.isascii() and new.machine.isalnum()):
            _refuse_host_files()

    def _check_session(self, row: RowChange) -> None:
        """Its directory becomes a workspace when it is first used: by whoever is asked to."""
        before = self._catalog.row(row.kind, row.key)
        was = decode(SessionRow, before.value) if before is not None else None
        new = None
        if row.value is not None:
            try:
                new = decode(SessionRow, row.value)
            except OrtetError as error:
                text = f"this is no session ({error.message}): leave it"
                raise Invalid("bad_row", text) from error
        if new is None or (was is not None and _files_location(was) == _files_location(new)):
            return
        theirs = was is not None and was.path and was.host == self._host
        if (
            theirs
            or (new.path and new.host in ("", self._host))
            or self._is_workspace_of_this_host(new)
        ):
            _refuse_host_files()

    def _is_workspace_of_this_host(self, row: SessionRow) -> bool:
        """Whether its files would be those of a workspace of this host."""
        found = self._catalog.row("workspace", row.branch) if row.path else None
        return found is not None and decode(WorkspaceRow, found.value).host == self._host


def _files_location(row: SessionRow) -> tuple[object, ...]:
    """Where its files are, and what is done there by itself: a profile may write at each commit."""
    how = (row.engine, row.files, row.profile, row.limits, row.network)
    return (row.path, row.host, row.branch, *how)


def _refuse_host_files() -> NoReturn:
    raise Refused(
        "token_host",
        "this token may reach no files on the server's host: use an admin's that is for no tenant "
        "and no agent, or keep the workspace at your own",
    )


def _is_server_kind(kind: str) -> bool:
    return kind.partition("/")[0] in _SERVER_ROW_KINDS
