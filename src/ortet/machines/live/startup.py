"""Starts the processes of a live machine: a fresh pid 1, or those of a dump."""

from __future__ import annotations

from typing import Any, NamedTuple

from ortet.machines.base import Loss
from ortet.machines.host_compat import require_same_workspace_path
from ortet.machines.live import process
from ortet.machines.live.cgroups import MachineCgroup
from ortet.machines.live.context import LiveEngineContext
from ortet.machines.live.criu.worker_pool import SpareCriu
from ortet.machines.live.images.save import SavedImages
from ortet.machines.live.network.slirp import prepare_network
from ortet.machines.live.process import LiveMachineProcess
from ortet.machines.live.temp_dirs import restore_temp_dirs
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.ignored_files import IgnoredFiles, link_ignored_files
from ortet.machines.services import closed_connection_losses

HOSTNAME_LENGTH = 12
"""Length of a machine's hostname: the last characters of its id."""


class StartOrigin(NamedTuple):
    """Where a machine starts from.

    `dump` is the id of a dump, or empty for a fresh pid 1. `hook_kind` says which hooks run after
    the start, "on-fork" or "on-restore". `ignored` are the ignored files of the machine that this
    one replaces.
    """

    dump: bytes = b""
    hook_kind: str = ""
    ignored: IgnoredFiles | None = None


class StartedProcesses(NamedTuple):
    """Processes that are starting, and what their dump could not bring back.

    `saved_images` is the stored form of the dump, if the machine starts from one.
    """

    process: LiveMachineProcess
    losses: list[Loss]
    saved_images: SavedImages | None


class MachineStarter:
    """Starts the processes of one machine on its files."""

    def __init__(self, context: LiveEngineContext, files: OverlayFiles) -> None:
        self._context = context
        self._files = files
        self._spec = files.spec

    def start(self, origin: StartOrigin) -> StartedProcesses:
        """Start the processes, and return without waiting for them."""
        plan, context = self._files.plan(), self._context
        spare = context.supervisor.take_spare() if origin.dump else None
        group = context.cgroups.create(
            self._spec.id,
            self._spec.limits,
            self._files.home.path,
            restoring=spare is not None,
            reserved=spare.cgroup if spare is not None else "",
        )
        try:
            started = (
                self._start_from_dump(plan, group, spare, origin)
                if spare
                else self._start_fresh(plan, group, origin)
            )
        except BaseException:
            if spare is not None:
                spare.close()
            group.close()
            raise
        return started._replace(losses=started.losses + group.losses)

    def _start_fresh(
        self, plan: dict[str, Any], cgroup: MachineCgroup, origin: StartOrigin
    ) -> StartedProcesses:
        self._link_ignored_files(origin)
        hostname, place = self._spec.id[-HOSTNAME_LENGTH:], str(self._spec.path)
        supervisor = self._context.supervisor
        outbound = prepare_network(supervisor, self._files.host_overlays, self._spec.network)
        starting = supervisor.start_machine(plan, hostname, cgroup.paths)
        running = process.start(starting, place, cgroup=cgroup, outbound=outbound)
        return StartedProcesses(running, [], None)

    def _start_from_dump(
        self, plan: dict[str, Any], cgroup: MachineCgroup, spare: SpareCriu, origin: StartOrigin
    ) -> StartedProcesses:
        context, files, spec = self._context, self._files, self._spec
        dump = context.load_dump(origin.dump, files.home)
        carried, mounts = dump.carried, dump.carried.mounts
        require_same_workspace_path(mounts, str(spec.path))
        upper = files.home.upper(files.layout.upper)
        losses = restore_temp_dirs(
            context.objects, context.trees, files.host_overlays, dump.covers, upper
        )
        self._link_ignored_files(origin)
        losses += closed_connection_losses(carried.outside)
        outbound = prepare_network(
            context.supervisor, files.host_overlays, spec.network, needs_address=carried.outlet
        )
        # Mounts of the host at dump time may no longer exist. Where one is missing, the stand-in
        # step binds the plain directory onto itself, so that CRIU finds a mount.
        stand_ins = [at for at in mounts if at != str(spec.path)]
        plan["steps"] += [{"do": "stand-in", "at": at} for at in stand_ins]
        running = process.restore(
            context.supervisor.prepare_restore_worker(spare, plan, cgroup.paths),
            dump.images,
            str(spec.path),
            cgroup=cgroup,
            outbound=outbound,
            work_dir=files.home.make_empty_dir("restoring"),
            root=context.layer_store.area / "root",
            mounts=mounts,
            supervisor=context.supervisor,
        )
        return StartedProcesses(running, losses, dump.kept)

    def _link_ignored_files(self, origin: StartOrigin) -> None:
        """Link the ignored files of the replaced machine into the new upper directory.

        Ignored files are not part of the image, so the restored image does not contain them.
        """
        files, layout = self._files, self._files.layout
        if origin.ignored is not None:
            upper = files.home.upper(layout.upper)
            link_ignored_files(files.context, origin.ignored, upper, layout.stack.root)
