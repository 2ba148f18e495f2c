"""A live overlay machine: runs commands, freezes, and changes its layers while it is idle."""

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
from ortet.machines.base import Command, Door, Loss, Machine, Output, Report, Result, Spec
from ortet.machines.command import argv_of, attend, check_directory, environment, not_started
from ortet.machines.control.client import Indoors
from ortet.machines.control.jobs import Job, JobInfo, Process, check_port
from ortet.machines.folder import inside
from ortet.machines.kernels.overlay_host import Branching
from ortet.machines.overlay.background_init import move_in
from ortet.machines.overlay.home import Standing
from ortet.machines.overlay.ignoredlayers import with_ignored
from ortet.machines.overlay.machine import add_losses
from ortet.machines.overlay.supervisor_client import spawn
from ortet.machines.services import left_behind, not_kept, put_services

DOOR = "door"  # a file that is locked while connections from outside are not welcome


class OverlayMachine(Branching):
    """A machine whose workspace is a stack of shared layers below a directory of its own."""

    engine = "overlay"
    _household: Indoors | None = None

    def close(self) -> None:
        self._leave()
        super().close()

    def _restart(self, new: Standing) -> None:
        self._leave()
        super()._restart(new)

    def _leave(self) -> None:
        """What goes on in it ends with its mounts."""
        if self._household is not None:
            self._household.close()
            self._household = None

    @property
    def losses(self) -> list[Loss]:
        return list(self._losses)

    def _look(self) -> Image:
        image, jobs = super()._look(), self._jobs_now()
        if not jobs:
            return image
        self._losses = [*self._losses, *self._not_kept(jobs)]
        services = put_services(self._ground.objects, jobs, str(self._spec.path))
        return replace(image, services=services)

    def _not_kept(self, jobs: Sequence[JobInfo]) -> list[Loss]:
        return not_kept(jobs, self.engine)

    def freeze(self) -> Oid:
        return self._freeze()[0]

    def settle(self, image: Oid) -> None:
        self._settled = image
        self._unsettled = False
        if self._lens is not None and self._lens.crowded and self._frozen is not None:
            oid, frozen = self._frozen
            if oid == image:
                with self._ground.bases.using():
                    self._pause(frozen)
                    self._resume()

    def thaw(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        target = decode(Image, self._ground.objects.get(image))
        current = self._present()
        if paths is not None:
            return self._rewrite(current, target, paths)
        system, losses = self._ground.system_for(self._spec, target)
        outer = system != current.system
        if outer and not self._idle():
            raise self._in_use()
        report = None
        layers = not self._standing.ignoring and (outer or self._far(current, target))
        if layers and not self._spares(current, target):
            report = self._switch(current, target, system, outer=outer)
        if report is None:
            report = self._rewrite(current, target, None)
            if outer:
                self._restart(
                    replace(self._standing, system=system, outer=self._standing.outer + 1)
                )
        return replace(report, losses=report.losses + losses + self._left_behind(target))

    def _left_behind(self, target: Image) -> list[Loss]:
        """Programs of an image that do not come back in a machine of this engine."""
        return left_behind(self._ground.objects, target, self.engine)

    def fork(self, specs: Sequence[Spec]) -> list[Machine]:
        if self._settled is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        image = decode(Image, self._ground.objects.get(self._settled))
        with self._ground.bases.using():
            stack = self._share(image)
            losses: list[Loss] = []
            if stack not in (self._standing.stack, self._paused):  # then it has state only
                stack, losses = with_ignored(self._ground, stack, self._ignored())
            standing = Standing(1, stack, image.system, self._standing.ignoring)
            try:
                forks = self._fork(specs, standing, self._resume)
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
        output: Output | None = None,
    ) -> Result:
        argv, where = argv_of(command), inside(cwd)
        self._check_directory(where)
        mark = os.urandom(8).hex()
        began = time.monotonic()
        self._busy = True
        try:
            process, pidfd = spawn(
                self._supervisor,
                argv,
                env=self._environment(env or {}, mark),
                cwd=os.path.join(str(self._spec.path), where),
                stdin=stdin is not None,
            )
        except OSError as error:
            return not_started(argv[0], error, time.monotonic() - began)
        result = attend(
            process,
            pidfd=pidfd,
            kill=lambda: process.kill(mark),
            began=began,
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
        argv, where = argv_of(command), inside(cwd)
        self._check_directory(where)
        mark = os.urandom(8).hex()
        return self.indoors.spawn(
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
        return self.indoors.job(name)

    def jobs(self) -> list[JobInfo]:
        return self.indoors.jobs()

    def ps(self) -> list[Process]:
        return self.indoors.ps()

    def expose(self, port: int, at: int = 0) -> int:
        check_port(port)
        if at not in (0, port):
            raise Conflict(
                "port_taken",
                f"a machine of engine {self.engine!r} has the host's own ports: use port {port}",
            )
        return port

    @property
    def indoors(self) -> Indoors:
        """Who keeps its programs, started at first use."""
        if self._household is None:
            self._busy = True
            self._household = move_in(self._supervisor)
        return self._household

    @property
    def door(self) -> Door:
        inside = self.indoors
        return Door(inside.pid, inside.path, str(self._home.place / DOOR))

    def _jobs_now(self) -> list[JobInfo]:
        """What goes on in it, if anything ever did."""
        if self._household is None:
            return []
        try:
            return self._household.jobs()
        except Unavailable:  # killed, or closed with the machine's mounts
            self._household = None
            return []

    def _environment(self, env: Mapping[str, str | None], mark: str) -> dict[str, str]:
        """What a command has: this process's own, and these."""
        return environment(env, mark)

    def _present(self) -> Image:
        """What is there now, to be compared."""
        return self._freeze()[1]

    def _check_directory(self, where: str) -> None:
        try:
            check_directory(self.path / where)
        except OrtetError:
            self._mapped()  # which says so when it is the machine that is gone
            raise

    def _in_use(self) -> Conflict:
        return Conflict(
            "busy",
            "processes of this machine are running, and what it changed outside of the workspace "
            "cannot be put back under them: stop them first, or close the workspace",
        )
