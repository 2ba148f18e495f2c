"""The overlay machine: a workspace of shared layers below an upper directory of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet.errors import Conflict, Unavailable
from ortet.history.records import Image
from ortet.ids import Oid
from ortet.machines.base import (
    Command,
    ControlSocket,
    Loss,
    Machine,
    MachineSpec,
    OutputCallback,
    Report,
    Result,
)
from ortet.machines.command import (
    argv_of,
    build_environment,
    communicate,
    start_failure_result,
)
from ortet.machines.control.client import InitClient
from ortet.machines.jobs import Job, JobInfo, ProcessInfo, check_port
from ortet.machines.kernel_host import KernelHost
from ortet.machines.overlay.context import EngineContext
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.ignored_files import add_ignored_layer
from ortet.machines.overlay.kernel_host import OverlayKernelHost
from ortet.machines.overlay.layer_switcher import LayerSwitcher
from ortet.machines.overlay.layers.home import LayerLayout, MachineHome
from ortet.machines.overlay.supervisor_client import spawn_in_machine, start_init
from ortet.machines.services import put_services, service_losses, unsaved_process_losses


class ForkCallback(Protocol):
    """Starts machines with a layout, calls back, and waits until they are ready; all or none."""

    def __call__(
        self,
        specs: Sequence[MachineSpec],
        layout: LayerLayout,
        while_starting: Callable[[], None],
    ) -> list[OverlayMachine]: ...


class OverlayMachine(Machine):
    """A machine whose mounts and processes a supervisor holds, from `start` to `close`."""

    engine = "overlay"

    def __init__(
        self,
        context: EngineContext,
        spec: MachineSpec,
        home: MachineHome,
        *,
        layout: LayerLayout,
        fork: ForkCallback,
    ) -> None:
        self._context = context
        self._spec = spec
        self._files = OverlayFiles(context, spec, home, layout)
        self._layers = LayerSwitcher(self._files, self._restart)
        self._kernel_host = OverlayKernelHost(self._files, self._snapshot)
        self._start_forks = fork
        self._init_client: InitClient | None = None
        self._closed = False

    # Start and close.

    def start(self) -> None:
        """Request the mounts. `finish_start` waits for them."""
        self._files.attach(self._context.zygote.start(self._files.plan()))

    def finish_start(self, losses: Sequence[Loss] = ()) -> None:
        """Wait for the mounts, and undo an interrupted restore."""
        self._files.finish_start(losses)
        self.path = self._files.path

    def close(self) -> None:
        self._stop_init()
        self._kernel_host.close()
        if not self._closed:
            self._closed = True
            self._files.close()

    def _restart(self, new: LayerLayout) -> None:
        """Start again with new mounts."""
        files = self._files
        old = files.layout
        self._stop_init()
        files.process.close()
        try:
            files.layout = new
            self.start()
            self.finish_start()
        except BaseException:
            files.process.close()
            files.layout = old
            self.start()
            self.finish_start()
            raise
        files.reset_snapshotter()
        files.set_layout(new)

    # Snapshots.

    @property
    def losses(self) -> list[Loss]:
        return list(self._files.losses)

    def add_losses(self, losses: Sequence[Loss]) -> None:
        """Report further losses of the start, for example those of all forks."""
        self._files.losses = [*self._files.losses, *losses]

    def snapshot(self) -> Oid:
        return self._snapshot()[0]

    def _snapshot(self) -> tuple[Oid, Image]:
        image, jobs = self._files.scan(), self._current_jobs()
        if jobs:
            self.add_losses(unsaved_process_losses(jobs, self.engine))
            services = put_services(self._context.objects, jobs, str(self._spec.path))
            image = replace(image, services=services)
        return self._files.store(image)

    def mark_committed(self, image: Oid) -> None:
        files = self._files
        files.mark_committed(image)
        if files.is_crowded and files.last_snapshot is not None and files.last_snapshot[0] == image:
            self._layers.start_new_upper(files.last_snapshot[1])

    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        target = decode(Image, self._context.objects.get(image))
        report = self._layers.restore(self._snapshot()[1], target, paths)
        if paths is not None:
            return report
        missing = service_losses(self._context.objects, target, self.engine)
        return replace(report, losses=report.losses + missing)

    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        committed, layers = self._files.committed_image, self._layers
        if committed is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        image = decode(Image, self._context.objects.get(committed))
        with self._context.layer_store.prevent_prune():
            stack = layers.shared_stack(image, lambda: self._snapshot()[0] == committed)
            layout = self._files.layout
            losses: list[Loss] = []
            if stack not in (layout.stack, layers.paused_stack):  # it has no ignored files
                stack, losses = add_ignored_layer(self._context, stack, self._files.ignored_files())
            fork_layout = LayerLayout(1, stack, image.system, layout.ignoring)
            try:
                forks = self._start_forks(specs, fork_layout, layers.resume)
            finally:
                layers.resume()
        for fork in forks:
            fork.add_losses(losses)
        return list[Machine](forks)

    def kernel_host(self) -> KernelHost:
        return self._kernel_host

    # Programs.

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
        argv, where = argv_of(command), self._files.working_directory(cwd)
        mark = os.urandom(8).hex()
        began = time.monotonic()
        self._files.busy = True
        try:
            process, pidfd = spawn_in_machine(
                self._files.process,
                argv,
                env=build_environment(env or {}, mark),
                cwd=where,
                stdin=stdin is not None,
            )
        except OSError as error:
            return start_failure_result(argv[0], error, time.monotonic() - began)
        result = communicate(
            process,
            pidfd=pidfd,
            kill=lambda: process.kill(mark),
            started_at=began,
            timeout=timeout,
            stdin=stdin,
            output=output,
        )
        self._files.busy = process.busy
        return result

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
            env=build_environment(env or {}, mark),
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
        check_port(port)
        if at not in (0, port):
            raise Conflict(
                "port_taken",
                f"a machine of engine {self.engine!r} has the host's own ports: use port {port}",
            )
        return port

    @property
    def init_client(self) -> InitClient:
        """The client of the init process, which is started at first use."""
        if self._init_client is None:
            self._files.busy = True
            self._init_client = start_init(self._files.process)
        return self._init_client

    @property
    def control_socket(self) -> ControlSocket:
        inside = self.init_client
        return ControlSocket(inside.pid, inside.path, self._files.control_lock_path)

    def _current_jobs(self) -> list[JobInfo]:
        """Return the background programs; empty if none was ever started."""
        if self._init_client is None:
            return []
        try:
            return self._init_client.jobs()
        except Unavailable:  # killed, or closed with the mounts
            self._init_client = None
            return []

    def _stop_init(self) -> None:
        """Stop the background programs: they end with the mounts."""
        if self._init_client is not None:
            self._init_client.close()
            self._init_client = None
