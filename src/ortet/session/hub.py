"""A hub is an opened store: it opens workspaces, reads history, and looks after the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet.backend.abc import Bucket, Catalog, Move, Signal
from ortet.codec import decode
from ortet.errors import Conflict, Invalid, NotFound
from ortet.graph import records
from ortet.graph.commits import CommitInfo, History
from ortet.graph.diff import Change, diff_images
from ortet.graph.refs import Refs
from ortet.graph.tree import Trees
from ortet.ids import Clock, Oid, Random, to_hex, uuid7
from ortet.machine.abc import Engine, Machine, Report, Spec
from ortet.session.registry import Files, Registry, Scope, WorkspaceRow
from ortet.session.workspace import Workspace
from ortet.store.faults import reach
from ortet.store.objects import LocalObjects

# What a commit does not need is imported where it is used: a command is a new process each time.
if TYPE_CHECKING:
    from ortet.graph.bundle import BundleReport
    from ortet.store.sweep import SweepReport
    from ortet.store.verify import VerifyReport

Progress = Callable[[int, int], None]


class Parts(msgspec.Struct, frozen=True):
    """What a hub is made of; `config.py` chooses each."""

    root: Path
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: LocalObjects
    trees: Trees
    engine: Callable[[str], Engine]  # by name, made at first use
    strongest: Callable[[], str]  # the engine for private files on this host
    clock: Clock
    random: Random
    author: str
    host: str
    scope: Scope
    hide: tuple[Path, ...]


class Hub:
    """An opened store. Not for use in a forked child: open it again there."""

    def __init__(self, parts: Parts) -> None:
        self.root = parts.root
        self.catalog = parts.catalog
        self.bucket = parts.bucket
        self.signal = parts.signal
        self.objects = parts.objects
        self.trees = parts.trees
        self.clock = parts.clock
        self.author = parts.author
        self.history = History(parts.objects)
        self.refs = Refs(parts.catalog, parts.objects, parts.objects.find)
        self.registry = Registry(parts.catalog, parts.host)
        self._parts = parts
        self._open: list[Workspace] = []
        self._epoch = parts.objects.epoch

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every workspace it opened, forks too, then the store."""
        for workspace in reversed(self._open[:]):
            workspace.close()
        self.objects.close()
        self.signal.close()
        self.bucket.close()
        self.catalog.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """From the first put until the head has moved: no sweep takes an object away meanwhile."""
        with self.objects.writing() as epoch:
            if epoch != self._epoch:  # pages of trees nothing refers to may be gone
                self.trees.forget()
                self._epoch = epoch
            yield

    # workspaces

    def workspace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        engine: str = "auto",
        files: Files | None = None,
        scope: Scope | None = None,
    ) -> Workspace:
        """Open a directory (or, by `name` alone, one opened before) and go on where it was.

        A directory opened for the first time gets `name`, or its base name.
        In place by default: the directory is the state. "overlay" and "criu" are private: the
        directory stays untouched until `land`.
        """
        if path is None:
            if name is None:
                raise Invalid("bad_workspace", "give a directory, or name=… of one opened before")
            return self._start(self.registry.need(name))
        directory = Path(os.path.abspath(os.fspath(path)))
        if not directory.is_dir():
            raise NotFound("no_directory", f"{directory} is not a directory: create it first")
        directory = directory.resolve()
        self._keep_apart(directory)
        private = files == "private" or engine in ("overlay", "criu")
        if files == "inplace" and engine == "overlay":
            raise Invalid("bad_workspace", "engine='overlay' keeps files private: leave files= out")
        mode: Files = "private" if private else "inplace"
        if engine == "auto":
            engine = self._parts.strongest() if private else "folder"
            forks = ""
        else:
            forks = engine
        row = self.registry.at(directory, mode, engine)
        if row is None:
            row = self._register(
                directory, mode, engine=engine, scope=scope, forks=forks, name=name
            )
        elif name not in (None, row.name):
            raise Conflict(
                "name_taken",
                f"{directory} is workspace {row.name!r} already: leave the name out to go on",
            )
        return self._start(row)

    def reopen(self, name: str, directory: Path) -> Workspace:
        """Open the in-place workspace a pointer file names, at the directory that holds it.

        A moved directory keeps its history; a copied one (the first still stands) gets its own.
        """
        row = self.locate(name, directory)
        return self._start(row) if row else self.workspace(directory)

    def locate(self, name: str, directory: Path) -> WorkspaceRow | None:
        """The row `reopen` opens; None when the directory has no history in this store yet."""
        directory = directory.resolve()
        row = self.registry.get(name)
        if row is None or row.files != "inplace":
            return self.registry.at(directory, "inplace", "folder")
        if row.directory == directory:
            return row
        if row.directory.exists():  # this one is a copy
            return self.registry.at(directory, "inplace", "folder")
        return self.registry.move(row, directory)

    def fork(
        self, row: WorkspaceRow, machine: Machine | None, point: Oid, n: int
    ) -> list[Workspace]:
        """n private workspaces at a commit, all or none; with `machine`, it has just settled it."""
        engine_name = row.forks or self._parts.strongest()
        engine = self._parts.engine(engine_name)
        base = self.image_oid(point)
        rows = [
            msgspec.structs.replace(
                row,
                name=name,
                engine=engine_name,
                files="private",
                machine=uuid7(self.clock, self._parts.random),
                scope=self._parts.scope if row.files == "inplace" else row.scope,
                parent=row.name,
                base=base,
            )
            for name in self.registry.free_forks(row.name, n)
        ]
        specs = [self._spec(child) for child in rows]
        machines: list[Machine] = []
        reach("fork.before-machines")
        try:
            if machine is not None and machine.engine == engine_name:
                machines = machine.fork(specs)
            else:
                machines = _open_all(engine, specs)
            reach("fork.after-machines")
            self.catalog.move(
                [Move(f"branch:{child.name}", None, point) for child in rows],
                verb="fork",
                actor=self.author,
                detail=row.name,
                rows=[change for child in rows for change in self.registry.rows_of(child)],
            )
        except BaseException:
            for copy in machines:
                copy.close()
            for spec in specs:
                engine.remove(spec.home)
            raise
        reach("fork.after-move")
        pairs = zip(rows, machines, strict=True)
        return [self._remember(Workspace(self, child, copy)) for child, copy in pairs]

    def drop(self, name: str) -> None:
        """Forget a workspace and its machine's files; its branch and commits stay."""
        row = self.registry.need(name)
        for workspace in self._open[:]:
            if workspace.name == name:
                workspace.close()
        self.registry.drop(row)
        if row.files == "private":
            self._parts.engine(row.engine).remove(self._home(row))

    def forget(self, workspace: Workspace) -> None:
        """A workspace says that it was closed."""
        if workspace in self._open:
            self._open.remove(workspace)

    # history

    def log(self, ref: str = "", *, limit: int | None = None) -> list[CommitInfo]:
        """Commits reachable from `ref`, newest first."""
        return list(self.history.log(self.refs.resolve(ref), limit=limit))

    def show(self, ref: str) -> CommitInfo:
        return self.history.info(self.refs.resolve(ref))

    def diff(self, old: str, new: str) -> list[Change]:
        before, after = (self.history.image(self.refs.resolve(ref)) for ref in (old, new))
        return diff_images(self.trees, before, after)

    def restore(
        self, ref: str, to: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Report:
        """Write the workspace files of a commit into a new directory."""
        from ortet.machine.materialise import materialise

        image = self.history.image(self.refs.resolve(ref))
        return materialise(self.objects, self.trees, image, Path(to), progress=progress)

    def image_oid(self, commit: Oid) -> Oid:
        """The machine image inside a commit."""
        state = decode(records.State, self.objects.get(self.history.read(commit).state))
        if not state.machine:
            raise NotFound("no_files", f"commit {to_hex(commit)[:12]} holds no files")
        return Oid(state.machine)

    def read_image(self, oid: Oid) -> records.Image:
        return decode(records.Image, self.objects.get(oid))

    # the store

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Recompute every hash, follow every reference; Corrupt carries the report in details."""
        from ortet.session.care import verify_store

        return verify_store(self, progress)

    def sweep(
        self,
        *,
        dry_run: bool = False,
        expire_ns: int | None = None,
        min_garbage: float | None = None,
        progress: Progress | None = None,
    ) -> SweepReport:
        """Remove objects nothing refers to; with `expire_ns`, older reflog lets go first.

        A pack is rewritten when more than `min_garbage` of it (a fraction) is garbage.
        """
        from ortet.session.care import sweep_store

        return sweep_store(
            self, dry_run=dry_run, expire_ns=expire_ns, min_garbage=min_garbage, progress=progress
        )

    def export(
        self,
        refs: str | Sequence[str],
        path: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> BundleReport:
        """Write commits with all they need into one file."""
        from ortet.session.care import export_refs

        names = [refs] if isinstance(refs, str) else list(refs)
        return export_refs(self, names, Path(path), progress=progress)

    def import_(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> dict[str, str]:
        """Read a bundle; everything is verified before a branch is made. Returns branch -> oid."""
        from ortet.session.care import import_bundle

        return import_bundle(self, Path(path), progress)

    # inside

    def _register(
        self,
        path: Path,
        files: Files,
        *,
        engine: str,
        scope: Scope | None,
        forks: str,
        name: str | None,
    ) -> WorkspaceRow:
        row = WorkspaceRow(
            name=self.registry.free_name(path) if name is None else self.registry.claim(name),
            path=os.fsencode(path),
            host=self._parts.host,
            engine=engine,
            files=files,
            machine=uuid7(self.clock, self._parts.random),
            scope=scope or (self._parts.scope if files == "private" else "workspace"),
            forks=forks,
        )
        with self.writing():  # until the row holds the base, a sweep must not take it
            if files == "private":
                self._parts.engine(engine)  # refuse before anything is stored
                row = msgspec.structs.replace(row, base=self._photograph(path))
            try:
                self.registry.add(row)
            except Conflict:
                found = self.registry.at(path, files, engine)
                if found is None:
                    raise
                return found
        return row

    def _photograph(self, path: Path) -> Oid:
        """The image of a directory as it is, durable in the store."""
        import shutil

        home = self.root / "local" / "machines" / uuid7(self.clock, self._parts.random)
        home.mkdir(parents=True)
        engine = self._parts.engine("folder")
        machine = engine.open(Spec(id=home.name, home=home, path=path))
        try:
            image = machine.freeze()
            self.objects.flush()
            return image
        finally:
            machine.close()
            shutil.rmtree(home, ignore_errors=True)

    def _start(self, row: WorkspaceRow) -> Workspace:
        engine = self._parts.engine(row.engine)
        spec = self._spec(row)
        return self._remember(Workspace(self, row, engine.open(spec)))

    def _remember(self, workspace: Workspace) -> Workspace:
        self._open.append(workspace)
        return workspace

    def _spec(self, row: WorkspaceRow) -> Spec:
        home = self._home(row)
        home.mkdir(parents=True, exist_ok=True)
        return Spec(
            id=row.machine,
            home=home,
            path=row.directory,
            image=self._start_image(row),
            scope=row.scope,
            hide=(*self._parts.hide, self.root),
        )

    def _start_image(self, row: WorkspaceRow) -> Oid | None:
        if row.files == "inplace":
            return None
        head = self.catalog.head(f"branch:{row.name}")
        return self.image_oid(head.oid) if head else Oid(row.base)

    def _home(self, row: WorkspaceRow) -> Path:
        return self.root / "local" / "machines" / row.machine

    def _keep_apart(self, directory: Path) -> None:
        store = self.root.resolve()
        if store == directory or directory in store.parents or store in directory.parents:
            raise Invalid(
                "store_in_workspace",
                f"the store {store} and the workspace {directory} overlap, so an agent's "
                "clean-up could delete history; put the store elsewhere (ORTET_URL, "
                "or `ortet init --store`)",
            )


def _open_all(engine: Engine, specs: Sequence[Spec]) -> list[Machine]:
    opened: list[Machine] = []
    try:
        for spec in specs:
            opened.append(engine.open(spec))
    except BaseException:
        for machine in opened:
            machine.close()
        raise
    return opened
