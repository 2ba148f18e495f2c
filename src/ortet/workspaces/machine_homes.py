"""The homes of machines in the store: opened, copied and removed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, NotFound, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Engine, Machine, MachineSpec
from ortet.machines.dirfd import translate_os_error
from ortet.workspaces.table import RootScope, WorkspaceRow

# File locks in the home of a machine: one for having it open, one for access to its files.
#
# The locks are flock(2) locks, so the kernel releases them when their holder dies.

OPEN_LOCK_FILE = "open"
FILES_LOCK_FILE = "turn"


class MachineLock:
    """The lock of an open machine, held until `close`.

    Inside it, `shared` and `exclusive` blocks control access to the files. Blocks do not nest.

    The lock tells a running restore from an interrupted one. Without it, a process that opens the
    workspace would undo the running restore of another process.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._open_fd = _lock_file(home / OPEN_LOCK_FILE)
        fcntl.flock(self._open_fd, fcntl.LOCK_SH)
        if not os.fstat(self._open_fd).st_nlink:  # the home was removed while we waited
            os.close(self._open_fd)
            raise NotFound(
                "no_workspace",
                "the workspace was just dropped by another process: `ortet branch` lists the rest",
            )
        self._files_fd = _lock_file(home / FILES_LOCK_FILE)
        self._pid = os.getpid()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the shared lock, for a scan of the files."""
        yield from self._locked(fcntl.LOCK_SH)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the exclusive lock, for a restore or its recovery."""
        yield from self._locked(fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the open lock: other processes may remove the machine until `reacquire`."""
        fcntl.flock(self._open_fd, fcntl.LOCK_UN)

    def reacquire(self) -> bool:
        """Take the open lock again after `release`. Return False if the machine was removed."""
        fcntl.flock(self._open_fd, fcntl.LOCK_SH)
        return bool(os.fstat(self._open_fd).st_nlink)

    def close(self) -> None:
        os.close(self._files_fd)
        os.close(self._open_fd)

    def _locked(self, how: int) -> Iterator[None]:
        # flock is shared with the parent after fork(2): the child opens its own
        if self._pid != os.getpid():
            os.close(self._files_fd)
            self._files_fd, self._pid = _lock_file(self._home / FILES_LOCK_FILE), os.getpid()
        fcntl.flock(self._files_fd, how)
        try:
            yield
        finally:
            fcntl.flock(self._files_fd, fcntl.LOCK_UN)


@contextmanager
def lock_for_removal(home: Path, name: str) -> Iterator[None]:
    """Lock a machine for its removal.

    Raises:
        Conflict: "workspace_open" if a process has it open.
    """
    try:
        fd = _lock_file(home / OPEN_LOCK_FILE)
    except FileNotFoundError:  # the machine was never opened
        yield
        return
    try:
        _claim(fd, name)
        yield
    finally:
        os.close(fd)


def _claim(fd: int, name: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(
            "workspace_open", f"workspace {name!r} is open in another process: close it there first"
        ) from None


def _lock_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class OpenMachine(NamedTuple):
    """An open machine with the lock that controls access to its files."""

    machine: Machine
    lock: MachineLock

    def close(self) -> None:
        try:
            self.machine.close()
        finally:
            self.lock.close()


class HostEngines(msgspec.Struct, frozen=True):
    """The engines of this host, as `ortet.config` chooses them.

    Attributes:
        find: Returns an engine by name, created at first use. Raises Invalid for an unknown name.
        strongest: Returns the name of the engine for private files.
        scope: Directory tree that private machines cover by default.
        hide: Paths that private machines do not see.
    """

    find: Callable[[str], Engine]
    strongest: Callable[[], str]
    scope: RootScope
    hide: tuple[Path, ...] = ()


class MachineHomes:
    """The machines of one store on this host, by the rows of their workspaces."""

    def __init__(self, root: Path, engines: HostEngines) -> None:
        self._homes = root / "local" / "machines"
        self._layers = root / "local" / "bases"
        self._find_engine = engines.find
        self._engines: dict[str, Engine] = {}
        self._hide = (*engines.hide, root)

    def close(self) -> None:
        """Close the engines. All machines must be closed before."""
        for engine in self._engines.values():
            engine.close()

    @property
    def has_engines(self) -> bool:
        """True if there are engines to close."""
        return bool(self._engines)

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = self._find_engine(name)
        return self._engines[name]

    def check(self, engine: str) -> None:
        """Raise Unsupported if this host cannot run the engine. The message says what to change."""
        for needed in self._engine(engine).probe():
            if not needed.ok:
                raise Unsupported(
                    "engine_unusable",
                    f"engine {engine!r} cannot be used here, {needed.name}: {needed.detail}; "
                    f"{needed.fix or 'use engine=folder'}",
                )

    def open(self, row: WorkspaceRow, image: Callable[[], Oid | None]) -> OpenMachine:
        """Open the machine of a workspace.

        Args:
            row: the workspace.
            image: gives the image for private files that are new. It is called under the lock, when
                no process can drop the workspace; it raises NotFound if one has dropped it.
        """
        engine = self._engine(row.engine)
        with ExitStack() as undo:
            turn = MachineLock(self._make_home(row))
            undo.callback(turn.close)
            with turn.exclusive():  # recover what a killed process left behind
                try:
                    start = image()
                except NotFound as error:
                    # then the home was made by this call and is empty
                    if error.kind == "no_workspace":
                        engine.remove(self._home(row))
                    raise
                machine = engine.open(self._spec(row, start))
            undo.pop_all()
        return OpenMachine(machine, turn)

    @contextmanager
    def copies(
        self, rows: Sequence[WorkspaceRow], image: Oid, source: Machine | None
    ) -> Iterator[list[OpenMachine]]:
        """Create machines with the files of `image`. If the block fails, they are removed.

        Args:
            source: the machine that has just committed `image`; None if there is none.
        """
        engine = self._engine(rows[0].engine)
        with ExitStack() as undo:
            turns = []
            for row in rows:
                undo.callback(engine.remove, self._make_home(row))
                turns.append(MachineLock(self._home(row)))
                undo.callback(turns[-1].close)
            specs = [self._spec(row, image) for row in rows]
            failpoint("fork.before-machines")
            if source is not None and source.engine == engine.name:
                machines = source.fork(specs)
            else:
                machines = _open_all(engine, specs)
            for machine in machines:
                undo.callback(machine.close)
            yield [OpenMachine(*pair) for pair in zip(machines, turns, strict=True)]
            undo.pop_all()

    def specs(self, rows: Sequence[WorkspaceRow]) -> list[MachineSpec]:
        """Return the specs of machines to be forked."""
        return [self._spec(row, None) for row in rows]

    def capture_directory(self, row: WorkspaceRow, home: str) -> Oid:
        """Store the image of a directory as it is. `home` is used temporarily and removed."""
        engine = self._engine("folder")
        place = self._make_home(replace(row, machine=home))
        try:
            machine = engine.open(MachineSpec(id=home, home=place, path=row.directory))
            try:
                return machine.snapshot()
            finally:
                machine.close()
        finally:
            engine.remove(place)

    def prune(self) -> int:
        """Remove cached layers that no machine uses. Return their number."""
        return self._engine("overlay").prune() if self._layers.is_dir() else 0

    def remove(self, row: WorkspaceRow) -> None:
        """Delete a closed machine with its private files."""
        self._engine(row.engine).remove(self._home(row))

    def exists(self, row: WorkspaceRow) -> bool:
        """Return True if the machine has a home on this host. The first open makes it."""
        return self._home(row).is_dir()

    def lock_for_removal(self, row: WorkspaceRow) -> AbstractContextManager[None]:
        """Lock a machine for its removal. Raise Conflict if another process has it open."""
        return lock_for_removal(self._home(row), row.name)

    def _spec(self, row: WorkspaceRow, image: Oid | None) -> MachineSpec:
        return MachineSpec(
            id=row.machine,
            home=self._home(row),
            path=row.directory,
            image=image,
            scope=row.scope,
            hide=self._hide,
            limits=row.limits,
            network=row.network,
        )

    def _home(self, row: WorkspaceRow) -> Path:
        return self._homes / row.machine

    def _make_home(self, row: WorkspaceRow) -> Path:
        home = self._home(row)
        try:
            os.makedirs(home, exist_ok=True)
        except OSError as error:
            raise translate_os_error(error, f"cannot make {home}") from error
        return home


def _open_all(engine: Engine, specs: Sequence[MachineSpec]) -> list[Machine]:
    with ExitStack() as undo:
        opened: list[Machine] = []
        for spec in specs:
            opened.append(engine.open(spec))
            undo.callback(opened[-1].close)
        undo.pop_all()
    return opened
