"""The program of a Python kernel: runs the code that it is sent, and forks on request.

Standard library only, and compatible with old interpreters. The kernel receives the text of this
file, `kernel_cell`, `kernel_variables` and `ipc` on its socket, so nothing needs to be installed
where it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import stat
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import ipc, kernel_cell, kernel_variables

    Message = dict[str, Any]
    OpenFile = tuple[int, str, int, int]
    """An open file below the workspace: descriptor, path, flags, position."""
else:
    import _ortet_ipc as ipc
    import _ortet_kernel_cell as kernel_cell
    import _ortet_kernel_variables as kernel_variables

_RUN_MARK_VARIABLE = "ORTET_RUN"
# paths that are no files of the machine
_NON_FILE_PREFIXES = ("/proc/", "/sys/", "/dev/", "/memfd:")
_MIN_PRIVATE_FD = 200  # lowest number for own descriptors: some programs close the first few


class KernelServer:
    """Answers one message at a time. A fork continues in the same loop with another socket."""

    def __init__(
        self, sock: socket.socket, workspace_path: str, listener: socket.socket | None = None
    ) -> None:
        self._sock = _move_to_high_fd(sock)
        self._socket_path: str = listener.getsockname() if listener else ""
        self._listener = listener and _move_to_high_fd(listener)
        self._workspace_path = workspace_path
        self._cells = kernel_cell.CellRunner()
        self._is_running = False
        self._children: list[int] = []
        self._namespace = -1  # kept open, so that the mounts of this fork stay alive
        self._files_to_reopen: tuple[str, list[OpenFile]] = (workspace_path, [])
        signal.signal(signal.SIGINT, self._on_interrupt)

    def serve(self) -> None:
        """Serve until the hub disconnects; with a listener, until the process is killed."""
        self._send_hello()
        while True:
            try:
                message, fds = ipc.receive(self._sock)
            except ipc.ConnectionClosed:
                self._wait_for_hub()
                continue
            self._reap_forks()
            try:
                answer = getattr(self, "_do_" + message["do"])(message, fds)
            except KeyboardInterrupt:  # arrived after the code it was meant for
                answer = {}
            finally:
                for fd in fds:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            if answer is None:  # a new fork waits for the first message of the hub
                continue
            reply, passed = answer if isinstance(answer, tuple) else (answer, [])
            with contextlib.suppress(ipc.ConnectionClosed):  # the next receive detects it too
                ipc.send(self._sock, reply, passed)
            for fd in passed:
                os.close(fd)
            if message["do"] == "leave":
                self._wait_for_hub()

    def _send_hello(self) -> None:
        with contextlib.suppress(ipc.ConnectionClosed):
            ipc.send(self._sock, {"hello": os.getpid(), "version": sys.version.split()[0]})

    def _wait_for_hub(self) -> None:
        """Wait for the next connection, or exit if there is no listener.

        No descriptor that leads out of the machine is open while it waits, so the machine can be
        dumped.
        """
        if self._listener is None:
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for number in (1, 2):
            os.dup2(null, number)
        os.close(null)
        self._sock.close()
        self._sock = _move_to_high_fd(self._listener.accept()[0])
        self._send_hello()

    def _do_leave(self, message: Message, fds: list[int]) -> Message:  # noqa: ARG002
        _flush()
        return {}

    def _do_streams(self, message: Message, fds: list[int]) -> Message:  # noqa: ARG002
        for number, fd in enumerate(fds, 1):
            os.dup2(fd, number)
        return {}

    # running code

    def _do_run(self, message: Message, fds: list[int]) -> Message:  # noqa: ARG002
        try:
            try:
                self._is_running = True
                outcome = self._cells.run(message["code"])
                _flush()
            finally:
                self._is_running = False
        except KeyboardInterrupt as error:
            outcome = {"error": kernel_cell.describe_error(error)}
            _flush()
        return outcome

    def _on_interrupt(self, *_: Any) -> None:
        if self._is_running:
            raise KeyboardInterrupt

    # variables

    def _do_save(self, message: Message, fds: list[int]) -> Message:
        return kernel_variables.save(
            self._cells.module.__dict__, message["names"], fds, message["most"]
        )

    def _do_load(self, message: Message, fds: list[int]) -> Message:
        return kernel_variables.load(self._cells.module.__dict__, message["vars"], fds)

    # forks

    def _do_ready(self, message: Message, fds: list[int]) -> Message:  # noqa: ARG002
        """Report what prevents a fork, or a change of the layers below open files."""
        alive = [t for t in threading.enumerate() if t is not threading.main_thread()]
        threads = [t.name for t in alive]
        opened, stuck = _list_open_files(self._workspace_path, everywhere=bool(message.get("all")))
        try:
            cwd = os.getcwd()
        except OSError:  # the directory was removed
            cwd = self._workspace_path
        self._files_to_reopen = (cwd, opened)
        return {"threads": threads, "stuck": stuck}

    def _do_follow(self, message: Message, fds: list[int]) -> Message:  # noqa: ARG002
        """Reopen files on other layers at the same path.

        With descriptors, first move below another root. A single descriptor is the root of the
        machine itself.
        """
        if fds:
            self._change_root(*fds)
        if len(fds) == 1 and self._socket_path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._socket_path)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(self._socket_path)
                listener.listen()
                self._listener = _move_to_high_fd(listener)
        return {"lost": self._reopen_files()}

    def _do_fork(self, message: Message, fds: list[int]) -> Any:
        """Fork, and reply with the child's pid and pidfd.

        If the message asks to `look`, a first reply reports what prevents a fork.
        """
        if not hasattr(os, "pidfd_open"):
            return {"failed": "that takes Python 3.9 or later"}
        if message["look"]:
            report = self._do_ready({}, [])
            if report["stuck"] or (report["threads"] and not message["force"]):
                return report
            with contextlib.suppress(ipc.ConnectionClosed):
                ipc.send(self._sock, report)
        _flush()
        gc.freeze()  # the collector would otherwise touch, and so copy, every page in every child
        try:
            with warnings.catch_warnings():
                # about threads: the hub has decided
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            gc.unfreeze()
            return {"failed": str(error)}
        if pid == 0:
            self._become_fork(message, fds)
            return None
        gc.unfreeze()
        self._children.append(pid)
        return {"pid": pid}, [os.pidfd_open(pid)]

    def _become_fork(self, message: Message, fds: list[int]) -> None:
        """Set up the child: its own socket, run mark and random seeds.

        Its files follow with the next message; they are prepared concurrently.
        """
        os.setsid()
        self._sock.close()
        self._sock = _move_to_high_fd(socket.socket(fileno=os.dup(fds[0])))
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for number, fd in ((1, fds[1]), (2, fds[2])):
            os.dup2(fd, number)
        os.environ[_RUN_MARK_VARIABLE] = message["mark"]
        self._children = []
        self._cells.reset_after_fork()
        _reseed()

    def _do_files(self, message: Message, fds: list[int]) -> Message:  # noqa: ARG002
        self._change_root(*fds)
        return {"hello": os.getpid(), "lost": self._reopen_files()}

    def _change_root(self, root: int, namespace: int | None = None) -> None:
        """Move below another root directory. Its mounts live as long as the namespace is open."""
        os.fchdir(root)
        os.chroot(".")
        os.chdir("/")
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1
        if namespace is not None:
            self._namespace = fcntl.fcntl(namespace, fcntl.F_DUPFD_CLOEXEC, _MIN_PRIVATE_FD)

    def _reopen_files(self) -> list[str]:
        """Reopen the working directory and the open files, by the paths that `_do_ready` found.

        Returns the files that could not be opened.
        """
        cwd, opened = self._files_to_reopen
        lost = []
        try:
            os.chdir(cwd)
        except OSError:
            os.chdir(self._workspace_path)
        for fd, path, flags, offset in opened:
            try:
                fresh = os.open(path, flags | os.O_CLOEXEC)
            except OSError as error:
                lost.append(f"{path}: {error.strerror}")
                continue
            if offset >= 0:
                os.lseek(fresh, offset, os.SEEK_SET)
            os.dup2(fresh, fd, os.get_inheritable(fd))
            os.close(fresh)
        return lost

    def _reap_forks(self) -> None:
        """Reap forks that have ended. Other children belong to the code that started them."""
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.remove(pid)


def _list_open_files(
    workspace_path: str, *, everywhere: bool = False
) -> tuple[list[OpenFile], list[str]]:
    """List the open files below the workspace, and those that cannot be opened again.

    A file cannot be opened again if it was deleted, or if it is mapped for shared writing. With
    `everywhere`, files outside the workspace are listed too, if they can be opened again.
    """
    opened: list[OpenFile] = []
    stuck: list[str] = []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            path, now = os.readlink("/proc/self/fd/" + name), os.fstat(fd)
        except OSError:  # the descriptor of the listing itself
            continue
        below = path == workspace_path or path.startswith(workspace_path + "/")
        if not below and (not everywhere or path[:1] != "/" or path.startswith(_NON_FILE_PREFIXES)):
            continue
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
        if path.endswith(" (deleted)"):
            if below and flags & os.O_ACCMODE != os.O_RDONLY:
                stuck.append(path)
        elif stat.S_ISREG(now.st_mode):
            opened.append((fd, path, flags, os.lseek(fd, 0, os.SEEK_CUR)))
        elif stat.S_ISDIR(now.st_mode):
            opened.append((fd, path, flags, -1))
    with open("/proc/self/maps", "rb") as file:
        maps = file.read()
    for line in maps.splitlines() if os.fsencode(workspace_path) + b"/" in maps else ():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][1:4:2] == b"ws":
            path = os.fsdecode(fields[5])
            if path.startswith(workspace_path + "/"):
                stuck.append(path + " (mapped)")
    return opened, stuck


def _reseed() -> None:
    """Reseed the random generators that forks would share, in modules that are loaded."""
    loaded = sys.modules
    for name, verb in (("random", "seed"), ("numpy.random", "seed"), ("torch", "seed")):
        with contextlib.suppress(Exception):
            if name in loaded:
                getattr(loaded[name], verb)()
    with contextlib.suppress(Exception):
        if "ssl" in loaded:
            loaded["ssl"].RAND_add(os.urandom(32), 32.0)
    with contextlib.suppress(Exception):
        if "uuid" in loaded:
            loaded["uuid"]._last_timestamp = None  # type: ignore[attr-defined]


def _move_to_high_fd(sock: socket.socket) -> socket.socket:
    with sock:
        return socket.socket(fileno=fcntl.fcntl(sock, fcntl.F_DUPFD_CLOEXEC, _MIN_PRIVATE_FD))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _exit_on_hangup(sock: socket.socket) -> None:
    """Exit when the hub hangs up. On the host nothing else ends a cell whose hub is gone."""

    def look(*_: Any) -> None:
        poll = select.poll()
        poll.register(sock, select.POLLHUP)
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(1)

    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sock, fcntl.F_SETFL, fcntl.fcntl(sock, fcntl.F_GETFL) | os.O_ASYNC)


def main(
    sock: socket.socket, workspace_path: str, *, alone: bool, listener: socket.socket | None = None
) -> None:
    """Serve as a kernel; never returns."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.reconfigure(  # type: ignore[union-attr]
                encoding="utf-8", errors="surrogateescape", line_buffering=True
            )
    guest = KernelServer(sock, workspace_path, listener)
    if alone:
        _exit_on_hangup(guest._sock)
    guest.serve()
