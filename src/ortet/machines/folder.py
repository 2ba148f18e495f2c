"""The engine for any OS: a directory in place, or a copy of its own; commands run on the host."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import Clock, Oid
from ortet.machines.base import (
    Capability,
    Command,
    Engine,
    Loss,
    Machine,
    News,
    Output,
    Report,
    Result,
    Spec,
)
from ortet.machines.capture.ctimes import COARSE, granularity
from ortet.machines.capture.frames import Dirty
from ortet.machines.capture.ignore_rules import Rules
from ortet.machines.capture.scanner import ScanResult, scan
from ortet.machines.capture.stat_index import CALM, StatIndex
from ortet.machines.dirfd import directory, failure, remove
from ortet.objects.base import Kind, Objects

# What a commit does not need is imported where it is used: a command is a new process each time.
if TYPE_CHECKING:
    from ortet.machines.capture.inotify import Watch
    from ortet.machines.kernels.host import Seat

_TREE = "tree"
_INDEX = "index"
_STAGE = "stage"
_FEW = 100
_BEGIN = "begin"  # of a thaw's journal: there while it is unfinished


class FolderEngine(Engine):
    """Machines that are directories. `watch`: follow changes while a machine is open; `alone`: the
    process is ours, and may fork to look faster."""

    name = "folder"

    def __init__(
        self, objects: Objects, trees: Trees, clock: Clock, *, watch: bool, alone: bool = False
    ) -> None:
        self.alone = alone
        self._objects = objects
        self._trees = trees
        self._clock = clock
        self._watch = watch

    def probe(self) -> list[Capability]:
        if os.scandir in os.supports_fd and os.open in os.supports_dir_fd:
            return [Capability("folder", ok=True)]
        why = "Python cannot open files relative to a directory here"
        return [Capability("folder", ok=False, detail=why, fix="use a POSIX system")]

    def open(self, spec: Spec) -> FolderMachine:
        _recover(spec.home)
        if spec.image is None:
            return self._machine(spec, spec.path, None)
        place = spec.home / _TREE
        index = None if place.is_dir() else self._copy(spec, spec.image, None)
        return self._machine(spec, place, index)

    def copy(
        self, spec: Spec, image: Oid, source: tuple[Path, StatIndex] | None = None
    ) -> FolderMachine:
        """A private machine in the spec's home with the files of `image`."""
        return self._machine(spec, spec.home / _TREE, self._copy(spec, image, source))

    def remove(self, home: Path) -> None:
        _recover(home)
        try:
            with directory(home.parent) as at:
                remove(at, os.fsencode(home.name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(error, f"cannot remove {home}") from error

    def _machine(self, spec: Spec, path: Path, index: StatIndex | None) -> FolderMachine:
        if not path.is_dir():
            raise NotFound(
                "no_directory",
                f"no directory {path}: make it, or open the workspace at another place",
            )
        return FolderMachine(
            self,
            self._objects,
            self._trees,
            clock=self._clock,
            path=path,
            home=spec.home,
            base=spec.image,
            watch=self._watch,
            index=index,
        )

    def _copy(self, spec: Spec, image: Oid, source: tuple[Path, StatIndex] | None) -> StatIndex:
        """Nobody else knows the place yet, so what was written is not racy: the index is calm."""
        from ortet.machines.restore.materialise import materialise

        index = StatIndex(self._trees)
        record = decode(Image, self._objects.get(image))
        materialise(
            self._objects, self._trees, record, spec.home / _TREE, index=index, source=source
        )
        index.image = image
        index.save(spec.home / _INDEX, image)
        return index


class FolderMachine(Machine):
    """A directory whose state is what is in it."""

    engine = "folder"

    def __init__(
        self,
        engine: FolderEngine,
        objects: Objects,
        trees: Trees,
        *,
        clock: Clock,
        path: Path,
        home: Path,
        watch: bool,
        base: Oid | None,
        index: StatIndex | None,
    ) -> None:
        self.path = path
        self._engine, self._clock, self._home = engine, clock, home
        self._objects, self._trees = objects, trees
        self._wanted = watch
        self._watch: Watch | None = None
        self._index = index
        self._rules = Rules()
        self._margin = -1
        self._losses: list[Loss] = []
        self._epoch = _epoch(objects)
        self._frozen: tuple[Oid, Image] | None = None
        self._settled = index.image if index is not None else None
        self._base = base
        self._unsettled = False  # the index rests on objects that no commit holds yet
        self._unsaved = 0
        self._saved = (home / _INDEX).exists()

    def seat(self) -> Seat:
        from ortet.machines.kernels.host import HostSeat

        return HostSeat(self.engine, self.path)

    @property
    def sound(self) -> bool:
        return not (self._home / _STAGE / _BEGIN).exists()

    @property
    def losses(self) -> list[Loss]:
        return list(self._losses)

    def freeze(self) -> Oid:
        self._after_sweep()
        dirty = self._drain()
        index = self._ready_index()
        if (
            self._frozen
            and dirty is not None
            and not (dirty.names or index.pending or index.mapped)
        ):
            return self._frozen[0]
        try:
            result = self._scan(index, dirty)
        except NotFound as error:
            if error.kind != "no_object":
                self._forget()  # the directory is gone, and what was heard of it is drained
                raise
            # the index rests on objects that are gone: read everything again
            self._forget()
            result = self._scan(self._ready_index(), None)
        except BaseException:
            self._forget()  # what the watcher told is drained, what was learned may not be stored
            raise
        if self._watch is not None and self._watch.broken:
            self._wanted = False  # too few watches on this host: scan from now on
            self._unwatch()
        return self._freeze(result)

    def _freeze(self, result: ScanResult) -> Oid:
        if result.learned:
            self._unsaved += result.learned
            self._unsettled = True
        image = Image(root=result.root, links=result.links)
        if self._frozen is None or self._frozen[1] != image:
            self._frozen = self._objects.put(Kind.IMAGE, encode(image)), image
        return self._frozen[0]

    def listen(self, timeout: float, wake: int = -1) -> News | None:
        watch = self._watch
        return watch.listen(timeout, wake, self._rules.ignored) if watch is not None else None

    def settle(self, image: Oid) -> None:
        self._settled = image
        self._unsettled = False
        if not self._saved:
            self._save()  # once, so that a process killed later leaves an index; then at close

    def thaw(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        from ortet.machines.restore.restore import thaw

        target = decode(Image, self._objects.get(image))
        self.freeze()
        assert self._frozen is not None
        index = self._ready_index()
        try:
            report = thaw(
                self._objects,
                self._trees,
                self.path,
                self._frozen[1],
                target,
                index=index,
                stage=self._home / _STAGE,
                rules=self._rules,
                paths=paths,
            )
        except BaseException:
            self._forget()
            raise
        self._frozen = None
        self._unsettled = True
        self._unsaved += _FEW
        beyond = _beyond_files(self._objects, target)
        return msgspec.structs.replace(report, losses=report.losses + beyond)

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | None = None,
        output: Output | None = None,
    ) -> Result:
        from ortet.machines.command import run_command

        return run_command(
            command,
            cwd=self.path / inside(cwd),
            env=env,
            timeout=timeout,
            stdin=stdin,
            output=output,
        )

    def fork(self, specs: Sequence[Spec]) -> list[Machine]:
        source = (self.path, self._ready_index())
        if self._settled is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        forks: list[Machine] = []
        try:
            for spec in specs:
                forks.append(self._engine.copy(spec, self._settled, source))
        except BaseException:
            for machine, spec in zip(forks, specs, strict=False):
                machine.close()
                self._engine.remove(spec.home)
            raise
        return forks

    def close(self) -> None:
        self._unwatch()
        self._save()

    # what is remembered

    def _ready_index(self) -> StatIndex:
        """The index as it is, as saved, or a new one; never one that rests on swept objects."""
        if self._index is None:
            loaded = StatIndex.load(self._home / _INDEX, self._trees)
            if loaded is not None and self._objects.has(loaded.image):
                self._index = loaded
                self._settled = self._settled or loaded.image
            else:
                self._index = StatIndex(self._trees)
                self._settled = self._settled or self._base
        return self._index

    def _after_sweep(self) -> None:
        """A sweep may have taken what no commit held: forget what rests on such objects."""
        epoch = _epoch(self._objects)
        if epoch != self._epoch:
            self._epoch = epoch
            if self._unsettled or self._settled is None or not self._objects.has(self._settled):
                self._forget()

    def _forget(self) -> None:
        self._index = StatIndex(self._trees)
        self._frozen = None
        self._unwatch()

    def _save(self) -> None:
        """Only what a commit holds: the objects below it will be there when it is loaded.

        Not for a few files: to read them again next time takes less.
        A disk too full for it costs the next open a scan, and must fail neither commit nor close.
        """
        worth = self._unsaved >= (_FEW if self._saved else 1)
        if worth and not self._unsettled and self._settled and self._index is not None:
            with contextlib.suppress(OSError):
                self._index.save(self._home / _INDEX, self._settled)
                self._unsaved, self._saved = 0, True

    # looking

    def _scan(self, index: StatIndex, dirty: Dirty | None) -> ScanResult:
        if self._margin < 0:
            self._margin = granularity(self.path)
        now = self._clock.now_ns()
        index.horizon = now - self._margin if self._margin else CALM
        index.abroad = now - COARSE  # nobody tried how fine their times are
        self._losses = []
        try:
            return scan(
                self._objects,
                self._trees,
                root=self.path,
                index=index,
                rules=self._rules,
                losses=self._losses,
                dirty=dirty,
                watch=self._watch,
                alone=self._engine.alone,
            )
        except OSError as error:
            raise failure(error, f"cannot read {self.path}") from error

    def _drain(self) -> Dirty | None:
        """None: look at everything. A watcher starts with a first look, which then covers all."""
        dirty = self._watch.drain() if self._watch is not None else None
        if dirty is None:
            self._unwatch()  # it lost events, perhaps the end of a watch: begin anew
            if self._wanted:
                from ortet.machines.capture.inotify import Watch

                self._watch = Watch.open(self.path)
        return dirty

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _recover(home: Path) -> None:
    """Put back what a killed thaw left half-way."""
    if (home / _STAGE / _BEGIN).exists():
        from ortet.machines.restore.restore import recover

        recover(home / _STAGE)


def inside(cwd: str) -> str:
    """A working directory below the workspace, as a plain relative path."""
    plain = os.path.normpath(cwd or ".")
    if plain == ".." or plain.startswith(("/", "../")):
        raise Invalid("bad_cwd", f"cwd {cwd!r} is outside of the workspace: give a path below it")
    return plain


def _beyond_files(objects: Objects, image: Image) -> list[Loss]:
    """What an image holds that a directory cannot."""
    losses = []
    if image.system is not None:
        why = "changes outside of the workspace come back in the overlay engine only"
        losses.append(Loss("", "system", why))
    if image.processes:
        from ortet.machines.services import left_behind

        losses += left_behind(objects, image, "folder")
    return losses


def _epoch(objects: Objects) -> object:
    return getattr(objects, "epoch", None)
