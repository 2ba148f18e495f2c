"""The engine for any POSIX system: a directory in place or a private copy.

Commands run as processes of the host.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ortet._util.codec import decode, encode
from ortet.errors import Conflict, NotFound
from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import Clock, Oid
from ortet.machines.base import (
    Capability,
    ChangeNotice,
    Command,
    Engine,
    Loss,
    Machine,
    MachineSpec,
    OutputCallback,
    Report,
    Result,
)
from ortet.machines.capture.frames import DirtyPaths
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.mmap_writers import mapped_inodes
from ortet.machines.capture.scanner import ScanResult, scan
from ortet.machines.capture.stat_index import COARSE_NS, NEVER_RACY, StatIndex, ctime_granularity_ns
from ortet.machines.dirfd import open_directory, remove_tree, translate_os_error
from ortet.objects.base import Kind, ObjectStore

# Modules that a commit does not need are imported where they are used: every command line call is a
# new process.
if TYPE_CHECKING:
    from ortet.machines.capture.inotify import InotifyWatch
    from ortet.machines.kernel_host import KernelHost

_TREE = "tree"
_INDEX = "index"
_STAGE = "stage"
_MIN_CHANGES_TO_SAVE = 100
_BEGIN = "begin"  # file of a restore journal: it exists while the restore is unfinished


class FolderEngine(Engine):
    """Opens machines that are directories.

    Args:
        watch: Follow changes by inotify while a machine is open.
        may_fork: The process belongs to Ortet alone, so a scan may use fork(2) to be faster.
    """

    name = "folder"

    def __init__(
        self,
        objects: ObjectStore,
        trees: Trees,
        clock: Clock,
        *,
        watch: bool,
        may_fork: bool = False,
    ) -> None:
        self.may_fork = may_fork
        self._objects = objects
        self._trees = trees
        self._clock = clock
        self._watch = watch

    def probe(self) -> list[Capability]:
        if os.scandir in os.supports_fd and os.open in os.supports_dir_fd:
            return [Capability("folder", ok=True)]
        why = "Python cannot open files relative to a directory here"
        return [Capability("folder", ok=False, detail=why, fix="use a POSIX system")]

    def open(self, spec: MachineSpec) -> FolderMachine:
        _recover(spec.home)
        if spec.image is None:
            return self._machine(spec, spec.path, None)
        place = spec.home / _TREE
        index = None if place.is_dir() else self._copy(spec, spec.image, None)
        return self._machine(spec, place, index)

    def copy(
        self, spec: MachineSpec, image: Oid, source: tuple[Path, StatIndex] | None = None
    ) -> FolderMachine:
        """Create a private machine in the home of `spec`, with the files of `image`.

        `source` is a directory with its index; equal files are cloned from it.
        """
        return self._machine(spec, spec.home / _TREE, self._copy(spec, image, source))

    def remove(self, home: Path) -> None:
        _recover(home)
        try:
            with open_directory(home.parent) as parent_fd:
                remove_tree(parent_fd, os.fsencode(home.name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise translate_os_error(error, f"cannot remove {home}") from error

    def _machine(self, spec: MachineSpec, path: Path, index: StatIndex | None) -> FolderMachine:
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

    def _copy(
        self, spec: MachineSpec, image: Oid, source: tuple[Path, StatIndex] | None
    ) -> StatIndex:
        """Write the files of `image` into the home and return their index.

        No other process knows the directory yet, so no written file is racy.
        """
        from ortet.machines.restore.checkout import checkout_image

        index = StatIndex(self._trees)
        record = decode(Image, self._objects.get(image))
        checkout_image(
            self._objects, self._trees, record, spec.home / _TREE, index=index, source=source
        )
        index.image = image
        index.save(spec.home / _INDEX, image)
        return index


class FolderMachine(Machine):
    """A machine whose state is the content of one directory."""

    engine = "folder"

    def __init__(
        self,
        engine: FolderEngine,
        objects: ObjectStore,
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
        self._wants_watch = watch
        self._watch: InotifyWatch | None = None
        self._index = index
        self._rules = IgnoreRules()
        self._ctime_margin_ns = -1
        self._losses: list[Loss] = []
        self._sweep_epoch = _read_sweep_epoch(objects)
        self._last_snapshot: tuple[Oid, Image] | None = None
        self._committed_image = index.image if index is not None else None
        self._base = base
        self._has_uncommitted = False  # the index relies on objects of no commit
        self._unsaved = 0
        self._is_index_saved = (home / _INDEX).exists()

    def kernel_host(self) -> KernelHost:
        from ortet.machines.kernels.local_host import LocalKernelHost

        return LocalKernelHost(self.engine, self.path)

    @property
    def is_consistent(self) -> bool:
        return not (self._home / _STAGE / _BEGIN).exists()

    @property
    def losses(self) -> list[Loss]:
        return list(self._losses)

    def snapshot(self) -> Oid:
        self._discard_if_swept()
        dirty = self._drain()
        index = self._load_index()
        mapped = mapped_inodes() if dirty is not None else None
        if mapped is not None:
            index.mark_mapped_inodes(mapped)
        if (
            self._last_snapshot
            and dirty is not None
            and not (dirty.names or index.pending or index.mapped)
        ):
            return self._last_snapshot[0]
        try:
            result = self._scan(index, dirty, mapped)
        except NotFound as error:
            if error.kind != "no_object":
                self._reset_index()  # the directory is gone, and its events are drained
                raise
            # The index relies on objects that no longer exist: read all files again.
            self._reset_index()
            result = self._scan(self._load_index(), None, None)
        except BaseException:
            # The watcher's events are drained, and new entries of the index may not be stored.
            self._reset_index()
            raise
        if self._watch is not None and self._watch.broken_reason:
            self._wants_watch = False  # too few watches on this host: use full scans
            self._unwatch()
        return self._store_image(result)

    def _store_image(self, result: ScanResult) -> Oid:
        if result.learned:
            self._unsaved += result.learned
            self._has_uncommitted = True
        image = Image(root=result.root, links=result.links)
        if self._last_snapshot is None or self._last_snapshot[1] != image:
            self._last_snapshot = self._objects.put(Kind.IMAGE, encode(image)), image
        return self._last_snapshot[0]

    def wait_for_changes(self, timeout: float, wake_fd: int = -1) -> ChangeNotice | None:
        watch = self._watch
        return (
            watch.wait_for_changes(timeout, wake_fd, self._rules.is_ignored)
            if watch is not None
            else None
        )

    def mark_committed(self, image: Oid) -> None:
        self._committed_image = image
        self._has_uncommitted = False
        if not self._is_index_saved:
            self._save()  # once, so that a killed process leaves an index; then only at close

    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        from ortet.machines.restore.restore import restore_directory

        target = decode(Image, self._objects.get(image))
        self.snapshot()
        assert self._last_snapshot is not None
        index = self._load_index()
        try:
            report = restore_directory(
                self._objects,
                self._trees,
                self.path,
                self._last_snapshot[1],
                target,
                index=index,
                stage=self._home / _STAGE,
                rules=self._rules,
                paths=paths,
            )
        except BaseException:
            self._reset_index()
            raise
        self._last_snapshot = None
        self._has_uncommitted = True
        self._unsaved += _MIN_CHANGES_TO_SAVE
        beyond = _losses_beyond_files(self._objects, target)
        return msgspec.structs.replace(report, losses=report.losses + beyond)

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | None = None,
        output: OutputCallback | None = None,
    ) -> Result:
        from ortet.machines.command import relative_cwd, run_command

        return run_command(
            command,
            cwd=self.path / relative_cwd(cwd),
            env=env,
            timeout=timeout,
            stdin=stdin,
            output=output,
        )

    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        source = (self.path, self._load_index())
        if self._committed_image is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        forks: list[Machine] = []
        try:
            for spec in specs:
                forks.append(self._engine.copy(spec, self._committed_image, source))
        except BaseException:
            for machine, spec in zip(forks, specs, strict=False):
                machine.close()
                self._engine.remove(spec.home)
            raise
        return forks

    def close(self) -> None:
        self._unwatch()
        self._save()

    # The stat index.

    def _load_index(self) -> StatIndex:
        """Return the index in memory, else the saved one, else a new one.

        A saved index is not used if its image was garbage-collected.
        """
        if self._index is None:
            loaded = StatIndex.load(self._home / _INDEX, self._trees)
            if loaded is not None and self._objects.has(loaded.image):
                self._index = loaded
                self._committed_image = self._committed_image or loaded.image
            else:
                self._index = StatIndex(self._trees)
                self._committed_image = self._committed_image or self._base
        return self._index

    def _discard_if_swept(self) -> None:
        """Reset the index if a sweep may have deleted uncommitted objects that it relies on."""
        epoch = _read_sweep_epoch(self._objects)
        if epoch != self._sweep_epoch:
            self._sweep_epoch = epoch
            if (
                self._has_uncommitted
                or self._committed_image is None
                or not self._objects.has(self._committed_image)
            ):
                self._reset_index()

    def _reset_index(self) -> None:
        self._index = StatIndex(self._trees)
        self._last_snapshot = None
        self._unwatch()

    def _save(self) -> None:
        """Save the index if it relies on committed objects only and enough has changed.

        Committed objects still exist when the index is loaded. For a few files it is cheaper to
        read them again than to save. A full disk only costs the next open a scan: it must fail
        neither commit nor close.
        """
        worth = self._unsaved >= (_MIN_CHANGES_TO_SAVE if self._is_index_saved else 1)
        if (
            worth
            and not self._has_uncommitted
            and self._committed_image
            and self._index is not None
        ):
            with contextlib.suppress(OSError):
                self._index.save(self._home / _INDEX, self._committed_image)
                self._unsaved, self._is_index_saved = 0, True

    # Scanning.

    def _scan(
        self, index: StatIndex, dirty: DirtyPaths | None, mapped: set[int] | None
    ) -> ScanResult:
        if self._ctime_margin_ns < 0:
            self._ctime_margin_ns = ctime_granularity_ns(self.path)
        now = self._clock.now_ns()
        index.horizon = now - self._ctime_margin_ns if self._ctime_margin_ns else NEVER_RACY
        index.foreign_horizon = now - COARSE_NS  # the ctime granularity of mounts below is unknown
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
                mapped=mapped,
                watch=self._watch,
                may_fork=self._engine.may_fork,
            )
        except OSError as error:
            raise translate_os_error(error, f"cannot read {self.path}") from error

    def _drain(self) -> DirtyPaths | None:
        """Return the changed paths, or None for a full scan.

        A new watch starts with a full scan, so that from then on its events cover all changes. The
        second scan is full too: it adds the watches of files.
        """
        dirty = self._watch.drain() if self._watch is not None else None
        if self._watch is not None and dirty is not None and not self._watch.watch_files:
            self._watch.watch_files = True
            return None
        if dirty is None:
            self._unwatch()  # it lost events, perhaps the end of a watch: start a new one
            if self._wants_watch:
                from ortet.machines.capture.inotify import InotifyWatch

                self._watch = InotifyWatch.open(self.path)
        return dirty

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None


def _recover(home: Path) -> None:
    """Undo a restore that a killed process left unfinished."""
    if (home / _STAGE / _BEGIN).exists():
        from ortet.machines.restore.restore import recover_restore

        recover_restore(home / _STAGE)


def _losses_beyond_files(objects: ObjectStore, image: Image) -> list[Loss]:
    """Return a loss for each part of an image that a directory cannot hold."""
    losses = []
    if image.system is not None:
        why = "changes outside of the workspace come back in the overlay engine only"
        losses.append(Loss("", "system", why))
    if image.processes:
        from ortet.machines.services import service_losses

        losses += service_losses(objects, image, "folder")
    return losses


def _read_sweep_epoch(objects: ObjectStore) -> object:
    return getattr(objects, "epoch", None)
