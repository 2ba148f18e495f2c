"""CRIU on the processes of a machine of ours, with nothing of our store: dump, copy the upper
directories while it stands still, restore beside it. Workers are ready before, as ours are."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

from ortet.machines.control.client import InitClient
from ortet.machines.live.machine import LiveMachine
from ortet.machines.overlay.layers.home import MachineHome
from ortet.machines.standalone.ipc import NETWORK_FD


class Raw:
    """One dump at a time, below `place`."""

    def __init__(self, machine: LiveMachine, place: Path) -> None:
        self._machine = machine
        self._place = place
        self._images = place / "images"
        self._copy = place / "copy"
        self._stored = place / "stored"
        self._restored: InitClient | None = None
        self.prepare()

    def prepare(self) -> None:
        """What is not timed: empty directories, the plan of the mounts, a worker."""
        self.close()
        for place in (self._images, self._copy, self._stored, self._place / "work"):
            place.mkdir(parents=True)
        machine, ground = self._machine, self._machine._context
        home = MachineHome(ground.objects, ground.trees, self._copy)
        self._plan, covers = ground.overlay.plan(machine._spec, home, machine._files.layout)
        own, names = machine._files.home.path, [f"upper-{machine._files.layout.upper}"]
        for cover in covers:
            if (
                own / cover.upper.name
            ).exists():  # else the host mounted it after the machine began
                cover.upper.rmdir()
                names.append(cover.upper.name)
        self._uppers = [str(own / name) for name in names]
        self._worker = ground.supervisor.start_dump_worker(machine._live_process.pid)

    def dump(self) -> None:
        guard = self._machine._live_process
        net = os.stat(f"/proc/{guard.pid}/ns/net").st_ino
        external = [f"net[{net}]:extnet", *(f"mnt[{at}]:{at}" for at in guard.external_mounts)]
        guard.init_client.disconnect()
        try:
            self._worker.dump(guard.pid, self._images, external=external, on_frozen=self._take)
        finally:
            guard.init_client.reconnect()

    def _take(self) -> None:
        subprocess.run(["cp", "-a", *self._uppers, str(self._copy)], check=True)

    def store(self) -> None:
        """A second copy of the images, durable: the least that keeping them costs."""
        for path in self._images.iterdir():
            target = self._stored / path.name
            shutil.copyfile(path, target)
            fd = os.open(target, os.O_RDONLY)
            os.fdatasync(fd)
            os.close(fd)

    def restore(self) -> InitClient:
        """With all memory at once."""
        ground, guard = self._machine._context, self._machine._live_process
        root = ground.layer_store.area / "root"
        pid = ground.supervisor.prepare_restore_worker(
            ground.supervisor.take_spare(), self._plan
        ).restore(
            self._images,
            self._place / "work",
            root=root,
            external=[f"mnt[{at}]:{root}{at}" for at in guard.external_mounts],
            network_fd=NETWORK_FD,
        )
        self._restored = InitClient(pid)
        self._restored.reconnect()
        return self._restored

    def close(self) -> None:
        if self._restored is not None:
            pidfd = os.pidfd_open(self._restored.pid)
            self._restored.close()
            self._restored = None
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
            os.close(pidfd)
        shutil.rmtree(self._place, ignore_errors=True)
