"""The zygote of a hub: a small process that forks a supervisor for every overlay machine.

Run as `python -I -S zygote.py FD user|root`, so it may import only the standard library and its
neighbours here. The hub starts it at first use. A fork of it takes a millisecond; a new interpreter
would take twenty.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.machines.standalone import ipc, overlay_supervisor, syscalls
else:
    # last in the search path, so that no module here replaces one of the standard library
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import ipc
    import overlay_supervisor
    import syscalls


def main() -> None:
    """Fork supervisors until the hub is gone."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    kernel = syscalls.LinuxSyscalls()
    if sys.argv[2] == "user":
        _enter_user_namespace(kernel)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()  # the collector would otherwise touch, and so copy, every page in every child
    ipc.send(sock, {"ready": os.getpid()})
    while True:
        try:
            _, fds = ipc.receive(sock)
        except ipc.ConnectionClosed:
            os._exit(0)
        machine = socket.socket(fileno=fds[0])
        with (
            machine,
            contextlib.suppress(ipc.ConnectionClosed),
        ):  # the hub may have closed it already
            _fork_supervisor(kernel, sock, machine)


def _fork_supervisor(
    kernel: syscalls.LinuxSyscalls, sock: socket.socket, machine: socket.socket
) -> None:
    """Fork pid 1 of a new machine, and tell the hub its pid."""
    try:
        pid = kernel.fork_into_namespaces(syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS)
    except OSError as error:
        ipc.send(machine, {"error": str(error), "errno": error.errno})
        return
    if pid == 0:
        sock.close()
        overlay_supervisor.main(kernel, machine)
    ipc.send(machine, {"pid": pid})


def _enter_user_namespace(kernel: syscalls.LinuxSyscalls) -> None:
    """Enter a user namespace: it gives rights over mounts, but none over the host.

    Only the current user exists in it. The files of the interpreter may be unreadable from here on,
    so all imports must be done before.
    """
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(syscalls.CLONE_NEWUSER)
    # Without this, /proc files of an interpreter that was started with capabilities belong to root.
    kernel.prctl(syscalls.PR_SET_DUMPABLE, 1)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)


if __name__ == "__main__":
    main()
