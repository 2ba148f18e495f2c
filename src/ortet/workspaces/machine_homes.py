"""Where the machines of workspaces live: homes in the store, opened, copied and removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.errors import NotFound, Unsupported
from ortet.ids import Oid
from ortet.machines.base import Engine, Machine, MachineSpec
from ortet.machines.dirfd import translate_os_error
from ortet.workspaces.table import WorkspaceRow
from ortet.workspaces.turns import MachineLock, lock_for_removal


class OpenMachine(NamedTuple):
    """An open machine, and the lock that says who may move its files."""

    machine: Machine
    lock: MachineLock

    def close(self) -> None:
        try:
            self.machine.close()
        finally:
            self.lock.close()


class MachineHomes:
    """The machines of one store on this host, by the rows of their workspaces."""

    def __init__(
        self, store: Path, engine: Callable[[str], Engine], hide: Sequence[Path] = ()
    ) -> None:
        self._homes = store / "local" / "machines"
        self._layers = store / "local" / "bases"
        self._find_engine = engine
        self._engines: dict[str, Engine] = {}
        self._hide = (*hide, store)

    def close(self) -> None:
        """After its machines."""
        for engine in self._engines.values():
            engine.close()

    @property
    def has_engines(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._engines)

    def _engine(self, name: str) -> Engine:
        if name not in self._engines:
            self._engines[name] = self._find_engine(name)
        return self._engines[name]

    def check(self, engine: str) -> None:
        """Unsupported, with the one thing to change, when this host cannot run it."""
        for needed in self._engine(engine).probe():
            if not needed.ok:
                raise Unsupported(
                    "engine_unusable",
                    f"engine {engine!r} cannot be used here, {needed.name}: {needed.detail}; "
                    f"{needed.fix or 'use engine=folder'}",
                )

    def open(self, row: WorkspaceRow, image: Callable[[], Oid | None]) -> OpenMachine:
        """Start the machine of a workspace, from `image` when its files are private and new.

        `image` is asked when nobody can drop the workspace any more; NotFound: somebody has.
        """
        engine = self._engine(row.engine)
        with ExitStack() as undo:
            turn = MachineLock(self._make_home(row))
            undo.callback(turn.close)
            with turn.exclusive():  # what a killed process left half-way is put back now
                try:
                    start = image()
                except NotFound as error:
                    if error.kind == "no_workspace":  # then the home is our making, and empty
                        engine.remove(self._home(row))
                    raise
                machine = engine.open(self._spec(row, start))
            undo.pop_all()
        return OpenMachine(machine, turn)

    @contextmanager
    def copies(
        self, rows: Sequence[WorkspaceRow], image: Oid, source: Machine | None
    ) -> Iterator[list[OpenMachine]]:
        """New machines with the files of `image`, which `source`, when given, has just settled.

        When the block fails nothing of them is left.
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
        """Of machines that are to be forked."""
        return [self._spec(row, None) for row in rows]

    def capture_directory(self, row: WorkspaceRow, home: str) -> Oid:
        """The image of a directory as it is, put into the store; `home` is used and removed."""
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
        """Remove cached layers that no machine rests on."""
        return self._engine("overlay").prune() if self._layers.is_dir() else 0

    def remove(self, row: WorkspaceRow) -> None:
        """Delete a closed machine with its private files."""
        self._engine(row.engine).remove(self._home(row))

    def exists(self, row: WorkspaceRow) -> bool:
        """Whether its files are on this host; a home is made when it is opened first."""
        return self._home(row).is_dir()

    def lock_for_removal(self, row: WorkspaceRow) -> AbstractContextManager[None]:
        """For the time of a removal; Conflict when another process has it open."""
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
