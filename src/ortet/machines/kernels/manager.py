"""All Python kernels of one machine: start, fork, adopt, close, and limit their number."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from ortet.errors import Conflict, NotFound, OrtetError, Refused, Unavailable
from ortet.ids import Oid, Random
from ortet.machines.command import build_environment
from ortet.machines.kernel_host import ForkLayers, KernelHost, KernelLayer
from ortet.machines.kernels.fork import PendingKernelFork, send_layer, wait_ready
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.link import KernelGone, KernelLink
from ortet.machines.kernels.local_host import choose_python

_START_TIMEOUT_SECONDS = 30.0  # a start takes a tenth of a second
_MAX_KERNELS = 1024
_FDS_PER_KERNEL = 8  # descriptors of this process that one kernel may need at a time
_GLIBC_TUNABLES, _HUGE_PAGES = (
    "GLIBC_TUNABLES",
    "glibc.malloc.hugetlb=1",
)  # huge pages: a fork copies far fewer page table entries
_GUEST_MODULES = ("ipc", "kernel_cell", "kernel_variables", "kernel_guest")

# Everything is imported before the workspace is in the search path: a json.py in the workspace must
# not replace the standard library's.
_BOOTSTRAP_CODE = """
import sys
if sys.version_info < (3, 8):
    sys.exit("this is Python " + sys.version.split()[0])
