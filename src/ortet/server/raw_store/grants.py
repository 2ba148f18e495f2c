"""Decides which store a remote hub may access, and restricts its catalog.

The client gets the store of its tenant. Rows of the server are hidden. Rows that would bypass the
scope of the token are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, cast

from starlette.requests import Request

from ortet._util.codec import decode
from ortet.backends.base import Bucket, Catalog, CatalogRow, RowChange, Signal
from ortet.errors import Invalid, OrtetError, Refused
from ortet.ids import Clock
from ortet.objects.store import PackedObjectStore
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
"""Row kinds that only operations with an admin token may write."""


class GrantedStore(NamedTuple):
    """The parts of a store that a remote hub may use. The catalog is restricted."""

    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: PackedObjectStore
    clock: Clock


def make_grant(context: AppContext) -> Grant:
    """Return the function that grants raw access.

    A token that is limited to some agents gets no access, because the raw store has no agents.
    """

    def access(request: Request, needs: str) -> RawStoreAccess:
        caller = context.authenticate_sync(request)
        caller.need(cast("TokenScope", needs))
        caller.need_raw()
        hub = context.tenants.session_pool(caller.tenant).shared_hub
        catalog = cast("Catalog", _GuardedCatalog(hub.catalog, caller, hub.store.host))
        return GrantedStore(catalog, hub.bucket, hub.signal, hub.objects, hub.clock)

    return access


class _GuardedCatalog:
    """A catalog that hides rows of the server and checks changes against the caller's rights.

    A caller without host access may not write rows that lead the server to files on its host.
    """

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
            stored = self._catalog.rows(kind, max(after, BROWSER_PREFIX), limit)
            return [row for row in stored if row.key.startswith(BROWSER_PREFIX)]
        return self._catalog.rows(kind, after, limit)

    def put_row(self, kind: str, key: str, value: bytes, expect: int | None = None) -> CatalogRow:
        self._check_changes([RowChange(kind, key, value)])
        return self._catalog.put_row(kind, key, value, expect)

    def drop_row(self, kind: str, key: str) -> None:
        self._check_changes([RowChange(kind, key, None)])
        self._catalog.drop_row(kind, key)

    def move(self, *args: Any, rows: Sequence[RowChange] = (), **options: Any) -> Any:
        self._check_changes(rows)
        return self._catalog.move(*args, rows=rows, **options)

    def append(self, *args: Any, rows: Sequence[RowChange] = (), **options: Any) -> Any:
        self._check_changes(rows)
        return self._catalog.append(*args, rows=rows, **options)

    def erase_events(self, *args: Any, **options: Any) -> Any:
        self._caller.need("admin")
        return self._catalog.erase_events(*args, **options)

    def trim_ops(self, *args: Any, **options: Any) -> Any:
        self._caller.need("admin")
        return self._catalog.trim_ops(*args, **options)

    def _is_hidden(self, kind: str) -> bool:
        """Return True if rows of this kind are hidden. Only admins see names of secrets.

        Browser states are in the same kind and stay visible, because sessions need them.
        """
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
        """Refuse a row that places files on this host.

        Such a row could make the server read and write any directory. Files of a remote hub are on
        its own host.
        """
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
        """Refuse a session row that points to a directory of this host.

        The directory would become a workspace when any caller first uses the session.
        """
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
        was_on_this_host = was is not None and was.path and was.host == self._host
        if (
            was_on_this_host
            or (new.path and new.host in ("", self._host))
            or self._is_workspace_of_this_host(new)
        ):
            _refuse_host_files()

    def _is_workspace_of_this_host(self, row: SessionRow) -> bool:
        """Return True if the session's branch has a workspace on this host."""
        stored = self._catalog.row("workspace", row.branch) if row.path else None
        return stored is not None and decode(WorkspaceRow, stored.value).host == self._host


def _files_location(row: SessionRow) -> tuple[object, ...]:
    """Return the fields that decide where files are and what is written there."""
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
