"""Starts a program in a session of its own, from pid 1 of a machine.

Standard library only: pid 1 loads this file as a plain module.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortet.machines.standalone import syscalls
else:
    import syscalls

# Capabilities that a command does not need, and that could undo the machine's mounts: SYS_MODULE,
# SYS_RAWIO, SYS_ADMIN, SYS_BOOT.
_DROPPED_CAPABILITIES = (16, 17, syscalls.CAP_SYS_ADMIN, 22)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

SpawnAction = tuple[int, int, int] | tuple[int, int, str, int, int]
"""A file action of posix_spawn: an operation on a descriptor of the new process."""


def drop_capabilities(kernel: syscalls.LinuxSyscalls) -> None:
    """Limit the capabilities that commands can gain. This process keeps its own."""
    for number in _DROPPED_CAPABILITIES:
        kernel.prctl(syscalls.PR_CAPBSET_DROP, number)


def dup_actions(fds: Sequence[int]) -> list[SpawnAction]:
    """Return the actions that make these descriptors 0, 1, 2 and so on in the new process."""
    return [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]


def spawn(argv: list[str], env: dict[str, str], actions: Sequence[SpawnAction]) -> int:
    """Start a program, found by the PATH of its own environment, and return its pid.

    Raises ValueError for a NUL byte, or for a variable name that contains "=".
    """
    failure: OSError = FileNotFoundError(errno.ENOENT, "No such file or directory", argv[0])
    for path in _candidates(argv[0], env):
        try:
            return os.posix_spawn(
                path,
                argv,
                env,
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except OSError as error:
            if isinstance(failure, FileNotFoundError):
                failure = error
    raise failure


def _candidates(program: str, env: dict[str, str]) -> list[str]:
    """Return the existing files that may be the program.

    The check saves time: a failed start costs as much as a successful one.
    """
    if "\0" in program:
        raise ValueError("embedded null byte")  # no path contains one, so it would be "not found"
    if "/" in program:
        return [program]
    places = [f"{place}/{program}" for place in os.get_exec_path(env)]
    return [path for path in places if os.path.exists(path)]
