"""A live machine: its snapshot includes processes, memory and sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, OrtetError
from ortet.history.records import Image, Layer
from ortet.ids import Oid
from ortet.machines.base import Loss, Machine, MachineSpec, Report
from ortet.machines.control.jobs import JobInfo
from ortet.machines.kernels.host import KernelHost
from ortet.machines.kernels.live_host import LiveKernelHost, LiveKernelLayers
from ortet.machines.live import process
from ortet.machines.live.cgroups import MachineCgroup
from ortet.machines.live.context import IMAGES_PREFIX, Dump, LiveEngineContext
from ortet.machines.live.criu import preflight
from ortet.machines.live.criu.dump import CriuDumper
from ortet.machines.live.criu.external_connections import close_external_connections
from ortet.machines.live.criu.rpc import CriuWorker
from ortet.machines.live.criu.worker_pool import SpareCriu
from ortet.machines.live.host_compat import require_same_workspace_path
from ortet.machines.live.images.save import SavedImages, save_images
from ortet.machines.live.liveruns import HOSTNAME_LENGTH
from ortet.machines.live.network.port_forward import PortForwards
from ortet.machines.live.network.slirp import prepare_network
from ortet.machines.live.open_files import OpenFilesCapture
from ortet.machines.live.prefork import BackgroundTask, PreforkedMachines, StartForks
from ortet.machines.live.process import LiveMachineProcess
from ortet.machines.live.temp_dirs import TempDirs, restore_temp_dirs
from ortet.machines.overlay.home import LayerLayout, MachineHome
from ortet.machines.overlay.ignored_files import IgnoredFiles, add_ignored_layer, link_ignored_files
from ortet.machines.overlay.layers import LayerStack
from ortet.machines.overlay.machine import ForkCallback, add_losses
from ortet.machines.services import (
    ExternalConnection,
    RunningServices,
    closed_connection_losses,
    make_storable,
    put_services,
)
from ortet.objects.base import Kind

ON_FORK, ON_RESTORE = "on-fork", "on-restore"
# other directories in which programs watch files with inotify
_WATCHED_DIRECTORIES = ("/tmp", "/run", "/etc")


class LiveMachine(LiveKernelLayers):
    """An overlay machine whose running processes are part of every snapshot.

    Pid 1 of the machine is `standalone/init.py`, an ordinary program inside the machine.

    `processes` is the id of a dump: the machine starts with the processes of that dump. After the
    start, the machine runs its hooks of `hook_kind`, "on-fork" or "on-restore".
    """

    engine = "criu"
    _context: LiveEngineContext

    def __init__(
        self,
        context: LiveEngineContext,
        spec: MachineSpec,
        home: MachineHome,
        *,
        layout: LayerLayout,
        fork: ForkCallback,
        start_forks: StartForks,
        processes: bytes = b"",
        hook_kind: str = "",
    ) -> None:
        super().__init__(context, spec, home, layout=layout, fork=fork)
        self._dump_to_restore = processes  # id of the dump to start from, or empty
        self._hook_kind = hook_kind  # which hooks run after the start
        # the next dump is stored as a difference to these
        self._saved_images: SavedImages | None = None
        # id and directory of the last dump on disk
        self._last_dump: tuple[bytes, Path] | None = None
        self._background_task = BackgroundTask()
        self._prefork = PreforkedMachines(context, start_forks)
        self._worker: CriuWorker | None = None
        self._temp_dirs: TempDirs | None = None
        self._start_losses: list[Loss] = []
        self._previous_ignored: IgnoredFiles | None = (
            None  # ignored files of the machine that this one replaces
        )
        self._ports = PortForwards(context.supervisor)
        self._kernel_host = LiveKernelHost(
            lambda: self.init_client, str(spec.path), lambda: self.path, self
        )

    # start and end

    def _start_process(self, plan: dict[str, Any]) -> LiveMachineProcess:
        ground, spec = self._context, self._spec
        spare = ground.supervisor.take_spare() if self._dump_to_restore else None
        group = ground.cgroups.create(
            spec.id,
            spec.limits,
            self._home.path,
            restoring=spare is not None,
            reserved=spare.cgroup if spare is not None else "",
        )
        try:
            guard = (
                self._start_from_dump(plan, group, spare)
                if spare
                else self._start_fresh(plan, group)
            )
        except BaseException:
            if spare is not None:
                spare.close()
            group.close()
            raise
        self._start_losses += group.losses
        return guard

    def _start_fresh(self, plan: dict[str, Any], cgroup: MachineCgroup) -> LiveMachineProcess:
        self._link_ignored_files()
        hostname, place = self._spec.id[-HOSTNAME_LENGTH:], str(self._spec.path)
        keeper = self._context.supervisor
        outlet = prepare_network(keeper, self._host_overlays, self._spec.network)
        starting = keeper.start_machine(plan, hostname, cgroup.paths)
        return process.start(starting, place, cgroup=cgroup, outbound=outlet)

    def _start_from_dump(
        self, plan: dict[str, Any], cgroup: MachineCgroup, spare: SpareCriu
    ) -> LiveMachineProcess:
        ground = self._context
        dump = ground.load_dump(self._dump_to_restore, self._home)
        carried, mounts = dump.carried, dump.carried.mounts
        require_same_workspace_path(mounts, str(self._spec.path))
        upper, objects = self._home.upper(self._layout.upper), ground.objects
        self._start_losses = restore_temp_dirs(
            objects, ground.trees, self._host_overlays, dump.covers, upper
        )
        self._link_ignored_files()
        self._start_losses += closed_connection_losses(carried.outside)
        network, counted_on = self._spec.network, carried.outlet
        outlet = prepare_network(
            ground.supervisor, self._host_overlays, network, needs_address=counted_on
        )
        # Mounts of the host at dump time may no longer exist. Where one is missing, the stand-in
        # step binds the plain directory onto itself, so that CRIU finds a mount.
        stand_ins = [at for at in mounts if at != str(self._spec.path)]
        plan["steps"] += [{"do": "stand-in", "at": at} for at in stand_ins]
        self._saved_images = dump.kept
        return process.restore(
            ground.supervisor.prepare_restore_worker(spare, plan, cgroup.paths),
            dump.images,
            str(self._spec.path),
            cgroup=cgroup,
            outbound=outlet,
            work_dir=self._home.make_empty_dir("restoring"),
            root=ground.layer_store.area / "root",
            mounts=mounts,
            supervisor=ground.supervisor,
        )

    def _link_ignored_files(self) -> None:
        """Link the ignored files of the replaced machine into the new upper directory.

        Ignored files are not part of the image, so the restored image does not contain them.
        """
        ground, standing = self._context, self._layout
        ignored, self._previous_ignored = self._previous_ignored, None
        if ignored is not None:
            link_ignored_files(
                ground, ignored, self._home.upper(standing.upper), standing.stack.root
            )

    def wait_started(self) -> None:
        """Wait until the machine's pid 1 answers.

        This is the slow part of a start; several machines may do it in parallel.
        """
        self._live_process.ready()

    def finish_start(self, losses: Sequence[Loss] = ()) -> None:
        super().finish_start([*losses, *self._start_losses])
        self._losses += self._live_process.outbound.losses
        self._busy = bool(self._dump_to_restore)
        if self._hook_kind:
            self._losses += self._renew_identity(self._hook_kind)
        self._dump_to_restore, self._start_losses, self._hook_kind = b"", [], ""
        self._background_task.start(self._prestart_worker)

    def _prestart_worker(self) -> None:
        """Start a CRIU worker for the next snapshot: starting one takes as long as a small dump."""
        self._close_worker()
        with suppress(OrtetError, OSError):  # the machine may have ended since
            self._worker = self._context.supervisor.start_dump_worker(self._live_process.pid)
        self._context.supervisor.refill_spares()

    def _close_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def close(self) -> None:
        self._prefork.announce(())
        self._background_task.wait()
        self._close_worker()
        self._ports.close()
        super().close()

    def _current_jobs(self) -> list[JobInfo]:
        return self.init_client.jobs()

    def _unsaved_process_losses(self, jobs: Sequence[JobInfo]) -> list[Loss]:
        del jobs
        return []

    # operations

    def kernel_host(self) -> KernelHost:
        return self._kernel_host

    def expose(self, port: int, at: int = 0) -> int:
        return self._ports.open(self._live_process.pid, port, at)

    def exposed_ports(self) -> dict[int, int]:
        return self._ports.host_ports()

    def unexpose(self, port: int) -> None:
        self._ports.close_port(port)

    def announce_forks(self, specs: Sequence[MachineSpec]) -> None:
        self._prefork.announce(specs)
        if not specs and self._worker is None and not self._closed:
            self._background_task.start(self._prestart_worker)

    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        if self._committed_image is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        image = decode(Image, self._context.objects.get(self._committed_image))
        forks, losses = self._prefork.claim(specs, image.processes)
        if forks:
            for machine in forks:
                assert isinstance(machine, LiveMachine)
                machine._saved_images = self._saved_images
            return add_losses(forks, losses)
        with self._context.layer_store.prevent_prune():
            standing, losses = self._fork_layout(image)
            forks = self._start_forks(specs, standing, lambda: None, image.processes)
        return add_losses(forks, losses)

    def _fork_layout(self, image: Image) -> tuple[LayerLayout, list[Loss]]:
        """Return the layers that forks start on, and the losses of ignored files."""
        stack, losses = add_ignored_layer(
            self._context, self._shared_stack(image), self._ignored_files()
        )
        return LayerLayout(1, stack, image.system, self._layout.ignoring), losses

    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        """Restore an image in place if only files change, else restart the machine from it."""
        target = decode(Image, self._context.objects.get(image))
        idle = self._is_idle()
        # A merge result has the processes that run here already: only the files change.
        same = (
            self._last_snapshot is not None and target.processes == self._last_snapshot[1].processes
        )
        if paths is not None or (same and not idle) or (idle and not target.processes):
            return super().restore(image, paths)
        return self._restart_from_image(target)

    def _service_losses(self, target: Image) -> list[Loss]:
        del target
        return []

    # snapshot

    def _snapshot(self) -> tuple[Oid, Image]:
        if self._is_idle():
            return super()._snapshot()
        self._live_process.wait_for_memory()
        self._kernel_host.check_snapshot()
        watching = preflight.check(self._live_process.pid).watching
        self._ensure_snapshotter()
        self._has_uncommitted = True  # also if the dump fails
        mapped, jobs = self._mapped(), self.init_client.jobs()
        images = self._home.make_empty_dir(f"{IMAGES_PREFIX}-{time.monotonic_ns()}")
        found: list[tuple[Image, list[Layer], list[ExternalConnection]]] = []

        def frozen() -> None:
            files = self._scan_files(mapped, quiet=False)
            covers = self._capture_temp_dirs(files, images)
            found.append(
                (files, covers, close_external_connections(images, self._live_process.pid))
            )

        self._was_busy = True
        try:
            with self._kernel_host.disconnected():
                self._dump(
                    images,
                    frozen,
                    [str(self._spec.path), *_WATCHED_DIRECTORIES] if watching else [],
                )
            failpoint("criu.dumped")
            self._search_secrets(images)
        except BaseException:  # do not leave half a dump, or a secret, on disk
            self._home.remove_dir(images.name)
            self._background_task.start(self._prestart_worker)
            raise
        (files, covers, outside), guard = found[-1], self._live_process
        carried = RunningServices(
            guard.external_mounts, make_storable(jobs), guard.outbound.needs_address, outside
        )
        dump = Dump(images, carried, covers)
        self._prefork.start(dump, lambda: self._fork_layout(files))
        if not self._prefork.announced_specs:  # announced forks need the CPUs now
            self._background_task.start(self._prestart_worker)
        kept = save_images(
            self._context.objects,
            images,
            self._saved_images,
            host=self._context.host,
            covers=covers,
            jobs=encode(carried),
        )
        self._register_dump(replace(dump, kept=kept), kept)
        services = put_services(self._context.objects, jobs, str(self._spec.path))
        image = replace(files, services=services, processes=kept.oid)
        self._last_snapshot = self._context.objects.put(Kind.IMAGE, encode(image)), image
        self._has_uncommitted = True
        return self._last_snapshot

    def _search_secrets(self, images: Path) -> None:
        search, page = self._context.objects.scanner, self._context.host.page_size
        if search is not None:
            search.images(images, page, self._live_process.describe_process)

    def _lower_layout(self) -> LayerLayout:
        return replace(self._layout, system=None)  # it is in the upper directories already

    def _is_idle(self) -> bool:
        """Return True if only pid 1 runs.

        The machine is asked every time, because programs of other users may have started processes.
        """
        self._mapped()
        return not self._busy

    def _current_image(self) -> Image:
        if self._is_idle():
            return super()._current_image()
        self._ensure_snapshotter()
        self._was_busy = self._has_uncommitted = True
        return self._scan_files(self._mapped(), quiet=False)

    def _dump(self, images: Path, on_frozen: Callable[[], None], watched: Sequence[str]) -> None:
        guard, keeper, lock = self._live_process, self._context.supervisor, self.control_socket.lock
        dump = CriuDumper(guard, keeper, lock=lock, take_worker=self._take_worker)
        dump.dump(
            images,
            on_frozen,
            watched=watched,
            clear_images=lambda: self._home.make_empty_dir(images.name),
        )

    def _take_worker(self) -> CriuWorker:
        self._background_task.wait()
        if self._worker is None or not self._worker.alive:
            self._prestart_worker()
        worker, self._worker = self._worker, None
        return worker or self._context.supervisor.start_dump_worker(self._live_process.pid)

    def _capture_temp_dirs(self, files: Image, images: Path) -> list[Layer]:
        """Capture files that are not in the image, but that the processes depend on.

        Examples are files in /tmp, and ignored files that a process has open.
        """
        ground, covers = self._context, self._host_overlays
        if self._temp_dirs is None:
            place, objects, trees = str(self._spec.path), ground.objects, ground.trees
            held = OpenFilesCapture(objects, trees, workspace_path=place, host_overlays=covers)
            own = [os.path.realpath(path) for path in (self._spec.path, *self._spec.hide)]
            self._temp_dirs = TempDirs(
                objects,
                trees,
                covers,
                machine_dirs=own,
                watch=ground.temp_dirs_watch,
                open_files=held,
            )
        inside = Path(f"/proc/{self._live_process.pid}/root")
        return self._temp_dirs.capture_layers(
            ground.horizon(), files, images=images, machine_root=inside
        )

    def _register_dump(self, dump: Dump, saved: SavedImages) -> None:
        """Remember the newest dump on disk for forks, and delete the one before it."""
        self._saved_images = saved
        old, self._last_dump = self._last_dump, (saved.oid, dump.images)
        self._context.local_dumps[saved.oid] = dump
        self._prefork.mark_stored(saved.oid)
        if old is not None and old[0] != saved.oid:
            self._context.local_dumps.pop(old[0], None)
            self._background_task.start(partial(self._home.remove_dir, old[1].name))

    def _reset_snapshotter(self) -> None:
        super()._reset_snapshotter()
        if self._temp_dirs is not None:
            self._temp_dirs.close()
            self._temp_dirs = None

    # layers

    def _shared_stack(self, image: Image) -> LayerStack:
        return self._context.layer_store.ensure_stack(
            _without_processes(image), self._layout.stack
        )[0]

    def _restart_from_image(self, target: Image) -> Report:
        """Replace the files, mounts and processes by those of an image.

        The old processes end only after the new ones run, so a failure changes nothing.
        """
        old, home, bases = self._layout, self._home, self._context.layer_store
        with bases.prevent_prune():
            system, losses = self._context.system_for(self._spec, target)
            stack, more = bases.ensure_stack(_without_processes(target), old.stack)
            new = replace(old, upper=old.upper + 1, stack=stack, system=system, outer=old.outer + 1)
            losses += more + home.make_upper(new.upper, stack, bases)
            self._dump_to_restore, self._hook_kind = target.processes, ON_RESTORE
            self._previous_ignored = self._ignored_files()
            self._restart(new)
        home.remove_unused_dirs(new)
        losses += self._losses  # the losses of the start
        running = [job.name for job in self.jobs() if job.name and job.code is None]
        return Report(losses=losses, started=running)

    def _restart(self, new: LayerLayout) -> None:
        old, before, covers = self._layout, self._process, self._host_overlays
        try:
            self._layout = new
            self.start()
            self.finish_start()
        except BaseException:
            if self._process is not None and self._process is not before:
                self._process.close()
            self._layout, self._process, self._host_overlays = old, before, covers
            self._dump_to_restore, self._hook_kind, self._previous_ignored = b"", "", None
            self._home.remove_unused_dirs(old)  # so that a retry starts clean
            raise
        if before is not None:
            before.close()
        self._ports.reattach(self._live_process.pid)
        self._reset_snapshotter()
        self._set_layout(new)


def _without_processes(image: Image) -> Image:
    return replace(image, services=b"", processes=b"")
