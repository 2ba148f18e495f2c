"""A live machine: its snapshot includes processes, memory and sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from ortet._util.codec import decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import Conflict
from ortet.history.records import Image, Layer
from ortet.ids import Oid
from ortet.machines.base import (
    Command,
    ControlSocket,
    Loss,
    Machine,
    MachineSpec,
    Report,
    Result,
)
from ortet.machines.command import argv_of, build_environment
from ortet.machines.control.client import InitClient
from ortet.machines.jobs import Job, JobInfo, ProcessInfo
from ortet.machines.kernel_host import KernelHost
from ortet.machines.live.context import IMAGES_PREFIX, Dump, LiveEngineContext
from ortet.machines.live.criu import preflight
from ortet.machines.live.criu.connections import close_external_connections
from ortet.machines.live.criu.dump import BackgroundTask, CriuDumper
from ortet.machines.live.images.save import SavedImages, check_images, save_images
from ortet.machines.live.kernel_host import LiveKernelHost
from ortet.machines.live.network.port_forward import PortForwards
from ortet.machines.live.prefork import PreforkedMachines, StartForks
from ortet.machines.live.process import LiveMachineProcess
from ortet.machines.live.secret_env import secret_launcher_argv
from ortet.machines.live.startup import HOSTNAME_LENGTH, MachineStarter, StartOrigin
from ortet.machines.live.temp_dirs import TempDirs
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.ignored_files import add_ignored_layer
from ortet.machines.overlay.layer_switcher import LayerSwitcher
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome
from ortet.machines.secrets.names import is_secret
from ortet.machines.services import (
    ExternalConnection,
    RunningServices,
    make_storable,
    put_services,
)
from ortet.objects.base import Kind

ON_FORK, ON_RESTORE = "on-fork", "on-restore"
# other directories in which programs watch files with inotify
_WATCHED_DIRECTORIES = ("/tmp", "/run", "/etc")


class LiveMachine(Machine):
    """A machine whose running processes are part of every snapshot.

    Its files are those of an overlay machine. Pid 1 is `standalone/init.py`, an ordinary program
    inside the machine.

    `processes` is the id of a dump: the machine starts with the processes of that dump. After the
    start, the machine runs its hooks of `hook_kind`, "on-fork" or "on-restore".
    """

    engine = "criu"

    def __init__(
        self,
        context: LiveEngineContext,
        spec: MachineSpec,
        home: MachineHome,
        *,
        layout: LayerLayout,
        start_forks: StartForks[LiveMachine],
        processes: bytes = b"",
        hook_kind: str = "",
    ) -> None:
        self._context = context
        self._spec = spec
        self._files = files = OverlayFiles(context.overlay, spec, home, layout)
        self._layers = LayerSwitcher(files, self._restart)
        self._starter = MachineStarter(context, files)
        self._origin = StartOrigin(processes, hook_kind)
        self._process: LiveMachineProcess | None = None
        self._background = BackgroundTask()
        self._dumper = CriuDumper(
            context.supervisor,
            self._background,
            process=lambda: self._live_process,
            lock=files.control_lock_path,
        )
        # the next dump is stored as a difference to these
        self._saved_images: SavedImages | None = None
        # id and directory of the last dump on disk
        self._last_dump: tuple[bytes, Path] | None = None
        self._temp_dirs = TempDirs(files, context.temp_dirs_watch)
        files.call_on_reset(self._temp_dirs.close)
        self._start_forks = start_forks
        self._prefork = PreforkedMachines(context, start_forks)
        self._ports = PortForwards(context.supervisor)
        self._kernel_host = LiveKernelHost(
            files,
            context.supervisor,
            init_client=lambda: self.init_client,
            current_image=self._current_image,
        )
        self._start_losses: list[Loss] = []
        self._closed = False

    # Start and close.

    def start(self) -> None:
        """Start the processes. `finish_start` waits for them."""
        started = self._starter.start(self._origin)
        self._process = started.process
        self._files.attach(started.process)
        self._start_losses = started.losses
        if self._origin.dump:
            self._saved_images = started.saved_images

    def wait_started(self) -> None:
        """Wait until the machine's pid 1 answers.

        This is the slow part of a start; several machines may do it in parallel.
        """
        self._live_process.ready()

    def finish_start(self, losses: Sequence[Loss] = ()) -> None:
        """Wait for the machine, undo an interrupted restore, and run the hooks."""
        files, origin = self._files, self._origin
        files.finish_start([*losses, *self._start_losses])
        self.path = files.path
        self.add_losses(self._live_process.outbound.losses)
        files.busy = bool(origin.dump)
        if origin.hook_kind:
            self.add_losses(self._renew_identity(origin.hook_kind))
        self._origin, self._start_losses = StartOrigin(), []
        self._dumper.prestart_worker()

    def close(self) -> None:
        self._prefork.announce(())
        self._background.wait()
        self._dumper.close()
        self._ports.close()
        self._kernel_host.close()
        if not self._closed:
            self._closed = True
            self._files.close()

    @property
    def _live_process(self) -> LiveMachineProcess:
        assert self._process is not None
        return self._process

    def _renew_identity(self, hook_kind: str) -> list[Loss]:
        """Give a copied machine its own identity before it runs anything else.

        Sets id, hostname and random seed, and runs the user's hooks. Returns a loss for each failed
        hook.
        """
        ran = self.init_client.renew_identity(
            hook_kind,
            machine_id=self._spec.id,
            hostname=self._spec.id[-HOSTNAME_LENGTH:],
            entropy=os.urandom(64),
            workspace_path=str(self._spec.path),
        )
        return [
            Loss(hook.path, "hook", f"it ended with {hook.code}: {hook.output[-200:].strip()}")
            for hook in ran
            if hook.code != 0
        ]

    # Forks.

    def announce_forks(self, specs: Sequence[MachineSpec]) -> None:
        self._prefork.announce(specs)
        if not specs and not self._dumper.has_worker and not self._closed:
            self._dumper.prestart_worker()

    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        if self._files.committed_image is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        image = decode(Image, self._context.objects.get(self._files.committed_image))
        forks, losses = self._prefork.claim(specs, image.processes)
        if forks:
            for fork in forks:
                fork._saved_images = self._saved_images
        else:
            with self._context.layer_store.prevent_prune():
                layout, losses = self._fork_layout(image)
                forks = self._start_forks(specs, layout, image.processes).finish()
        for fork in forks:
            fork.add_losses(losses)
        return list[Machine](forks)

    def _fork_layout(self, image: Image) -> tuple[LayerLayout, list[Loss]]:
        """Return the layers that forks start on, and the losses of ignored files."""
        layout, context = self._files.layout, self._context.overlay
        stack = context.layer_store.ensure_stack(_without_processes(image), layout.stack)[0]
        stack, losses = add_ignored_layer(context, stack, self._files.ignored_files())
        return LayerLayout(1, stack, image.system, layout.ignoring), losses

    def kernel_host(self) -> KernelHost:
        return self._kernel_host

    # Restore.

    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        """Restore an image in place if only files change, else restart the machine from it."""
        target, last = decode(Image, self._context.objects.get(image)), self._files.last_snapshot
        idle = self._is_idle()
        # A merge result has the processes that run here already: only the files change.
        same = last is not None and target.processes == last[1].processes
        if paths is not None or (same and not idle) or (idle and not target.processes):
            return self._layers.restore(self._current_image(), target, paths)
        return self._restart_from_image(target)

    def _restart_from_image(self, target: Image) -> Report:
        """Replace the files, mounts and processes by those of an image.

        The old processes end only after the new ones run, so a failure changes nothing.
        """
        files, home, context = self._files, self._files.home, self._context.overlay
        old = files.layout
        with context.layer_store.prevent_prune():
            system, losses = context.system_for(self._spec, target)
            stack, more = context.layer_store.ensure_stack(_without_processes(target), old.stack)
            new = replace(old, upper=old.upper + 1, stack=stack, system=system, outer=old.outer + 1)
            losses += more + home.make_upper(new.upper, stack, context.layer_store)
            self._origin = StartOrigin(target.processes, ON_RESTORE, files.ignored_files())
            self._restart(new)
        home.remove_unused_dirs(new)
        losses += files.losses  # the losses of the start
        running = [job.name for job in self.jobs() if job.name and job.code is None]
        return Report(losses=losses, started=running)

    def _restart(self, new: LayerLayout) -> None:
        """Replace the processes by those of `_origin`, on another layout."""
        files = self._files
        old, before, overlays = files.layout, self._process, files.host_overlays
        try:
            files.layout = new
            self.start()
            self.finish_start()
        except BaseException:
            if self._process is not None and self._process is not before:
                self._process.close()
            files.layout, self._process, files.host_overlays = old, before, overlays
            files.attach(self._live_process)
            files.link_root()
            self.path, self._origin = files.path, StartOrigin()
            files.home.remove_unused_dirs(old)  # so that a retry starts clean
            raise
        if before is not None:
            before.close()
        self._ports.reattach(self._live_process.pid)
        files.reset_snapshotter()
        files.set_layout(new)

    # Snapshots.

    @property
    def losses(self) -> list[Loss]:
        missed = [] if self._process is None else self._process.outbound.runtime_losses()
        return [*self._files.losses, *missed]

    def add_losses(self, losses: Sequence[Loss]) -> None:
        """Report further losses of the start, for example those of all forks."""
        self._files.losses = [*self._files.losses, *losses]

    def snapshot(self) -> Oid:
        if self._is_idle():
            return self._files.store(self._idle_image())[0]
        return self._snapshot_processes()

    def snapshot_files(self) -> Oid:
        return self._context.objects.put(Kind.IMAGE, encode(self._current_image()))

    def mark_committed(self, image: Oid) -> None:
        self._files.mark_committed(image)

    def _is_idle(self) -> bool:
        """Return True if only pid 1 runs.

        The machine is asked every time, because programs of other users may have started processes.
        """
        self._files.mapped_files()
        return not self._files.busy

    def _idle_image(self) -> Image:
        image, jobs = self._files.scan(), self.init_client.jobs()
        if jobs:
            services = put_services(self._context.objects, jobs, str(self._spec.path))
            image = replace(image, services=services)
        return image

    def _current_image(self) -> Image:
        """Return the image of the files as they are now, without a dump."""
        files = self._files
        if self._is_idle():
            return files.store(self._idle_image())[1]
        files.ensure_snapshotter()
        files.was_busy = files.has_uncommitted = True
        return files.scan_mapped(files.mapped_files(), quiet=False)

    def _snapshot_processes(self) -> Oid:
        self._live_process.wait_for_memory()
        self._kernel_host.check_snapshot()
        watching = preflight.check(self._live_process.pid).watching
        files = self._files
        files.ensure_snapshotter()
        files.has_uncommitted = True  # also if the dump fails
        jobs = self.init_client.jobs()
        files_image, dump = self._dump(
            jobs, [str(self._spec.path), *_WATCHED_DIRECTORIES] if watching else []
        )
        self._prefork.start(dump, lambda: self._fork_layout(files_image))
        if not self._prefork.announced_specs:  # announced forks need the CPUs now
            self._dumper.prestart_worker()
        saved = save_images(
            self._context.objects,
            dump.images,
            self._saved_images,
            host=self._context.host,
            covers=dump.covers,
            jobs=encode(dump.carried),
        )
        self._register_dump(replace(dump, kept=saved), saved)
        services = put_services(self._context.objects, jobs, str(self._spec.path))
        image = replace(files_image, services=services, processes=saved.oid)
        files.last_snapshot = self._context.objects.put(Kind.IMAGE, encode(image)), image
        files.has_uncommitted = True
        return files.last_snapshot[0]

    def _dump(self, jobs: Sequence[JobInfo], watched: Sequence[str]) -> tuple[Image, Dump]:
        """Dump the processes, and capture the files while the processes are stopped."""
        files = self._files
        mapped = files.mapped_files()
        images = files.home.make_empty_dir(f"{IMAGES_PREFIX}-{time.monotonic_ns()}")
        captured: list[tuple[Image, list[Layer], list[ExternalConnection]]] = []

        def frozen() -> None:
            image = files.scan_mapped(mapped, quiet=False)
            root = Path(f"/proc/{self._live_process.pid}/root")
            covers = self._temp_dirs.capture_layers(image, images=images, machine_root=root)
            captured.append(
                (image, covers, close_external_connections(images, self._live_process.pid))
            )

        files.was_busy = True
        try:
            with self._kernel_host.disconnected():
                self._dumper.dump(
                    images,
                    frozen,
                    watched=watched,
                    clear_images=lambda: files.home.make_empty_dir(images.name),
                )
            failpoint("criu.dumped")
            self._search_secrets(images)
        except BaseException:  # do not leave half a dump, or a secret, on disk
            files.home.remove_dir(images.name)
            self._dumper.prestart_worker()
            raise
        (image, covers, outside), process = captured[-1], self._live_process
        carried = RunningServices(
            process.external_mounts, make_storable(jobs), process.outbound.needs_address, outside
        )
        return image, Dump(images, carried, covers)

    def _search_secrets(self, images: Path) -> None:
        search, page = self._context.objects.scanner, self._context.host.page_size
        if search is not None:
            check_images(search, images, page, self._live_process.describe_process)

    def _register_dump(self, dump: Dump, saved: SavedImages) -> None:
        """Remember the newest dump on disk for forks, and delete the one before it."""
        self._saved_images = saved
        old, self._last_dump = self._last_dump, (saved.oid, dump.images)
        self._context.local_dumps[saved.oid] = dump
        self._prefork.mark_stored(saved.oid)
        if old is not None and old[0] != saved.oid:
            self._context.local_dumps.pop(old[0], None)
            self._background.start(partial(self._files.home.remove_dir, old[1].name))

    # Programs.

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        **options: Any,
    ) -> Result:
        argv, where = argv_of(command), self._files.working_directory(cwd)
        return self._run_in_machine(argv, where, os.urandom(8).hex(), env=env, **options)

    def run_with_secrets(
        self,
        secrets: Mapping[str, str],
        command: Command,
        *,
        env: Mapping[str, str | None],
        cwd: str = "",
        **options: Any,
    ) -> Result:
        argv, where = argv_of(command), self._files.working_directory(cwd)
        mark = os.urandom(8).hex()
        with secret_launcher_argv(self._live_process.pid, mark, secrets) as before:
            return self._run_in_machine([*before, *argv], where, mark, env=env, **options)

    def withheld_variables(self) -> dict[str, str | None]:
        """Return the secret variables of this process, each mapped to None.

        A command must not inherit them, because a commit stores its memory.
        """
        return {name: None for name, value in os.environ.items() if is_secret(name, value)}

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        kind: Literal["service", "shell"] = "service",
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        tty: tuple[int, int] | None = None,
        stdin: bool = False,
    ) -> Job:
        argv, where = argv_of(command), self._files.working_directory(cwd)
        mark = os.urandom(8).hex()
        return self.init_client.spawn(
            name,
            argv,
            env=self._environment(env, mark),
            cwd=where,
            kind=kind,
            tty=tty,
            stdin=stdin,
            mark=mark,
            declared=kind == "service",
        )

    def job(self, name: str) -> Job:
        return self.init_client.job(name)

    def jobs(self) -> list[JobInfo]:
        return self.init_client.jobs()

    def ps(self) -> list[ProcessInfo]:
        return self.init_client.ps()

    def expose(self, port: int, at: int = 0) -> int:
        return self._ports.open(self._live_process.pid, port, at)

    def exposed_ports(self) -> dict[int, int]:
        return self._ports.host_ports()

    def unexpose(self, port: int) -> None:
        self._ports.close_port(port)

    @property
    def init_client(self) -> InitClient:
        """The client of the machine's pid 1."""
        return self._live_process.init_client

    @property
    def control_socket(self) -> ControlSocket:
        init = self.init_client
        return ControlSocket(init.pid, init.path, self._files.control_lock_path)

    def _run_in_machine(
        self,
        argv: list[str],
        directory: str,
        mark: str,
        *,
        env: Mapping[str, str | None] | None,
        **options: Any,
    ) -> Result:
        self._files.busy = True
        group = self._live_process.cgroup
        kills = group.oom_kills()
        result = self.init_client.run(
            argv,
            env=self._environment(env, mark),
            cwd=directory,
            mark=mark,
            **options,
        )
        return group.explain_limits(result, kills)

    def _environment(self, env: Mapping[str, str | None] | None, mark: str) -> dict[str, str]:
        return build_environment({**self.withheld_variables(), **(env or {})}, mark)


def _without_processes(image: Image) -> Image:
    return replace(image, services=b"", processes=b"")
