"""Pid 1 of a live machine: reaps processes, holds the streams of jobs, answers on a socket.

Run inside the machine as `python -I -S init.py [READY_FD [SOCKET]]`, so it may import only the
standard library and its neighbours here. It writes one byte to READY_FD once it listens. It has no
descriptor that leads out of the machine, and its state is plain memory. So a restored copy of the
process tree continues where the original was. In an overlay machine the same program runs as an
ordinary process, and is the parent of shells and services.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.machines.standalone import event_loop, requests, spawn, syscalls
else:
    # last in the search path, so that no module here replaces one of the standard library
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import event_loop
    import requests
    import spawn
    import syscalls

SOCKET_PATH = "/run/ortet/init.sock"
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serve until killed."""
    ready = int(sys.argv[1]) if len(sys.argv) > 1 else -1
    _close_inherited_fds(ready)
    _reset_signals()
    os.umask(0o022)
    kernel = syscalls.LinuxSyscalls()
    with contextlib.suppress(OSError):  # an ordinary user has none to drop
        spawn.drop_capabilities(kernel)
    kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # in case it is not pid 1
    loop = event_loop.EventLoop()
    loop.catch_signal(signal.SIGCHLD)
    loop.catch_signal(signal.SIGUSR1)
    asks = requests.RequestHandlers(loop, sys.argv[2] if len(sys.argv) > 2 else SOCKET_PATH)
    if ready >= 0:
        with contextlib.suppress(OSError):
            os.write(ready, b"\n")
        os.close(ready)
    gc.collect()
    gc.freeze()
    _serve(loop, asks)


def _serve(loop: event_loop.EventLoop, handlers: requests.RequestHandlers) -> None:
    until = handlers.listener.run_once()
    while True:
        try:
            came = loop.run_once(until)
            late = signal.SIGCHLD in came and not handlers.table.reap()
            if signal.SIGUSR1 in came:
                handlers.listener.open()
            until = min(handlers.listener.run_once(), handlers.table.release_absent_readers())
            if late:
                signal.raise_signal(signal.SIGCHLD)
        except Exception:  # for example no memory: if this process ended, the machine would end
            time.sleep(0.01)
            until = event_loop.now()


def _reset_signals() -> None:
    """Restore default signal handling.

    Otherwise jobs would inherit the signals that the starting process blocked or ignored.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)


def _close_inherited_fds(ready_fd: int) -> None:
    """Close every inherited descriptor except the one to report on."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != ready_fd:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    if ready_fd >= 0:
        os.set_inheritable(ready_fd, False)


if __name__ == "__main__":
    main()
