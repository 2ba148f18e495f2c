"""A hub is an opened store: it opens workspaces, reads history, and looks after the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet._util.validation import check_text
from ortet.errors import Conflict, Invalid, NotFound, Refused, Unavailable
from ortet.history import records
from ortet.history.commits import CommitInfo, History
from ortet.history.diff.tree_diff import TreeChange, diff_images
from ortet.history.refs import Ref, Refs, is_ref_name
from ortet.hub.governance.service import Governance
from ortet.hub.governance.tombstones import replacement_of
from ortet.hub.inbox_api import InboxApi
from ortet.hub.maintenance import Maintenance, Progress
from ortet.hub.memory_queries import MemoryQueries
from ortet.hub.minding import SessionApi
from ortet.ids import Oid, to_hex, uuid7
from ortet.machines.base import Report
from ortet.store.context import StoreContext
from ortet.store.pin_commit import ref_writer
from ortet.store.sweep_retry import run_with_sweep_retry
from ortet.workspaces.forks import WorkspaceForksMixin
from ortet.workspaces.machine_homes import MachineHomes
from ortet.workspaces.places import check_outside_store, existing_directory, real_path
from ortet.workspaces.table import FilesMode, RootScope, WorkspaceRow, WorkspaceTable
from ortet.workspaces.workspace import Workspace

_MAX_NAME_ATTEMPTS = 100
"""How often a name that another process was faster to take is replaced by the next."""


class Hub(SessionApi, MemoryQueries, WorkspaceForksMixin, Maintenance, Governance, InboxApi):
    """An opened store. Not for use in a forked child: open it again there."""

    def __init__(self, store: StoreContext) -> None:
        self.url = store.url
        self.root = store.root
        self.catalog = store.catalog
        self.bucket = store.bucket
        self.signal = store.signal
        self.cache = store.cache
        self.objects = store.objects
        self.trees = store.trees
        self.clock = store.clock
        self.author = store.author
        self.random = store.random
        self.history = History(store.objects)
        self.refs = Refs(store.catalog, store.objects, store.objects.find_by_prefix)
        self.refs.run_pinned = ref_writer(self)
        self.workspace_table = WorkspaceTable(store.catalog, store.host)
        self.environ, self.initial_environ = (
            store.environ,
            dict(store.environ),
        )  # now, and as of opening
        self.close_callbacks: list[Callable[[], None]] = []  # called first when it is closed
        self.allows_lease_handover = (
            False  # lets a session go when another process asks for it: a server does
        )
        self._store = store
        self._machines = MachineHomes(store.root, store.engine, store.hide)
        self._open_workspaces: list[Workspace] = []
        self._epoch = store.objects.epoch
        store.objects.find_replacement = lambda oid: replacement_of(store.catalog, oid)

    def __repr__(self) -> str:
        # what stands behind the question mark of an address may be a password
        return f"<Hub {self.url.partition('?')[0] if '://' in self.url else self.url}>"

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every workspace it opened, forks too, then the store."""
        with ExitStack() as last:  # which goes on when one of them fails
            last.callback(self.catalog.close)
            last.callback(self.bucket.close)
            last.callback(self.signal.close)
            last.callback(self.cache.close)
            last.callback(self._close_library)
            last.callback(self._close_objects)
            last.callback(self._machines.close)
            for workspace in self._open_workspaces:
                last.callback(workspace.close)
            if self._sessions is not None:
                last.callback(self._sessions.close)
            for call in self.close_callbacks:
                last.callback(call)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """From the first put until the head has moved: no sweep takes an object away meanwhile."""
        with self.objects.writing() as epoch:
            if epoch != self._epoch:  # pages of trees nothing refers to may be gone
                self.trees.clear_cache()
                self._epoch = epoch
            self.objects.scanner = self.known_secrets()
            try:
                yield
            except BaseException:
                self.objects.abandon()
                raise

    # workspaces

    def workspace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        engine: str = "auto",
        files: FilesMode | None = None,
        scope: RootScope | None = None,
        limits: Mapping[str, Any] | None = None,
        network: str | None = None,
    ) -> Workspace:
        """Open a directory (or, by `name` alone, one opened before) and go on where it was.

        A directory opened for the first time gets `name`, or its base name.
        In place by default: the directory is the state. "overlay" and "criu" are private: the
        directory stays untouched until `land`. Forks use a named engine too, else the host's best.
        `limits` ({"memory": "2G", "cpu": 1.5, "pids": 500}) and `network` ("none",
        "outbound", or "host": also what listens on this host's loopback) are those of its live
        machine, and kept for forks and later opens.
        """
        if path is None:
            if name is None:
                raise Invalid("bad_workspace", "give a directory, or name=… of one opened before")
            return self._open_workspace(
                self.workspace_table.limit(self.workspace_table.need(name), limits, network)
            )
        directory = check_outside_store(self.root, existing_directory(path))
        mode, chosen = self.resolve_files_and_engine(engine, files)
        forks = "" if engine == "auto" else engine
        row = self.workspace_table.find_at(directory, mode, chosen)
        if row is None:
            best: RootScope = self._store.scope if mode == "private" else "workspace"
            draft = self.workspace_table.draft(directory, mode, chosen)
            draft = replace(draft, scope=scope or best, forks=forks)
            row = self._register(self.workspace_table.limit(draft, limits, network), name)
        if name not in (None, row.name):
            raise Conflict(
                "name_taken",
                f"{directory} is workspace {row.name!r} already: leave the name out to go on",
            )
        row = replace(row, forks=forks or row.forks)
        return self._open_workspace(self.workspace_table.limit(row, limits, network))

    def reopen(self, name: str, directory: Path) -> Workspace:
        """Open the in-place workspace a pointer file names, at the directory that holds it.

        A moved directory keeps its history; a copied one (the first still stands) gets its own.
        """
        row = self.locate(name, directory)
        if row is not None:
            return self._open_workspace(row)
        # dropped, it goes on with the branch that was left
        left = self.refs.get(name) and self.workspace_table.get(name) is None
        return self.workspace(directory, name=name if left else None)

    def locate(self, name: str, directory: Path) -> WorkspaceRow | None:
        """The row `reopen` opens; None when the directory has no history in this store yet."""
        directory = directory.resolve()
        row = self.workspace_table.get(name) if name else None
        if row is None or row.files != "inplace":
            return self.workspace_table.find_at(directory, "inplace", "folder")
        if row.directory == directory:
            return row
        if os.path.lexists(row.directory):  # this one is a copy
            return self.workspace_table.find_at(directory, "inplace", "folder")
        return self.workspace_table.move(row, directory)

    @contextmanager
    def inplace_workspace(self, directory: Path) -> Iterator[Workspace]:
        """The in-place workspace of a directory: as it is open in this hub, or for the block."""
        row = self.workspace_table.find_at(directory, "inplace", "folder")
        if row is not None and (found := self.open_workspaces(row.name)):
            yield found[0]
            return
        with self.workspace(directory) as workspace:
            yield workspace

    @contextmanager
    def private_workspace(self, name: str) -> Iterator[Workspace | None]:
        """The private workspace of this name: as it is open in this hub, or for the block.

        None when no private workspace of this host has the name, as for a branch, tag or commit.
        """
        row = self.workspace_table.get(name) if is_ref_name(name) else None
        if row is None or row.files != "private" or row.host != self._store.host:
            yield None
        elif found := self.open_workspaces(name):
            yield found[0]
        else:
            with self._open_exclusively(row) as workspace:
                yield workspace

    @contextmanager
    def _open_exclusively(self, row: WorkspaceRow) -> Iterator[Workspace]:
        try:
            workspace = self._open_workspace(row)
        except Conflict as error:
            if error.kind != "machine_open":
                raise
            raise Conflict(
                error.kind,
                f"{row.name!r} is open in another process, so its uncommitted work cannot be "
                "recorded: close it there first, or give the id of its last commit",
            ) from error
        with workspace:
            yield workspace

    def open_workspaces(self, name: str = "") -> list[Workspace]:
        """The workspaces of this name, or all, that this hub has open."""
        return [workspace for workspace in self._open_workspaces if name in ("", workspace.name)]

    def untrack_workspace(self, workspace: Workspace) -> None:
        """A workspace says that it was closed."""
        if workspace in self._open_workspaces:
            self._open_workspaces.remove(workspace)

    # history

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Commits reachable from `ref`, newest first; HEAD is the only branch, if there is one."""
        return list(self.history.log(self.refs.resolve(ref), limit=limit))

    def show(self, ref: Ref) -> CommitInfo:
        return self.history.info(self.refs.resolve(ref))

    def diff(self, old: Ref, new: Ref) -> list[TreeChange]:
        before, after = (self.history.image(self.refs.resolve(ref)) for ref in (old, new))
        return diff_images(self.trees, before, after)

    def restore(
        self, ref: Ref, to: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Report:
        """Write the workspace files of a commit into a new directory."""
        from ortet.machines.restore.materialise import checkout_image

        target = check_outside_store(self.root, real_path(to))
        image = self.history.image(self.refs.resolve(ref))
        return checkout_image(self.objects, self.trees, image, target, progress=progress)

    def image_oid(self, commit: Oid, default: bytes = b"") -> Oid:
        """The machine image inside a commit; `nothing`, if given, where it holds no files."""
        found = self.history.state(commit).machine or default
        if not found:
            raise NotFound("no_files", f"commit {to_hex(commit)[:12]} holds no files")
        return Oid(found)

    def read_image(self, oid: Oid) -> records.Image:
        return decode(records.Image, self.objects.get(oid))

    # inside

    @property
    def default_scope(self) -> RootScope:
        """What private machines cover, unless told."""
        return self._store.scope

    def check_engine(self, engine: str) -> None:
        """Unsupported where this host cannot run it."""
        self._machines.check(engine)

    def resolve_files_and_engine(
        self, engine: str, files: FilesMode | None
    ) -> tuple[FilesMode, str]:
        """Whose the files are, and the engine that is meant."""
        check_text(engine=engine)
        if files not in (None, "inplace", "private"):
            raise Invalid("bad_workspace", f"files={files!r}: give 'inplace' or 'private'")
        if files == "inplace" and engine in ("overlay", "criu"):
            raise Invalid("bad_workspace", f"engine={engine!r} is private: leave files= out")
        private = files == "private" or engine in ("overlay", "criu")
        mode: FilesMode = "private" if private else "inplace"
        if engine == "auto":
            engine = self._store.strongest() if mode == "private" else "folder"
        self._store.engine(engine)  # which knows its name, or says so
        return mode, engine

    def _register(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        """A new row for a directory; what another process has made meanwhile is taken instead."""
        self._machines.check(draft.engine)  # refuse before anything is stored
        return run_with_sweep_retry(self, lambda: self._registered(draft, name))

    def _registered(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        with self.writing():  # until the row holds the base, a sweep must not take it
            if draft.files == "private":
                draft = replace(draft, base=self._machines.capture_directory(draft, self.new_id()))
                self.objects.flush()
            draft = replace(draft, machine=self.new_id())
            for _ in range(_MAX_NAME_ATTEMPTS):
                registry = self.workspace_table
                free = registry.free_name(draft) if name is None else registry.claim(name, draft)
                try:
                    return registry.add(replace(draft, name=free))
                except Conflict as error:
                    if name is not None or error.kind == "swept":
                        raise
                    taken = error
            raise taken

    def _open_workspace(self, row: WorkspaceRow) -> Workspace:
        if row.files == "inplace" or row.engine == "folder":
            self.check_local_host(row.name, row.host)
        elif self.url != str(self.root):
            return self._open_shared_workspace(row)
        return self._open_local_workspace(row)

    def _open_shared_workspace(self, row: WorkspaceRow) -> Workspace:
        """The same of one that another host of the store may have had."""
        from ortet.sessions.history.cross_host_files import (  # here: others do without it
            recover_former_files,
            take_over_workspace,
        )

        workspace = self._open_local_workspace(take_over_workspace(self, row))
        try:
            recover_former_files(workspace)
        except BaseException:
            workspace.close()
            raise
        return workspace

    def _open_local_workspace(self, row: WorkspaceRow) -> Workspace:
        live = self._machines.open(row, lambda: self._initial_image(row))
        try:
            return self._track_workspace(Workspace(self, row, live)).recover_interrupted_restore()
        except BaseException:
            live.close()
            raise

    def is_local_host(self, host: str) -> bool:
        """Whether what was recorded of a host is of this one: of some sessions that earlier
        releases began, none was."""
        return host in ("", self._store.host)

    def check_local_host(self, name: str, host: str) -> None:
        """A directory of another host is not that of this one at the same path: a server opens
        whatever it is asked for by name, and a store that others share knows their directories. A
        store on this disk goes where its directories go, also into a container of another name."""
        shared = self.allows_lease_handover or self.url != str(self.root)
        if shared and not self.is_local_host(host):
            raise Refused(
                "other_host",
                f"the files of {name!r} are in a directory of another host: work on it there, "
                "fork it from a commit, or give workspace= to go on in the directory of this host",
            )

    def _initial_image(self, row: WorkspaceRow) -> Oid | None:
        self.workspace_table.need(row.name)
        if row.files == "inplace":
            return None
        head = self.catalog.head(f"branch:{row.name}")
        return self.image_oid(head.oid, row.empty_image) if head else Oid(row.base)

    def _track_workspace(self, workspace: Workspace) -> Workspace:
        self._open_workspaces.append(workspace)
        return workspace

    def _close_objects(self) -> None:
        # Every commit has flushed what it holds: what cannot be written now belongs to none.
        with suppress(Refused, Unavailable):
            self.objects.close()

    def new_id(self) -> str:
        return uuid7(self.clock, self._store.random)
