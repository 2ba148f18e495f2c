"""A live machine whose processes, memory and sockets are part of what is frozen."""

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
from ortet._util.failpoints import reach
from ortet.errors import Conflict, OrtetError
from ortet.history.records import Image, Layer
from ortet.ids import Oid
from ortet.machines.base import Loss, Machine, Report, Spec
from ortet.machines.control.jobs import JobInfo
from ortet.machines.kernels.host import Seat
from ortet.machines.kernels.live_host import LiveSeat
from ortet.machines.kernels.livebranches import LiveBranches
from ortet.machines.live import process
from ortet.machines.live.cgroups import Group
from ortet.machines.live.context import IMAGES, Dump, LiveGround
from ortet.machines.live.criu import preflight
from ortet.machines.live.criu.dump import LiveDump
from ortet.machines.live.criu.external_connections import close_outside
from ortet.machines.live.criu.rpc import Worker
from ortet.machines.live.criu.spares import Spare
from ortet.machines.live.errands import Errands
from ortet.machines.live.host_compat import refuse_other_place
from ortet.machines.live.images.save import Kept, keep
from ortet.machines.live.liveruns import HOSTNAME
from ortet.machines.live.network.port_forward import Doors
from ortet.machines.live.network.slirp import prepare
from ortet.machines.live.open_files import Held
from ortet.machines.live.prefork import Begin, Heirs
from ortet.machines.live.process import LiveGuard
from ortet.machines.live.temp_dirs import Scratch, give_back
from ortet.machines.overlay.home import Home, Standing
from ortet.machines.overlay.ignored_files import Ignored
from ortet.machines.overlay.ignoredlayers import bring_along, with_ignored
from ortet.machines.overlay.layers import Stack
from ortet.machines.overlay.machine import Fork, add_losses
from ortet.machines.services import Carried, Connection, ended_outside, put_services, storable
from ortet.objects.base import Kind

FORKED, RESTORED = "on-fork", "on-restore"
_WATCHED = ("/tmp", "/run", "/etc")  # where else programs watch files


