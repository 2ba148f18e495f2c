"""Makes a machine's view out of a plan, and changes the workspace's layers later.

Standard library only: the zygote loads this file by itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import syscalls
else:
    import syscalls

_NAMESPACE = "/proc/self/ns/mnt"


RESTORED = frozenset(("proc", "devpts", "sysfs"))
"""Kinds of mounts that CRIU makes by itself."""

_NOTHING = frozenset[str]()
_DEVICES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9))
_LINKS = (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))


class Mounter:
    """For a process in a mount namespace of its own; see view.py for the steps of a plan."""

    def __init__(self, kernel: syscalls.Kernel, plan: dict[str, Any]) -> None:
        self.place: str = plan["place"]
        self._kernel = kernel
        self._plan = plan
        self._root: str = plan["root"]
        self._hidden = ""
        self._here = -1

    def build(self) -> None:
        """Make the view below `root`, then make that the root."""
        self.build_aside(_NOTHING)
        self._kernel.pivot(self._root)

    def build_aside(self, left_out: frozenset[str] = RESTORED) -> None:
        """Make the view below `root`, without what whoever takes it over makes itself."""
        umask = os.umask(0o022)
        self._kernel.private()
        for step in self._plan["steps"]:
            if step["do"] not in left_out:
                self._step(**step)
        self._mount(self._root + self.place, self._plan["workspace"])
        os.umask(umask)

    def mount(self, options: str) -> None:
        """The workspace, on new layers."""
        self._mount(self.place, options)

    def unmount(self) -> bool:
        """False when someone, perhaps on the host, still has a file or directory of it open."""
        try:
            self._kernel.unmount(self.place)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def swap(self, options: str) -> None:
        """Other layers at once: who has files of the old ones open keeps those."""
        self._kernel.unmount(self.place, lazy=True)
        self._mount(self.place, options)

    def branch(self, options: str) -> tuple[int, int]:
        """A copy of this view with other layers: its root directory and its namespace, both open.

        The mounts last as long as somebody holds the namespace. Whoever makes that directory its
        root sees the copy, and needs no right to mount for it.
        """
        home = os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        opened: list[int] = []
        try:
            os.fchdir(self._here)  # which the copy of a namespace takes along
            self._kernel.unshare(syscalls.CLONE_NEWNS)
            try:
                # over the old one: to unmount that here first would take as long again
                self._kernel.mount("ortet", self.place, "overlay", 0, options)
                opened.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                opened.append(os.open(_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC))
            finally:
                self._kernel.setns(home)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        finally:
            os.close(home)
        return opened[0], opened[1]

    def lay_aside(self) -> int:
        """The workspace alone, as a mount that is nowhere; the namespace is spent then."""
        self._kernel.private()
        for step in self._plan["steps"]:
            self._step(**step)
        at = f"{self._hidden}/aside"
        os.mkdir(at)
        self._mount(at, self._plan["workspace"])
        return self._kernel.lift(at)

    def _step(self, *, do: str, at: str, host: bool = False, **how: Any) -> None:
        kernel = self._kernel
        target = at if host else (self._root + at).rstrip("/")
        if do == "mkdir":
            os.makedirs(target, exist_ok=True)
            return
        if do == "stand-in":
            if not os.path.ismount(target):
                os.makedirs(target, exist_ok=True)
                kernel.bind(target, target)
            return
        if do == "hide" and not os.path.lexists(target):
            return  # what would be hidden does not show anyway
        if os.path.realpath(target) != target:
            raise OSError(f"{at} leads through a symbolic link inside the machine")
        if how.pop("optional", False):
            with contextlib.suppress(OSError):
                self._step(do=do, at=at, host=host, **how)
            return
        if do == "overlay":
            self._overlay(target, **how)
        elif do == "bind":
            kernel.bind(how["source"], target, recursive=how.get("recursive", False))
        elif do == "tmpfs":
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
            kernel.mount("tmpfs", target, "tmpfs", flags, how["options"])
        elif do == "proc":
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
            kernel.mount("proc", target, "proc", flags)
        elif do == "sysfs":
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC | syscalls.MS_RDONLY
            kernel.mount("sysfs", target, "sysfs", flags)
        elif do == "devpts":
            flags = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
            kernel.mount("devpts", target, "devpts", flags, "newinstance,ptmxmode=0666,mode=620")
        elif do == "devices":
            _devices(target)
        elif do == "hold":
            self._hold(target)
        elif do == "hide":
            kernel.bind(f"{self._hidden}/void" if how["directory"] else "/dev/null", target)
        if do == "hide" or how.get("sealed"):
            kernel.seal(target, recursive=how.get("recursive", False))

    def _overlay(self, target: str, *, options: str, instead: dict[str, Any] | None = None) -> None:
        """`instead` is what to bind there when the kernel refuses; empty: leave what is there."""
        try:
            self._kernel.mount("ortet", target, "overlay", 0, options)
        except OSError:
            if instead is None:
                raise
            if instead and os.path.isdir(target):  # else the host has just unmounted it
                self._kernel.bind(instead["source"], target)
                if instead.get("sealed"):
                    self._kernel.seal(target)

    def _hold(self, target: str) -> None:
        """Keep the host directories that later mounts need where no path leads: below /proc.

        The kernel makes overlays only of directories that are mounted in this namespace.
        """
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        self._kernel.mount("tmpfs", target, "tmpfs", flags, "mode=755")
        self._hidden = target
        for name, source in self._plan["held"].items():
            os.mkdir(f"{target}/{name}")
            self._kernel.bind(source, f"{target}/{name}")
        os.mkdir(f"{target}/void", 0o555)
        self._here = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _mount(self, target: str, options: str) -> None:
        """Paths in `options` begin with a name that is held."""
        os.fchdir(self._here)
        try:
            self._kernel.mount("ortet", target, "overlay", 0, options)
        finally:
            os.chdir("/")


def _devices(place: str) -> None:
    """The few that programs expect, as nodes of an ordinary directory; what is there stays."""
    for name, major, minor in (*_DEVICES, ("tty", 5, 0)):
        with contextlib.suppress(FileExistsError):
            os.mknod(f"{place}/{name}", 0o20666, os.makedev(major, minor))
            os.chmod(f"{place}/{name}", 0o666)
    for name, target in (("ptmx", "pts/ptmx"), *((n, f"/proc/self/{t}") for n, t in _LINKS)):
        with contextlib.suppress(FileExistsError):
            os.symlink(target, f"{place}/{name}")  # noqa: PTH211 - pathlib is slow to load
    for name, mode in (("pts", 0o755), ("shm", 0o1777)):
        os.makedirs(f"{place}/{name}", exist_ok=True)
        os.chmod(f"{place}/{name}", mode)
