"""Starts the init process that keeps the background programs of an overlay machine.

The programs end with the init process. This is a module of its own because only machines with
background programs need it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ortet.errors import Unavailable
from ortet.machines.command import environ_without_vault_key
from ortet.machines.control.client import InitClient
from ortet.machines.overlay.supervisor_client import MachineProcess, spawn_in_machine

_INIT = str(Path(__file__).parents[1] / "standalone" / "init.py")


def start_init(machine_process: MachineProcess) -> InitClient:
    """Start an init process inside a machine, and return a client for it.

    It has the same protocol as pid 1 of a live machine.
    """
    place = f"/tmp/.ortet-{os.urandom(8).hex()}"
    program = [os.path.realpath(sys.executable), "-I", "-S", "-B", _INIT, "3", f"{place}/init.sock"]
    argv = ["/bin/sh", "-c", f"mkdir -m 700 {place} && exec 3>&1 && exec {shlex.join(program)}"]
    process, pidfd = spawn_in_machine(
        machine_process, argv, env=environ_without_vault_key(), cwd="/", stdin=False
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with process.stdout as told, process.stderr as errors:
            if told.read(1) != b"\n":
                said = errors.read(1000).decode(errors="replace").strip()
                raise Unavailable(
                    "no_programs",
                    f"nothing can be kept running in this machine ({said}): try again",
                )
        return InitClient(_pid(pidfd), path=f"/proc/{machine_process.pid}/root{place}/init.sock")
    finally:
        os.close(pidfd)


def _pid(pidfd: int) -> int:
    """Return the pid of a process in this process's namespace: the machine has its own numbers."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