class CriuMachine(LiveBranches):
    """As an overlay machine, but what runs in it is carried along. Its pid 1 is a program inside.

    With `processes` it starts as they were when that was frozen; `hooks` are run in it then.
    """

    engine = "criu"
    _ground: LiveGround

    def __init__(
        self,
        ground: LiveGround,
        spec: Spec,
        home: Home,
        *,
        standing: Standing,
        fork: Fork,
        begin: Begin,
        processes: bytes = b"",
        hooks: str = "",
    ) -> None:
        super().__init__(ground, spec, home, standing=standing, fork=fork)
        self._asleep = processes  # what it begins with
        self._hooks = hooks  # what is run in it then
        self._kept: Kept | None = None  # what the next dump is compared with
        self._dumped: tuple[bytes, Path] | None = None  # the last one, on disk
        self._errands = Errands()
        self._heirs = Heirs(ground, begin)
        self._worker: Worker | None = None
        self._scratch: Scratch | None = None
        self._lost: list[Loss] = []
        self._left_over: Ignored | None = None  # of the machine that ends when this one runs
        self._doors = Doors(ground.keeper)
        self._seat = LiveSeat(lambda: self.indoors, str(spec.path), lambda: self.path, self)

    # beginning and end

    def _guarded(self, plan: dict[str, Any]) -> LiveGuard:
        ground, spec = self._ground, self._spec
        spare = ground.keeper.spare() if self._asleep else None
        group = ground.groups.make(
            spec.id,
            spec.limits,
            self._home.place,
            restoring=spare is not None,
            reserved=spare.group if spare is not None else "",
        )
        try:
            guard = self._restored(plan, group, spare) if spare else self._started(plan, group)
        except BaseException:
            if spare is not None:
                spare.close()
            group.close()
            raise
        self._lost += group.losses
        return guard

    def _started(self, plan: dict[str, Any], group: Group) -> LiveGuard:
        self._bring_along()
        hostname, place = self._spec.id[-HOSTNAME:], str(self._spec.path)
        keeper = self._ground.keeper
        outlet = prepare(keeper, self._covers, self._spec.network)
        starting = keeper.start(plan, hostname, group.paths)
        return process.start(starting, place, group=group, outlet=outlet)

    def _restored(self, plan: dict[str, Any], group: Group, spare: Spare) -> LiveGuard:
        ground = self._ground
        dump = ground.dump_of(self._asleep, self._home)
        carried, mounts = dump.carried, dump.carried.mounts
        refuse_other_place(mounts, str(self._spec.path))
        upper, objects = self._home.upper(self._standing.upper), ground.objects
        self._lost = give_back(objects, ground.trees, self._covers, dump.covers, upper)
        self._bring_along()
        self._lost += ended_outside(carried.outside)
        network, counted_on = self._spec.network, carried.outlet
        outlet = prepare(ground.keeper, self._covers, network, counted_on=counted_on)
        # what the host had mounted then may be gone: the place itself stands in for it
        stand_ins = [at for at in mounts if at != str(self._spec.path)]
        plan["steps"] += [{"do": "stand-in", "at": at} for at in stand_ins]
        self._kept = dump.kept
        return process.restore(
            ground.keeper.restorer(spare, plan, group.paths),
            dump.images,
            str(self._spec.path),
            group=group,
            outlet=outlet,
            work=self._home.empty("restoring"),
            root=ground.bases.area / "root",
            mounts=mounts,
            keeper=ground.keeper,
        )

    def _bring_along(self) -> None:
        """What was no state in the machine before it goes on in this one."""
        ground, standing = self._ground, self._standing
        ignored, self._left_over = self._left_over, None
        if ignored is not None:
            bring_along(ground, ignored, self._home.upper(standing.upper), standing.stack.root)

    def wake(self) -> None:
        """The part of `ready` that takes long; machines may do it side by side."""
        self._guard.ready()

    def ready(self, losses: Sequence[Loss] = ()) -> None:
        super().ready([*losses, *self._lost])
        self._losses += self._guard.outlet.losses
        self._busy = bool(self._asleep)
        if self._hooks:
            self._losses += self._renew(self._hooks)
        self._asleep, self._lost, self._hooks = b"", [], ""
        self._errands.do(self._hire)

    def _hire(self) -> None:
        """Have a worker ready for the next freeze: starting one takes as long as a small dump."""
        self._dismiss()
        with suppress(OrtetError, OSError):  # the machine may have ended meanwhile
            self._worker = self._ground.keeper.worker(self._guard.pid)
        self._ground.keeper.refill()

    def _dismiss(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def close(self) -> None:
        self._heirs.announce(())
        self._errands.wait()
        self._dismiss()
        self._doors.close()
        super().close()

    def _jobs_now(self) -> list[JobInfo]:
        return self.indoors.jobs()

    def _not_kept(self, jobs: Sequence[JobInfo]) -> list[Loss]:
        del jobs
        return []

    # what it does

    def seat(self) -> Seat:
        return self._seat

    def expose(self, port: int, at: int = 0) -> int:
        return self._doors.open(self._guard.pid, port, at)

    def exposed(self) -> dict[int, int]:
        return self._doors.all()

    def unexpose(self, port: int) -> None:
        self._doors.shut(port)

    def herald(self, specs: Sequence[Spec]) -> None:
        self._heirs.announce(specs)
        if not specs and self._worker is None and not self._closed:
            self._errands.do(self._hire)

    def fork(self, specs: Sequence[Spec]) -> list[Machine]:
        if self._settled is None:
            raise Conflict("not_settled", "nothing was committed yet: commit, then fork")
        image = decode(Image, self._ground.objects.get(self._settled))
        forks, losses = self._heirs.take(specs, image.processes)
        if forks:
            for machine in forks:
                assert isinstance(machine, CriuMachine)
                machine._kept = self._kept
            return add_losses(forks, losses)
        with self._ground.bases.using():
            standing, losses = self._copied(image)
            forks = self._fork(specs, standing, lambda: None, image.processes)
        return add_losses(forks, losses)

    def _copied(self, image: Image) -> tuple[Standing, list[Loss]]:
        """What forks stand on."""
        stack, losses = with_ignored(self._ground, self._share(image), self._ignored())
        return Standing(1, stack, image.system, self._standing.ignoring), losses

    def thaw(self, image: Oid, paths: Sequence[bytes] | None = None) -> Report:
        target = decode(Image, self._ground.objects.get(image))
        idle = self._idle()
        # what a merge makes keeps the processes that are here: only files change under them
        same = self._frozen is not None and target.processes == self._frozen[1].processes
        if paths is not None or (same and not idle) or (idle and not target.processes):
            return super().thaw(image, paths)
        return self._begin_anew(target)

    def _left_behind(self, target: Image) -> list[Loss]:
        del target
        return []

    # freezing

    def _freeze(self) -> tuple[Oid, Image]:
        if self._idle():
            return super()._freeze()
        self._guard.gather()
        self._seat.check_freeze()
        watching = preflight.check(self._guard.pid).watching
        self._open_eyes()
        self._unsettled = True  # from here on, also when the dump fails
        mapped, jobs = self._mapped(), self.indoors.jobs()
        images = self._home.empty(f"{IMAGES}-{time.monotonic_ns()}")
        found: list[tuple[Image, list[Layer], list[Connection]]] = []

        def frozen() -> None:
            files = self._seen(mapped, quiet=False)
            covers = self._look_aside(files, images)
            found.append((files, covers, close_outside(images, self._guard.pid)))

        self._was_busy = True
        try:
            with self._seat.away():
                self._dump(images, frozen, [str(self._spec.path), *_WATCHED] if watching else [])
            reach("criu.dumped")
            self._search(images)
        except BaseException:  # half a dump, or a secret, is not to lie about
            self._home.drop(images.name)
            self._errands.do(self._hire)
            raise
        (files, covers, outside), guard = found[-1], self._guard
        carried = Carried(guard.external, storable(jobs), guard.outlet.counted_on, outside)
        dump = Dump(images, carried, covers)
        self._heirs.begin(dump, lambda: self._copied(files))
        if not self._heirs.announced:  # which need the processors now
            self._errands.do(self._hire)
        kept = keep(
            self._ground.objects,
            images,
            self._kept,
            host=self._ground.host,
            covers=covers,
            jobs=encode(carried),
        )
        self._hold(replace(dump, kept=kept), kept)
        services = put_services(self._ground.objects, jobs, str(self._spec.path))
        image = replace(files, services=services, processes=kept.oid)
        self._frozen = self._ground.objects.put(Kind.IMAGE, encode(image)), image
        self._unsettled = True
        return self._frozen

    def _search(self, images: Path) -> None:
        search, page = self._ground.objects.search, self._ground.host.page_size
        if search is not None:
            search.images(images, page, self._guard.tell)

    def _laid_out(self) -> Standing:
        return replace(self._standing, system=None)  # which is in the upper directories themselves

    def _idle(self) -> bool:
        """Asked each time: programs of others may have started something in it."""
        self._mapped()
        return not self._busy

    def _present(self) -> Image:
        if self._idle():
            return super()._present()
        self._open_eyes()
        self._was_busy = self._unsettled = True
        return self._seen(self._mapped(), quiet=False)

    def _dump(self, images: Path, frozen: Callable[[], None], watched: Sequence[str]) -> None:
        guard, keeper, lock = self._guard, self._ground.keeper, self.door.lock
        dump = LiveDump(guard, keeper, lock=lock, worker=self._hired)
        dump.write(images, frozen, watched=watched, anew=lambda: self._home.empty(images.name))

    def _hired(self) -> Worker:
        self._errands.wait()
        if self._worker is None or not self._worker.alive:
            self._hire()
        worker, self._worker = self._worker, None
        return worker or self._ground.keeper.worker(self._guard.pid)

    def _look_aside(self, files: Image, images: Path) -> list[Layer]:
        """At files that are no state, but that the processes count on."""
        ground, covers = self._ground, self._covers
        if self._scratch is None:
            place, objects, trees = str(self._spec.path), ground.objects, ground.trees
            held = Held(objects, trees, place=place, covers=covers)
            own = [os.path.realpath(path) for path in (self._spec.path, *self._spec.hide)]
            self._scratch = Scratch(objects, trees, covers, own=own, watch=ground.aside, held=held)
        inside = Path(f"/proc/{self._guard.pid}/root")
        return self._scratch.look(ground.horizon(), files, images=images, inside=inside)

    def _hold(self, dump: Dump, kept: Kept) -> None:
        """Of the dumps on disk the last is enough to fork from."""
        self._kept = kept
        old, self._dumped = self._dumped, (kept.oid, dump.images)
        self._ground.at_hand[kept.oid] = dump
        self._heirs.stored(kept.oid)
        if old is not None and old[0] != kept.oid:
            self._ground.at_hand.pop(old[0], None)
            self._errands.do(partial(self._home.drop, old[1].name))

    def _look_anew(self) -> None:
        super()._look_anew()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    # layers

    def _share(self, image: Image) -> Stack:
        return self._ground.bases.stack(_files(image), self._standing.stack)[0]

    def _begin_anew(self, target: Image) -> Report:
        """Everything as in an image: other mounts, other processes. The present ones end last."""
        old, home, bases = self._standing, self._home, self._ground.bases
        with bases.using():
            system, losses = self._ground.system_for(self._spec, target)
            stack, more = bases.stack(_files(target), old.stack)
            new = replace(old, upper=old.upper + 1, stack=stack, system=system, outer=old.outer + 1)
            losses += more + home.fresh(new.upper, stack, bases)
            self._asleep, self._hooks = target.processes, RESTORED
            self._left_over = self._ignored()
            self._restart(new)
        home.tidy(new)
        losses += self._losses  # of the start
        running = [job.name for job in self.jobs() if job.name and job.code is None]
        return Report(losses=losses, started=running)

    def _restart(self, new: Standing) -> None:
        old, before, covers = self._standing, self._running, self._covers
        try:
            self._standing = new
            self.start()
            self.ready()
        except BaseException:
            if self._running is not None and self._running is not before:
                self._running.close()
            self._standing, self._running, self._covers = old, before, covers
            self._asleep, self._hooks, self._left_over = b"", "", None
            self._home.tidy(old)  # the next try finds nothing of this one
            raise
        if before is not None:
            before.close()
        self._doors.move(self._guard.pid)
        self._look_anew()
        self._stand(new)


def _files(image: Image) -> Image:
    return replace(image, services=b"", processes=b"")
