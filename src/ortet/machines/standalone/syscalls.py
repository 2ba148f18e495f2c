"""System calls for namespaces, mounts and capabilities, through ctypes.

Standard library only: the zygote loads this file as a plain module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Iterator, Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

CAP_SYS_CHROOT = 18
CAP_SYS_ADMIN = 21
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24

_PR_CAP_AMBIENT = 47
_AMBIENT_RAISE = 2
_AMBIENT_CLEAR = 4
_CAPABILITY_VERSION = 0x20080522

_MNT_DETACH = 0x2
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1
_SYS_MOUNT_SETATTR = 442
_OPEN_TREE_CLONE = 0x1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}
_SYS_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}

CRIU_MOUNT_TYPES = frozenset(("proc", "devpts", "sysfs"))
"""Types of a live machine's mounts that CRIU creates itself.

Every other mount comes from outside at a restore. Programs in a machine may not mount anything, so
there are no other types.
"""


class LinuxSyscalls:
    """Bindings to libc. Every call raises an OSError that names the operation."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def _check(self, result: int, description: str) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)} ({description})")

    def unshare(self, flags: int) -> None:
        self._check(self._libc.unshare(flags), f"unshare {flags:#x}")

    def join_namespace(self, namespace: int, kind: int) -> None:
        """Join the namespace that a descriptor refers to."""
        self._check(self._libc.setns(namespace, kind), f"setns {kind:#x}")

    def fork_into_namespaces(self, flags: int) -> int:
        """Fork, with the child as the first process of new namespaces.

        A process that unshares its pid namespace stays outside of it; only its children are inside.
        So a second fork would be needed without this. The process must have only one thread.
        """
        python, zero = ctypes.pythonapi, ctypes.c_ulong(0)
        number = ctypes.c_long(_SYS_CLONE[os.uname().machine])
        clone = ctypes.PyDLL(None, use_errno=True).syscall  # PyDLL keeps the GIL
        python.PyOS_BeforeFork()
        pid: int = clone(number, ctypes.c_ulong(flags | signal.SIGCHLD), zero, zero, zero, zero)
        if pid == 0:
            python.PyOS_AfterFork_Child()
        else:
            python.PyOS_AfterFork_Parent()
        self._check(pid, f"clone {flags:#x}")
        return pid

    def join_mount_namespace(self, namespace: int) -> None:
        """Join an open mount namespace. Its root becomes the root and working directory."""
        self._check(self._libc.setns(namespace, CLONE_NEWNS), "setns")

    def prctl(self, option: int, value: int, more: int = 0) -> None:
        zero = ctypes.c_ulong(0)
        result = self._libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(more), zero, zero)
        self._check(result, f"prctl {option}")

    @contextlib.contextmanager
    def capability_granted(self, capability: int | None) -> Iterator[None]:
        """Let programs executed in this block keep one capability, even if they are not user 0."""
        if capability is None:
            yield
            return
        head = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION, 0))
        sets = ctypes.create_string_buffer(24)
        self._check(self._libc.capget(head, sets), "capget")
        words = list(struct.unpack("6I", sets.raw))
        words[2 + 3 * (capability // 32)] |= 1 << capability % 32  # inheritable set
        self._check(self._libc.capset(head, struct.pack("6I", *words)), "capset")
        self.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability)
        try:
            yield
        finally:
            self.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR)

    def mount(self, source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
        result = self._libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            os.fsencode(options) or None,
        )
        self._check(result, f"mount {kind or source} on {target}")

    def bind(self, source: str, target: str, *, recursive: bool = False) -> None:
        self.mount(source, target, "", MS_BIND | (MS_REC if recursive else 0))

    def make_mounts_private(self) -> None:
        """Stop mount events from propagating into or out of this namespace."""
        self.mount("none", "/", "", MS_REC | MS_PRIVATE)

    def make_read_only(self, target: str, *, recursive: bool = False, undo: bool = False) -> None:
        """Make a mount read-only, or writable again with `undo`.

        With `recursive`, all mounts below it change too. This needs Linux 5.12.
        """
        bits = (0, _MOUNT_ATTR_RDONLY) if undo else (_MOUNT_ATTR_RDONLY, 0)
        attributes = struct.pack("QQQQ", *bits, 0, 0)
        result = self._libc.syscall(
            ctypes.c_long(_SYS_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
            attributes,
            ctypes.c_size_t(len(attributes)),
        )
        self._check(result, f"mount_setattr on {target}")

    def clone_mount(self, target: str) -> int:
        """Return an open, detached copy of a mount; `move_mount` attaches it in any namespace."""
        fd: int = self._libc.syscall(
            ctypes.c_long(_SYS_OPEN_TREE),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC),
        )
        self._check(fd, f"open_tree {target}")
        return fd

    def move_mount(self, mount: int, target: str) -> None:
        result = self._libc.syscall(
            ctypes.c_long(_SYS_MOVE_MOUNT),
            ctypes.c_int(mount),
            ctypes.c_char_p(b""),
            ctypes.c_int(_AT_FDCWD),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
        )
        self._check(result, f"move_mount to {target}")

    def unmount(self, target: str, *, lazy: bool = False) -> None:
        flags = _MNT_DETACH if lazy else 0
        self._check(self._libc.umount2(os.fsencode(target), flags), f"unmount {target}")

    def pivot_root(self, root: str) -> None:
        """Make the mount `root` the root directory, and detach the old one."""
        number = _SYS_PIVOT_ROOT[os.uname().machine]
        os.chdir(root)
        self._check(self._libc.syscall(ctypes.c_long(number), b".", b"."), f"pivot_root {root}")
        self.unmount(".", lazy=True)
        os.chdir("/")


def is_privileged() -> bool:
    """Return True if this process may mount as the host's root; else it needs a user namespace."""
    if os.geteuid() != 0:
        return False
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            all_users = file.read().split() == ["0", "0", "4294967295"]
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            caps = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return all_users and bool(int(caps, 16) >> CAP_SYS_ADMIN & 1)


def overlay_options(
    lowers: Sequence[str], upper: str = "", work: str = "", *, extra: Sequence[str] = ()
) -> str:
    """Return the mount options of an overlay, topmost lower first.

    Without `upper` the overlay is read-only.
    """
    parts = ["lowerdir=" + ":".join(escape_option(path) for path in lowers)]
    if upper:
        parts += [f"upperdir={escape_option(upper)}", f"workdir={escape_option(work)}"]
    return ",".join([*parts, *extra])


def escape_option(path: str) -> str:
    """Escape a path for overlay options, where `\\`, `:` and `,` are special."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
