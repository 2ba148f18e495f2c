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
from ortet.history.diff.tree_diff import Change, diff_images
from ortet.history.refs import Ref, Refs, is_name
from ortet.hub.governance.service import Custody
from ortet.hub.governance.tombstones import heir_of
from ortet.hub.inbox_api import Asides
from ortet.hub.maintenance import Keeping, Progress
from ortet.hub.memory_queries import Recalling
from ortet.hub.minding import Minding
from ortet.ids import Oid, to_hex, uuid7
from ortet.machines.base import Report
from ortet.store.context import Parts
from ortet.store.pin_commit import naming
from ortet.store.sweep_retry import repeated
from ortet.workspaces.forks import Copying
from ortet.workspaces.machine_homes import Machines
from ortet.workspaces.places import existing, keep_apart, real
from ortet.workspaces.table import Files, Registry, Scope, WorkspaceRow
from ortet.workspaces.workspace import Workspace

_TRIES = 100
"""How often a name that another process was faster to take is replaced by the next."""


class Hub(Minding, Recalling, Copying, Keeping, Custody, Asides):
    """An opened store. Not for use in a forked child: open it again there."""

    def __init__(self, parts: Parts) -> None:
        self.url = parts.url
        self.root = parts.root
        self.catalog = parts.catalog
        self.bucket = parts.bucket
        self.signal = parts.signal
        self.cache = parts.cache
        self.objects = parts.objects
        self.trees = parts.trees
        self.clock = parts.clock
        self.author = parts.author
        self.random = parts.random
        self.history = History(parts.objects)
        self.refs = Refs(parts.catalog, parts.objects, parts.objects.find)
        self.refs.naming = naming(self)
        self.registry = Registry(parts.catalog, parts.host)
        self.environ, self.opening = parts.environ, dict(parts.environ)  # now, and as of opening
        self.closing: list[Callable[[], None]] = []  # called first when it is closed
        self.lends = False  # lets a session go when another process asks for it: a server does
        self._parts = parts
        self._machines = Machines(parts.root, parts.engine, parts.hide)
        self._open: list[Workspace] = []
        self._epoch = parts.objects.epoch
        parts.objects.heirs = lambda oid: heir_of(parts.catalog, oid)

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
            for workspace in self._open:
                last.callback(workspace.close)
            if self._sessions is not None:
                last.callback(self._sessions.close)
            for call in self.closing:
                last.callback(call)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """From the first put until the head has moved: no sweep takes an object away meanwhile."""
        with self.objects.writing() as epoch:
            if epoch != self._epoch:  # pages of trees nothing refers to may be gone
                self.trees.forget()
                self._epoch = epoch
            self.objects.search = self.known_secrets()
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
        files: Files | None = None,
        scope: Scope | None = None,
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
            return self._start(self.registry.limit(self.registry.need(name), limits, network))
        directory = keep_apart(self.root, existing(path))
        mode, chosen = self.how(engine, files)
        forks = "" if engine == "auto" else engine
        row = self.registry.at(directory, mode, chosen)
        if row is None:
            best: Scope = self._parts.scope if mode == "private" else "workspace"
            draft = self.registry.draft(directory, mode, chosen)
            draft = replace(draft, scope=scope or best, forks=forks)
            row = self._register(self.registry.limit(draft, limits, network), name)
        if name not in (None, row.name):
            raise Conflict(
                "name_taken",
                f"{directory} is workspace {row.name!r} already: leave the name out to go on",
            )
        row = replace(row, forks=forks or row.forks)
        return self._start(self.registry.limit(row, limits, network))

    def reopen(self, name: str, directory: Path) -> Workspace:
        """Open the in-place workspace a pointer file names, at the directory that holds it.

        A moved directory keeps its history; a copied one (the first still stands) gets its own.
        """
        row = self.locate(name, directory)
        if row is not None:
            return self._start(row)
        # dropped, it goes on with the branch that was left
        left = self.refs.get(name) and self.registry.get(name) is None
        return self.workspace(directory, name=name if left else None)

    def locate(self, name: str, directory: Path) -> WorkspaceRow | None:
        """The row `reopen` opens; None when the directory has no history in this store yet."""
        directory = directory.resolve()
        row = self.registry.get(name) if name else None
        if row is None or row.files != "inplace":
            return self.registry.at(directory, "inplace", "folder")
        if row.directory == directory:
            return row
        if os.path.lexists(row.directory):  # this one is a copy
            return self.registry.at(directory, "inplace", "folder")
        return self.registry.move(row, directory)

    @contextmanager
    def inplace(self, directory: Path) -> Iterator[Workspace]:
        """The in-place workspace of a directory: as it is open in this hub, or for the block."""
        row = self.registry.at(directory, "inplace", "folder")
        if row is not None and (found := self.opened(row.name)):
            yield found[0]
            return
        with self.workspace(directory) as workspace:
            yield workspace

    @contextmanager
    def private(self, name: str) -> Iterator[Workspace | None]:
        """The private workspace of this name: as it is open in this hub, or for the block.

        None when no private workspace of this host has the name, as for a branch, tag or commit.
        """
        row = self.registry.get(name) if is_name(name) else None
        if row is None or row.files != "private" or row.host != self._parts.host:
            yield None
        elif found := self.opened(name):
            yield found[0]
        else:
            with self._alone_in(row) as workspace:
                yield workspace

    @contextmanager
    def _alone_in(self, row: WorkspaceRow) -> Iterator[Workspace]:
        try:
            workspace = self._start(row)
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

    def opened(self, name: str = "") -> list[Workspace]:
        """The workspaces of this name, or all, that this hub has open."""
        return [workspace for workspace in self._open if name in ("", workspace.name)]

    def forget(self, workspace: Workspace) -> None:
        """A workspace says that it was closed."""
        if workspace in self._open:
            self._open.remove(workspace)

    # history

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Commits reachable from `ref`, newest first; HEAD is the only branch, if there is one."""
        return list(self.history.log(self.refs.resolve(ref), limit=limit))

    def show(self, ref: Ref) -> CommitInfo:
        return self.history.info(self.refs.resolve(ref))

    def diff(self, old: Ref, new: Ref) -> list[Change]:
        before, after = (self.history.image(self.refs.resolve(ref)) for ref in (old, new))
        return diff_images(self.trees, before, after)

    def restore(
        self, ref: Ref, to: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Report:
        """Write the workspace files of a commit into a new directory."""
        from ortet.machines.restore.materialise import materialise

        target = keep_apart(self.root, real(to))
        image = self.history.image(self.refs.resolve(ref))
        return materialise(self.objects, self.trees, image, target, progress=progress)

    def image_oid(self, commit: Oid, nothing: bytes = b"") -> Oid:
        """The machine image inside a commit; `nothing`, if given, where it holds no files."""
        found = self.history.state(commit).machine or nothing
        if not found:
            raise NotFound("no_files", f"commit {to_hex(commit)[:12]} holds no files")
        return Oid(found)

    def read_image(self, oid: Oid) -> records.Image:
        return decode(records.Image, self.objects.get(oid))

    # inside

    @property
    def scope(self) -> Scope:
        """What private machines cover, unless told."""
        return self._parts.scope

    def check_engine(self, engine: str) -> None:
        """Unsupported where this host cannot run it."""
        self._machines.check(engine)

    def how(self, engine: str, files: Files | None) -> tuple[Files, str]:
        """Whose the files are, and the engine that is meant."""
        check_text(engine=engine)
        if files not in (None, "inplace", "private"):
            raise Invalid("bad_workspace", f"files={files!r}: give 'inplace' or 'private'")
        if files == "inplace" and engine in ("overlay", "criu"):
            raise Invalid("bad_workspace", f"engine={engine!r} is private: leave files= out")
        private = files == "private" or engine in ("overlay", "criu")
        mode: Files = "private" if private else "inplace"
        if engine == "auto":
            engine = self._parts.strongest() if mode == "private" else "folder"
        self._parts.engine(engine)  # which knows its name, or says so
        return mode, engine

    def _register(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        """A new row for a directory; what another process has made meanwhile is taken instead."""
        self._machines.check(draft.engine)  # refuse before anything is stored
        return repeated(self, lambda: self._registered(draft, name))

    def _registered(self, draft: WorkspaceRow, name: str | None) -> WorkspaceRow:
        with self.writing():  # until the row holds the base, a sweep must not take it
            if draft.files == "private":
                draft = replace(draft, base=self._machines.photograph(draft, self.new_id()))
                self.objects.flush()
            draft = replace(draft, machine=self.new_id())
            for _ in range(_TRIES):
                registry = self.registry
                free = registry.free_name(draft) if name is None else registry.claim(name, draft)
                try:
                    return registry.add(replace(draft, name=free))
                except Conflict as error:
                    if name is not None or error.kind == "swept":
                        raise
                    taken = error
            raise taken

    def _start(self, row: WorkspaceRow) -> Workspace:
        if row.files == "inplace" or row.engine == "folder":
            self.check_here(row.name, row.host)
        elif self.url != str(self.root):
            return self._start_anywhere(row)
        return self._start_here(row)

    def _start_anywhere(self, row: WorkspaceRow) -> Workspace:
        """The same of one that another host of the store may have had."""
        from ortet.sessions.history.cross_host_files import (  # here: others do without it
            arrived,
            bring_home,
        )

        workspace = self._start_here(arrived(self, row))
        try:
            bring_home(workspace)
        except BaseException:
            workspace.close()
            raise
        return workspace

    def _start_here(self, row: WorkspaceRow) -> Workspace:
        live = self._machines.open(row, lambda: self._start_image(row))
        try:
            return self._remember(Workspace(self, row, live)).come_back()
        except BaseException:
            live.close()
            raise

    def is_here(self, host: str) -> bool:
        """Whether what was recorded of a host is of this one: of some sessions that earlier
        releases began, none was."""
        return host in ("", self._parts.host)

    def check_here(self, name: str, host: str) -> None:
        """A directory of another host is not that of this one at the same path: a server opens
        whatever it is asked for by name, and a store that others share knows their directories. A
        store on this disk goes where its directories go, also into a container of another name."""
        shared = self.lends or self.url != str(self.root)
        if shared and not self.is_here(host):
            raise Refused(
                "other_host",
                f"the files of {name!r} are in a directory of another host: work on it there, "
                "fork it from a commit, or give workspace= to go on in the directory of this host",
            )

    def _start_image(self, row: WorkspaceRow) -> Oid | None:
        self.registry.need(row.name)
        if row.files == "inplace":
            return None
        head = self.catalog.head(f"branch:{row.name}")
        return self.image_oid(head.oid, row.nothing) if head else Oid(row.base)

    def _remember(self, workspace: Workspace) -> Workspace:
        self._open.append(workspace)
        return workspace

    def _close_objects(self) -> None:
        # Every commit has flushed what it holds: what cannot be written now belongs to none.
        with suppress(Refused, Unavailable):
            self.objects.close()

    def new_id(self) -> str:
        return uuid7(self.clock, self._parts.random)