_path = sys.path[:]
sys.path[:] = [one for one in _path if one]
import json, os, socket, types
def _read(size):
    data = b""
    while len(data) < size:
        part = _sock.recv(size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
if os.environ.get("GLIBC_TUNABLES") == "glibc.malloc.hugetlb=1":
    del os.environ["GLIBC_TUNABLES"]
_at, _listener = os.environ.pop("ORTET_KERNEL_AT", ""), None
if _at:
    if os.path.lexists(_at):
        os.unlink(_at)
    _listener = socket.socket(socket.AF_UNIX)
    _listener.bind(_at)
    _listener.listen()
    _sock = _listener.accept()[0]
else:
    _sock = socket.socket(fileno=int(os.environ.pop("ORTET_KERNEL_FD", "3")))
    _sock.set_inheritable(False)
_given = json.loads(_read(int.from_bytes(_read(4), "big")).decode())
for _name, _text in _given["modules"]:
    _made = sys.modules["_ortet_" + _name] = types.ModuleType("_ortet_" + _name)
    exec(compile(_text, "<ortet %s>" % _name, "exec"), _made.__dict__)
sys.modules["_ortet_boot"] = sys.modules["__main__"]
sys.path[:] = _path
sys.modules["_ortet_kernel_guest"].main(
    _sock, _given["place"], alone=_given["alone"], listener=_listener
)
"""


class KernelManager:
    """Manages the kernels of one machine.

    `reading_files` returns a context that is held while the machine's files are read.
    `before_replace` is called with the base image before a fork's files replace the machine's.
    """

    def __init__(
        self,
        host: KernelHost,
        *,
        reading_files: Callable[[], AbstractContextManager[Any]],
        before_replace: Callable[[Oid], None],
        random: Random = os.urandom,
    ) -> None:
        self._host = host
        self._reading_files = reading_files
        self._before_replace = before_replace
        self._random = random
        self._kernels: dict[str, Kernel] = {}
        self._forks: dict[str, Kernel] = {}
        self._fork_numbers: dict[str, int] = {}  # number of the last fork of each kernel name
        self._lock = threading.RLock()
        self._disconnected: ExitStack | None = None
        host.add_snapshot_hooks(self.check_no_forks, self.disconnect, self.reconnect)

    def get(
        self, name: str, *, python: str | None = None, env: Mapping[str, str | None] | None = None
    ) -> tuple[Kernel, bool]:
        """Return the living kernel of this name, or start one.

        The flag is True for a new kernel.
        """
        with self._lock:
            known = self._kernels.get(name)
            if known is not None and known.alive:
                return known, False
            if known is not None:
                known.close()
            self._check_capacity(1)
            running = self._find_running(name)
            kernel = running or self._start_kernel(name, python, env or {})
            self._kernels[name] = kernel
            return kernel, running is None

    def list_alive(self) -> list[Kernel]:
        """Return the living kernels that work on the machine's own files."""
        return [kernel for kernel in self._kernels.values() if kernel.alive]

    def close(self, why: str = "the workspace was closed: open it again") -> None:
        """Close all kernels and forks of the machine."""
        for kernel in [*self._kernels.values(), *self._forks.values()]:
            kernel.end(f"kernel {kernel.name!r} is closed: {why}")

    # snapshots

    def check_no_forks(self) -> None:
        """Raise Conflict("kernel_forks") while kernel forks are alive.

        Their files are on mounts that do not belong to the machine, so no image can hold them.
        """
        if forks := [one.name for one in self._forks.values() if one.alive]:
            raise Conflict(
                "kernel_forks",
                f"{len(forks)} forks of Python kernels are alive ({', '.join(forks[:5])}), and a "
                "commit of this machine cannot hold them: close() them, or keep() one, first",
                forks=forks,
            )

    def disconnect(self) -> None:
        """Close all connections to kernels, and keep the kernels idle until `reconnect`.

        Raises Conflict if a kernel runs code, or if forks are alive.
        """
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            self.check_no_forks()
            living = self.list_alive()
            for kernel in living:
                stack.enter_context(kernel.exclusive("be frozen"))
            stack.callback(self._reconnect_kernels, living)
            for kernel in living:
                kernel.link.disconnect()
            self._disconnected = stack.pop_all()

    def reconnect(self) -> None:
        """Connect to the kernels again, after a snapshot."""
        away, self._disconnected = self._disconnected, None
        if away is not None:
            away.close()

    def _reconnect_kernels(self, kernels: list[Kernel]) -> None:
        for kernel in kernels:
            with suppress(KernelGone, OSError):  # a kernel that is gone is detected at its next use
                if (
                    kernel.link.is_disconnected
                    and (entered := self._host.find_running(kernel.name)) is not None
                ):
                    kernel.link.reconnect(entered, _START_TIMEOUT_SECONDS)

    # for Kernel

    def fork_kernel(self, kernel: Kernel, n: int, *, force: bool) -> list[Kernel]:
        """Create `n` forks of a kernel, all or none; the caller holds the kernel exclusively.

        The process of the first fork is created while its files are prepared.
        """
        forks: list[Kernel] = []
        with self._lock, ExitStack() as stack:
            self._check_capacity(n)
            residents = [kernel]
            if kernel.layer is None:
                residents += [
                    fork
                    for fork in self.list_alive()
                    if fork is not kernel and _can_follow(fork, stack)
                ]
            try:
                first = self._begin_fork(kernel, check_first=True, force=force)
                with self._reading_files():
                    try:
                        seen = self._host.capture_files(kernel.layer)
                        growing = self._host.fork_layers(
                            lambda: [*_pids(residents), first.wait_process(self._host).pid],
                            seen,
                            kernel.layer,
                        )
                        files = stack.enter_context(growing)
                    except BaseException:
                        first.abandon()
                        raise
                    try:
                        forks.append(self._finish_fork(kernel, first, files))
                    finally:
                        self._switch_residents(residents, files)
                while len(forks) < n:
                    pending = self._begin_fork(kernel, check_first=False, force=True)
                    forks.append(self._finish_fork(kernel, pending, files))
                for fork in forks:
                    wait_ready(fork)
            except BaseException:
                for fork in forks:
                    fork.close()
                raise
        return forks

    def _begin_fork(self, kernel: Kernel, *, check_first: bool, force: bool) -> PendingKernelFork:
        return PendingKernelFork(
            kernel, self._random(8).hex(), check_first=check_first, force=force
        )

    def _finish_fork(
        self, kernel: Kernel, pending: PendingKernelFork, layers: ForkLayers
    ) -> Kernel:
        """Give a forked process its files and its name."""
        branch: KernelLayer | None = None
        try:
            branch = layers.grow()
            link = pending.wait_process(self._host)
        except BaseException:
            pending.abandon()
            if branch is not None:
                self._host.drop_layer(branch)
            raise
        self._fork_numbers[kernel.name] = number = self._fork_numbers.get(kernel.name, 0) + 1
        fork = Kernel(self, f"{kernel.name}/{number}", link, layer=branch)
        fork.declared_variables = list(kernel.declared_variables)
        self._forks[fork.name] = fork
        try:
            send_layer(fork, branch)
        except BaseException:
            fork.close()
            raise
        return fork

    def _switch_residents(self, kernels: list[Kernel], layers: ForkLayers) -> None:
        """Move kernels to the new upper layer, after their files became a read-only layer."""
        if layers.moved:
            for resident in kernels:
                resident.switch_files()
        if layers.instead is not None:
            (kernel,) = kernels
            old, kernel.layer = kernel.layer, layers.instead
            assert old is not None
            try:
                kernel.switch_files(layers.instead.root, layers.instead.namespace)
            finally:
                self._host.drop_layer(old)

    def adopt_fork(self, kernel: Kernel, fork: Kernel) -> None:
        """Replace a kernel by its fork; the caller holds both exclusively."""
        assert fork.layer is not None
        name = kernel.name
        with self._lock, ExitStack() as stack:
            if kernel.layer is None:
                self._adopt_files(kernel, fork, stack)
            kernel.end(f"kernel {name!r} was replaced by its fork {fork.name!r}: use that one")
            self._forks.pop(fork.name, None)
            fork.name = name
            fork.declared_variables = list(
                dict.fromkeys([*kernel.declared_variables, *fork.declared_variables])
            )
            where = self._kernels if fork.layer is None else self._forks
            where[name] = fork

    def _adopt_files(self, kernel: Kernel, fork: Kernel, stack: ExitStack) -> None:
        assert fork.layer is not None
        others = [
            other
            for other in self.list_alive()
            if other is not kernel and _can_follow(other, stack)
        ]
        fork.check_can_follow(everywhere=self._host.captures_processes)
        self._host.check_can_adopt(fork.link.pid)
        self._before_replace(self._host.base_image(fork.layer))
        with self._reading_files():
            root = self._host.adopt_layer(fork.layer, _pids([kernel, *others]))
        try:
            fork.switch_files(root)
        finally:
            os.close(root)
        for other in others:
            other.switch_files()
        branch, fork.layer = fork.layer, None
        self._host.drop_layer(branch)

    def release_kernel(self, kernel: Kernel) -> None:
        """End the process of a kernel and release its files."""
        with self._lock:
            self._kernels = {k: v for k, v in self._kernels.items() if v is not kernel}
            self._forks = {k: v for k, v in self._forks.items() if v is not kernel}
            spare = [one.link.pid for one in (*self._kernels.values(), *self._forks.values())]
        link = kernel.link
        with suppress(OrtetError):  # a machine that is gone has nothing left to end
            self._host.kill_kernel(link.pid if link.alive else -1, link.mark, spare)
            self.exit_reason(kernel)
            if kernel.layer is not None:
                self._host.drop_layer(kernel.layer)
        kernel.close_link_when_idle()

    def exit_reason(self, kernel: Kernel) -> str:
        """Return how the kernel's process ended, or an empty string if unknown."""
        if not kernel.launched or kernel.link.alive:
            return ""
        kernel.launched = False
        with suppress(OrtetError, OSError):
            code = self._host.wait_exit_code(kernel.link.pid)
            if code is not None and code >= 0:
                return f"its process ended with exit code {code}"
            if code is not None:
                return f"its process was ended by {_signal_name(-code)}"
        return ""

    # internals

    def _check_capacity(self, n: int) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = min(_MAX_KERNELS, files // _FDS_PER_KERNEL) if files > 0 else _MAX_KERNELS
        if len(self._kernels) + len(self._forks) + n > most:
            raise Refused(
                "too_many_kernels",
                f"{n} more kernels would be more than {most}, which is what this process has "
                "descriptors for: close some first, or raise its limit of open files",
            )

    def _start_kernel(self, name: str, python: str | None, env: Mapping[str, str | None]) -> Kernel:
        program = choose_python(self._host, python)
        mark = self._random(8).hex()
        try:
            environ = {_GLIBC_TUNABLES: _HUGE_PAGES, **build_environment(env, mark)}
            entered = self._host.start_interpreter(
                name, [program, "-c", _BOOTSTRAP_CODE], env=environ
            )
        except OSError as error:
            raise NotFound(
                "no_python",
                f"{program} cannot be started inside the machine ({error.strerror}): give "
                "python='…', the path of an interpreter there",
            ) from error
        launched = not self._host.captures_processes
        kernel = Kernel(self, name, KernelLink(entered, mark), launched=launched)
        try:
            with suppress(OSError):  # the process has ended; its stderr may say why
                entered.channel.sock.sendall(_bootstrap_message(self._host))
            kernel.link.wait_greeting(_START_TIMEOUT_SECONDS)
        except KernelGone as error:
            words = self._host.startup_output(name) or error.stderr
            kernel.close()
            raise Unavailable(
                "kernel_not_started",
                f"{program} did not become a kernel: "
                f"{words.strip()[-1000:] or 'it ended without a word'}; give python='…', an "
                "interpreter of version 3.8 or later",
            ) from error
        except BaseException:
            kernel.close()
            raise
        return kernel

    def _find_running(self, name: str) -> Kernel | None:
        """Connect to a kernel that was restored with the machine's processes."""
        entered = self._host.find_running(name)
        if entered is None:
            return None
        kernel = Kernel(self, name, KernelLink(entered, ""))
        try:
            kernel.link.wait_greeting(_START_TIMEOUT_SECONDS)
        except (KernelGone, OSError):
            kernel.close()
            return None
        return kernel


def _can_follow(kernel: Kernel, stack: ExitStack) -> bool:
    """Return True if a kernel is idle and its open files can follow to other layers.

    The kernel stays idle until `stack` is closed.
    """
    if not stack.enter_context(kernel.try_exclusive()):
        return False
    with suppress(OrtetError):
        kernel.check_can_follow()
        return True
    return False


def _pids(kernels: Iterable[Kernel]) -> list[int]:
    return [kernel.link.pid for kernel in kernels]


def _bootstrap_message(host: KernelHost) -> bytes:
    """Encode the message that turns a plain interpreter into a kernel."""
    here = Path(__file__).parents[1] / "standalone"
    texts = [(name, (here / f"{name}.py").read_text("utf-8")) for name in _GUEST_MODULES]
    message = {"modules": texts, "place": host.workspace_path, "alone": not host.contained}
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
