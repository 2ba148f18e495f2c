"""The overlay machine: runs commands, takes snapshots, and switches layers while it is idle."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from ortet._util.codec import decode
from ortet.errors import Conflict, OrtetError, Unavailable
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
    check_directory,
    communicate,
    start_failure_result,
)
from ortet.machines.control.client import InitClient
from ortet.machines.control.jobs import Job, JobInfo, ProcessInfo, check_port
from ortet.machines.folder import relative_cwd
from ortet.machines.kernels.overlay_host import OverlayKernelHost
from ortet.machines.overlay.background_init import start_init
from ortet.machines.overlay.home import LayerLayout
from ortet.machines.overlay.ignored_files import add_ignored_layer
from ortet.machines.overlay.machine import add_losses
from ortet.machines.overlay.supervisor_client import spawn_in_machine
from ortet.machines.services import put_services, service_losses, unsaved_process_losses

CONTROL_LOCK_FILE = "door"  # locked while connections from outside are refused


class OverlayMachine(OverlayKernelHost):
    """A machine whose workspace is a stack of shared layers below its own upper directory."""

    engine = "overlay"
    _init_client: InitClient | None = None

    def close(self) -> None:
        self._stop_init()
        super().close()

    def _restart(self, new: LayerLayout) -> None:
        self._stop_init()
        super()._restart(new)

    def _stop_init(self) -> None:
        """Stop the background programs: they end with the mounts."""
        if self._init_client is not None:
            self._init_client.close()
            self._init_client = None

    @property
    def losses(self) -> list[Loss]:
        return list(self._losses)

    def _scan_image(self) -> Image:
        image, jobs = super()._scan_image(), self._current_jobs()
        if not jobs:
            return image
        self._losses = [*self._losses, *self._unsaved_process_losses(jobs)]
        services = put_services(self._context.objects, jobs, str(self._spec.path))
        return replace(image, services=services)

    def _unsaved_process_losses(self, jobs: Sequence[JobInfo]) -> list[Loss]:
        return unsaved_process_losses(jobs, self.engine)

    def snapshot(self) -> Oid:
        return self._snapshot()[0]

    def mark_committed(self, image: Oid) -> None:
        self._committed_image = image
        self._has_uncommitted = False
        if (
            self._snapshotter is not None
            and self._snapshotter.is_crowded
            and self._last_snapshot is not None
        ):
            oid, frozen = self._last_snapshot
            if oid == image:
                with self._context.layer_store.prevent_prune():
                    self._pause(frozen)
                    self._resume()

    def restore(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        target = decode(Image, self._context.objects.get(image))
        current = self._current_image()
        if paths is not None:
            return self._restore_files(current, target, paths)
        system, losses = self._context.system_for(self._spec, target)
        outer = system != current.system
        if outer and not self._is_idle():
            raise self._busy_error()
        report = None
        layers = not self._layout.ignoring and (outer or self._is_far(current, target))
        if layers and not self._changes_ignore_rules(current, target):
            report = self._switch(current, target, system, outer=outer)
        if report is None:
            report = self._restore_files(current, target, None)
            if outer:
                self._restart(replace(self._layout, system=system, outer=self._layout.outer + 1))
        return replace(report, losses=report.losses + losses + self._service_losses(target))

    def _service_losses(self, target: Image) -> list[Loss]:
        """Return a loss for each program of an image that this engine does not restore."""
        return service_losses(self._context.objects, target, self.engine)

    def fork(self, specs: Sequence[MachineSpec]) -> list[Machine]:
        if self._committed_image is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        image = decode(Image, self._context.objects.get(self._committed_image))
        with self._context.layer_store.prevent_prune():
            stack = self._shared_stack(image)
            losses: list[Loss] = []
            if stack not in (self._layout.stack, self._paused_stack):  # it has no ignored files
                stack, losses = add_ignored_layer(self._context, stack, self._ignored_files())
            standing = LayerLayout(1, stack, image.system, self._layout.ignoring)
            try:
                forks = self._start_forks(specs, standing, self._resume)
            finally:
                self._resume()
        return add_losses(forks, losses)

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
        argv, where = argv_of(command), relative_cwd(cwd)
        self._check_directory(where)
        mark = os.urandom(8).hex()
        began = time.monotonic()
        self._busy = True
        try:
            process, pidfd = spawn_in_machine(
                self._supervisor,
                argv,
                env=self._environment(env or {}, mark),
                cwd=os.path.join(str(self._spec.path), where),
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
        self._busy = process.busy
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
        argv, where = argv_of(command), relative_cwd(cwd)
        self._check_directory(where)
        mark = os.urandom(8).hex()
        return self.init_client.spawn(
            name,
            argv,
            env=self._environment(env or {}, mark),
            cwd=os.path.join(str(self._spec.path), where),
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
            self._busy = True
            self._init_client = start_init(self._supervisor)
        return self._init_client

    @property
    def control_socket(self) -> ControlSocket:
        inside = self.init_client
        return ControlSocket(inside.pid, inside.path, str(self._home.path / CONTROL_LOCK_FILE))

    def _current_jobs(self) -> list[JobInfo]:
        """Return the background programs; empty if none was ever started."""
        if self._init_client is None:
            return []
        try:
            return self._init_client.jobs()
        except Unavailable:  # killed, or closed with the mounts
            self._init_client = None
            return []

    def _environment(self, env: Mapping[str, str | None], mark: str) -> dict[str, str]:
        """Return the environment of a command."""
        return build_environment(env, mark)

    def _current_image(self) -> Image:
        """Take a snapshot and return its image, for comparison."""
        return self._snapshot()[1]

    def _check_directory(self, where: str) -> None:
        try:
            check_directory(self.path / where)
        except OrtetError:
            self._mapped()  # raises if the whole machine is gone
            raise

    def _busy_error(self) -> Conflict:
        return Conflict(
            "busy",
            "processes of this machine are running, and what it changed outside of the workspace "
            "cannot be put back under them: stop them first, or close the workspace",
        )
