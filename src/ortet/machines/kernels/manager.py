"""The Python kernels of one machine: started, forked, kept, ended, and never too many."""

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
from ortet.machines.command import environment
from ortet.machines.kernels.fork import Sprout, listen, settle
from ortet.machines.kernels.host import Branch, Growing, Seat, python_of
from ortet.machines.kernels.kernel import Kernel
from ortet.machines.kernels.link import Gone, Link

_START = 30.0  # seconds; a start takes a tenth of one
_MOST = 1024
_FDS = 8  # descriptors of this process that a kernel may take for a moment
_TUNABLES, _HUGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"  # a fork copies far fewer entries
_MODULES = ("ipc", "kernel_cell", "kernel_variables", "kernel_guest")

# What is imported before the workspace is in the search path: a json.py there is not ours.
_BOOT = """
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


class Kernels:
    """`looking` is held while the machine's files are looked at, `safe` is called before they are
    replaced by others than those of this image."""

    def __init__(
        self,
        seat: Seat,
        *,
        looking: Callable[[], AbstractContextManager[Any]],
        safe: Callable[[Oid], None],
        random: Random = os.urandom,
    ) -> None:
        self._seat = seat
        self._looking = looking
        self._safe = safe
        self._random = random
        self._named: dict[str, Kernel] = {}
        self._forks: dict[str, Kernel] = {}
        self._numbers: dict[str, int] = {}  # of the last fork of each name
        self._change = threading.RLock()
        self._away: ExitStack | None = None
        seat.around_freeze(self.check_forks, self.leave, self.welcome)

    def get(
        self, name: str, *, python: str | None = None, env: Mapping[str, str | None] | None = None
    ) -> tuple[Kernel, bool]:
        """The living kernel of this name, or a new one: then True."""
        with self._change:
            known = self._named.get(name)
            if known is not None and known.alive:
                return known, False
            if known is not None:
                known.close()
            self._room(1)
            found = self._find(name)
            kernel = found or self._start(name, python, env or {})
            self._named[name] = kernel
            return kernel, found is None

    def alive(self) -> list[Kernel]:
        """Those on the machine's own files."""
        return [kernel for kernel in self._named.values() if kernel.alive]

    def close(self, why: str = "the workspace was closed: open it again") -> None:
        for kernel in [*self._named.values(), *self._forks.values()]:
            kernel.end(f"kernel {kernel.name!r} is closed: {why}")

    # around a freeze

    def check_forks(self) -> None:
        """Conflict while there are forks: their files are on mounts that are not the machine's, so
        no image can hold them."""
        if forks := [one.name for one in self._forks.values() if one.alive]:
            raise Conflict(
                "kernel_forks",
                f"{len(forks)} forks of Python kernels are alive ({', '.join(forks[:5])}), and a "
                "commit of this machine cannot hold them: close() them, or keep() one, first",
                forks=forks,
            )

    def leave(self) -> None:
        """Have no connection to the machine; Conflict while one of them runs code, or has forks."""
        with ExitStack() as stack:
            stack.enter_context(self._change)
            self.check_forks()
            living = self.alive()
            for kernel in living:
                stack.enter_context(kernel.turn("be frozen"))
            stack.callback(self._rejoin, living)
            for kernel in living:
                kernel.link.leave()
            self._away = stack.pop_all()

    def welcome(self) -> None:
        away, self._away = self._away, None
        if away is not None:
            away.close()

    def _rejoin(self, living: list[Kernel]) -> None:
        for kernel in living:
            with suppress(Gone, OSError):  # then it is found to be gone when it is used
                if kernel.link.left and (entered := self._seat.find(kernel.name)) is not None:
                    kernel.link.rejoin(entered, _START)

    # for Kernel

    def grow(self, kernel: Kernel, n: int, *, force: bool) -> list[Kernel]:
        """Within the kernel's turn: all or none. Each process is made while its files are."""
        made: list[Kernel] = []
        with self._change, ExitStack() as stack:
            self._room(n)
            residents = [kernel]
            if kernel.branch is None:
                residents += [
                    one for one in self.alive() if one is not kernel and _follows(one, stack)
                ]
            try:
                first = self._sprout(kernel, look=True, force=force)
                with self._looking():
                    try:
                        seen = self._seat.glance(kernel.branch)
                        growing = self._seat.branching(
                            lambda: [*_pids(residents), first.come(self._seat).pid],
                            seen,
                            kernel.branch,
                        )
                        files = stack.enter_context(growing)
                    except BaseException:
                        first.wither()
                        raise
                    try:
                        made.append(self._raise(kernel, first, files))
                    finally:
                        self._move(residents, files)
                while len(made) < n:
                    sprout = self._sprout(kernel, look=False, force=True)
                    made.append(self._raise(kernel, sprout, files))
                for one in made:
                    listen(one)
            except BaseException:
                for one in made:
                    one.close()
                raise
        return made

    def _sprout(self, kernel: Kernel, *, look: bool, force: bool) -> Sprout:
        return Sprout(kernel, self._random(8).hex(), look=look, force=force)

    def _raise(self, kernel: Kernel, sprout: Sprout, files: Growing) -> Kernel:
        """Files for a process that is on its way, and its name."""
        branch: Branch | None = None
        try:
            branch = files.grow()
            link = sprout.come(self._seat)
        except BaseException:
            sprout.wither()
            if branch is not None:
                self._seat.drop(branch)
            raise
        self._numbers[kernel.name] = number = self._numbers.get(kernel.name, 0) + 1
        fork = Kernel(self, f"{kernel.name}/{number}", link, branch=branch)
        fork.keeping = list(kernel.keeping)
        self._forks[fork.name] = fork
        try:
            settle(fork, branch)
        except BaseException:
            fork.close()
            raise
        return fork

    def _move(self, residents: list[Kernel], files: Growing) -> None:
        """Those whose files became a layer go on upon it."""
        if files.moved:
            for one in residents:
                one.follow()
        if files.instead is not None:
            (kernel,) = residents
            old, kernel.branch = kernel.branch, files.instead
            assert old is not None
            try:
                kernel.follow(files.instead.root, files.instead.namespace)
            finally:
                self._seat.drop(old)

    def take(self, kernel: Kernel, fork: Kernel) -> None:
        assert fork.branch is not None
        name = kernel.name
        with self._change, ExitStack() as stack:
            if kernel.branch is None:
                self._take(kernel, fork, stack)
            kernel.end(f"kernel {name!r} was replaced by its fork {fork.name!r}: use that one")
            self._forks.pop(fork.name, None)
            fork.name = name
            fork.keeping = list(dict.fromkeys([*kernel.keeping, *fork.keeping]))
            where = self._named if fork.branch is None else self._forks
            where[name] = fork

    def _take(self, kernel: Kernel, fork: Kernel, stack: ExitStack) -> None:
        assert fork.branch is not None
        others = [one for one in self.alive() if one is not kernel and _follows(one, stack)]
        fork.get_ready(everywhere=self._seat.carries)
        self._seat.check_return(fork.link.pid)
        self._safe(self._seat.basis(fork.branch))
        with self._looking():
            root = self._seat.take(fork.branch, _pids([kernel, *others]))
        try:
            fork.follow(root)
        finally:
            os.close(root)
        for one in others:
            one.follow()
        branch, fork.branch = fork.branch, None
        self._seat.drop(branch)

    def forget(self, kernel: Kernel) -> None:
        """End its process and give back its files."""
        with self._change:
            self._named = {k: v for k, v in self._named.items() if v is not kernel}
            self._forks = {k: v for k, v in self._forks.items() if v is not kernel}
            spare = [one.link.pid for one in (*self._named.values(), *self._forks.values())]
        link = kernel.link
        with suppress(OrtetError):  # a machine that is gone has nothing left to end
            self._seat.end(link.pid if link.alive else -1, link.mark, spare)
            self.autopsy(kernel)
            if kernel.branch is not None:
                self._seat.drop(kernel.branch)
        kernel.retire()

    def autopsy(self, kernel: Kernel) -> str:
        """How it ended, where that can be known."""
        if not kernel.launched or kernel.link.alive:
            return ""
        kernel.launched = False
        with suppress(OrtetError, OSError):
            code = self._seat.code(kernel.link.pid)
            if code is not None and code >= 0:
                return f"its process ended with exit code {code}"
            if code is not None:
                return f"its process was ended by {_name_of(-code)}"
        return ""

    # inside

    def _room(self, n: int) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = min(_MOST, files // _FDS) if files > 0 else _MOST
        if len(self._named) + len(self._forks) + n > most:
            raise Refused(
                "too_many_kernels",
                f"{n} more kernels would be more than {most}, which is what this process has "
                "descriptors for: close some first, or raise its limit of open files",
            )

    def _start(self, name: str, python: str | None, env: Mapping[str, str | None]) -> Kernel:
        program = python_of(self._seat, python)
        mark = self._random(8).hex()
        try:
            given = {_TUNABLES: _HUGE, **environment(env, mark)}
            entered = self._seat.enter(name, [program, "-c", _BOOT], env=given)
        except OSError as error:
            raise NotFound(
                "no_python",
                f"{program} cannot be started inside the machine ({error.strerror}): give "
                "python='…', the path of an interpreter there",
            ) from error
        launched = not self._seat.carries
        kernel = Kernel(self, name, Link(entered, mark), launched=launched)
        try:
            with suppress(OSError):  # it has ended: it may have said why
                entered.ends.sock.sendall(_package(self._seat))
            kernel.link.greet(_START)
        except Gone as error:
            words = self._seat.last_words(name) or error.words
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

    def _find(self, name: str) -> Kernel | None:
        """One that came with the machine's processes."""
        entered = self._seat.find(name)
        if entered is None:
            return None
        kernel = Kernel(self, name, Link(entered, ""))
        try:
            kernel.link.greet(_START)
        except (Gone, OSError):
            kernel.close()
            return None
        return kernel


def _follows(kernel: Kernel, stack: ExitStack) -> bool:
    """Whether another kernel is idle, and its open files can go to other layers with it."""
    if not stack.enter_context(kernel.held()):
        return False
    with suppress(OrtetError):
        kernel.get_ready()
        return True
    return False


def _pids(kernels: Iterable[Kernel]) -> list[int]:
    return [kernel.link.pid for kernel in kernels]


def _package(seat: Seat) -> bytes:
    """What makes an interpreter a kernel."""
    here = Path(__file__).parents[1] / "standalone"
    texts = [(name, (here / f"{name}.py").read_text("utf-8")) for name in _MODULES]
    given = {"modules": texts, "place": seat.place, "alone": not seat.contained}
    body = json.dumps(given).encode()
    return struct.pack("!I", len(body)) + body


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
