"""Pid 1 of a live machine: reaps, holds the streams of its jobs, and answers on a socket.

Run inside the machine as `python -I -S init.py [READY_FD [SOCKET]]`: it may import the standard
library and its neighbours here, nothing else. One byte goes to READY_FD once it listens. It keeps
no descriptor that leads out of the machine, and its state is plain memory: a copy of the process
tree goes on where the original was.
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
    # last in the search path: our abc.py must not stand in for the standard library's
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
    kernel.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # for when it is not pid 1
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
        except Exception:  # no memory, say: with this process the whole machine would end
            time.sleep(0.01)
            until = event_loop.now()


def _reset_signals() -> None:
    """Jobs inherit what is blocked or ignored; whoever started us may have had reasons."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is not signal.SIG_DFL:
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)


def _close_inherited_fds(ready_fd: int) -> None:
    """Of every descriptor that was given to us but the one to report on."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != ready_fd:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))
    if ready_fd >= 0:
        os.set_inheritable(ready_fd, False)


if __name__ == "__main__":
    main()
