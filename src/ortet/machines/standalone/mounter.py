"""Builds the mounts of a machine from a plan, and changes the workspace's layers later.

Standard library only: the zygote loads this file as a plain module.
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

_MOUNT_NAMESPACE = "/proc/self/ns/mnt"


_NO_TYPES = frozenset[str]()
_DEVICES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9))
_LINKS = (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2"))


class Mounter:
    """Mounts for a process in its own mount namespace; see overlay/mount_plan.py for the steps."""

    def __init__(self, kernel: syscalls.LinuxSyscalls, plan: dict[str, Any]) -> None:
        self.workspace_path: str = plan["place"]
        self._kernel = kernel
        self._plan = plan
        self._root: str = plan["root"]
        self._hold_directory = ""
        self._hold_fd = -1

    def build(self) -> None:
        """Build all mounts below `root`, then make `root` the root directory."""
        self.build_without_pivot(_NO_TYPES)
        self._kernel.pivot_root(self._root)

    def build_without_pivot(self, excluded: frozenset[str] = syscalls.CRIU_MOUNT_TYPES) -> None:
        """Build all mounts below `root`, except the types that CRIU creates itself."""
        umask = os.umask(0o022)
        self._kernel.make_mounts_private()
        for step in self._plan["steps"]:
            if step["do"] not in excluded:
                self._apply_step(**step)
        self._mount_held_overlay(self._root + self.workspace_path, self._plan["workspace"])
        os.umask(umask)

    def mount_workspace(self, options: str) -> None:
        """Mount the workspace on new layers."""
        self._mount_held_overlay(self.workspace_path, options)

    def unmount_workspace(self) -> bool:
        """Unmount the workspace. Returns False if a process, perhaps on the host, still uses it."""
        try:
            self._kernel.unmount(self.workspace_path)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def swap_layers(self, options: str) -> None:
        """Switch to other layers at once.

        Processes keep the files they have open on the old layers.
        """
        self._kernel.unmount(self.workspace_path, lazy=True)
        self._mount_held_overlay(self.workspace_path, options)

    def clone_namespace(self, options: str) -> tuple[int, int]:
        """Copy this mount namespace with other workspace layers.

        Returns open descriptors of the copy's root directory and of its namespace. The mounts live
        as long as a process holds the namespace. A process that makes this directory its root sees
        the copy, and needs no right to mount.
        """
        home = os.open(_MOUNT_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
        opened: list[int] = []
        try:
            os.fchdir(self._hold_fd)  # the copied namespace has it too
            self._kernel.unshare(syscalls.CLONE_NEWNS)
            try:
                # mount over the old workspace: to unmount that first would double the time
                self._kernel.mount("ortet", self.workspace_path, "overlay", 0, options)
                opened.append(os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
                opened.append(os.open(_MOUNT_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC))
            finally:
                self._kernel.join_mount_namespace(home)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        finally:
            os.close(home)
        return opened[0], opened[1]

    def build_detached_workspace(self) -> int:
        """Mount only the workspace, and return it as an open, detached mount.

        The mount namespace of this process cannot be used for anything else afterwards.
        """
        self._kernel.make_mounts_private()
        for step in self._plan["steps"]:
            self._apply_step(**step)
        target = f"{self._hold_directory}/aside"
        os.mkdir(target)
        self._mount_held_overlay(target, self._plan["workspace"])
        return self._kernel.clone_mount(target)

    def _apply_step(self, *, do: str, at: str, host: bool = False, **how: Any) -> None:
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
            return  # there is nothing to hide
        if os.path.realpath(target) != target:
            raise OSError(f"{at} leads through a symbolic link inside the machine")
        if how.pop("optional", False):
            with contextlib.suppress(OSError):
                self._apply_step(do=do, at=at, host=host, **how)
            return
        if do == "overlay":
            self._mount_overlay(target, **how)
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
            _make_devices(target)
        elif do == "hold":
            self._bind_held_directories(target)
        elif do == "hide":
            kernel.bind(f"{self._hold_directory}/void" if how["directory"] else "/dev/null", target)
        if do == "hide" or how.get("sealed"):
            kernel.make_read_only(target, recursive=how.get("recursive", False))

    def _mount_overlay(
        self, target: str, *, options: str, instead: dict[str, Any] | None = None
    ) -> None:
        """Mount an overlay.

        If the kernel refuses, bind `instead`; if that is empty, change nothing.
        """
        try:
            self._kernel.mount("ortet", target, "overlay", 0, options)
        except OSError:
            if instead is None:
                raise
            if instead and os.path.isdir(target):  # else the host has just unmounted it
                self._kernel.bind(instead["source"], target)
                if instead.get("sealed"):
                    self._kernel.make_read_only(target)

    def _bind_held_directories(self, target: str) -> None:
        """Bind the host directories that later mounts need.

        They are below /proc, where no path inside the machine leads to them. The kernel accepts
        overlay directories only if they are mounted in this namespace.
        """
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        self._kernel.mount("tmpfs", target, "tmpfs", flags, "mode=755")
        self._hold_directory = target
        for name, source in self._plan["held"].items():
            os.mkdir(f"{target}/{name}")
            self._kernel.bind(source, f"{target}/{name}")
        os.mkdir(f"{target}/void", 0o555)
        self._hold_fd = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _mount_held_overlay(self, target: str, options: str) -> None:
        """Mount an overlay whose options name paths relative to the held directories."""
        os.fchdir(self._hold_fd)
        try:
            self._kernel.mount("ortet", target, "overlay", 0, options)
        finally:
            os.chdir("/")


def _make_devices(directory: str) -> None:
    """Create the device nodes that programs expect, in an ordinary directory.

    Existing nodes are kept.
    """
    for name, major, minor in (*_DEVICES, ("tty", 5, 0)):
        with contextlib.suppress(FileExistsError):
            os.mknod(f"{directory}/{name}", 0o20666, os.makedev(major, minor))
            os.chmod(f"{directory}/{name}", 0o666)
    for name, target in (("ptmx", "pts/ptmx"), *((n, f"/proc/self/{t}") for n, t in _LINKS)):
        with contextlib.suppress(FileExistsError):
            os.symlink(target, f"{directory}/{name}")  # noqa: PTH211 - pathlib is slow to load
    for name, mode in (("pts", 0o755), ("shm", 0o1777)):
        os.makedirs(f"{directory}/{name}", exist_ok=True)
        os.chmod(f"{directory}/{name}", mode)
