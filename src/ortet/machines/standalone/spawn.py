"""Start a program in a session of its own, from the pid 1 of a machine.

Standard library only: the pid 1 of a machine loads this file by itself.
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

# What a command has no use for, and could undo the machine's view with: SYS_MODULE, SYS_RAWIO,
# SYS_ADMIN, SYS_BOOT.
_DROPPED_CAPABILITIES = (16, 17, syscalls.CAP_SYS_ADMIN, 22)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

SpawnAction = tuple[int, int, int] | tuple[int, int, str, int, int]
"""What posix_spawn does to a descriptor of the new process."""


def drop_capabilities(kernel: syscalls.LinuxSyscalls) -> None:
    """From what commands may gain; this process keeps what it has."""
    for number in _DROPPED_CAPABILITIES:
        kernel.prctl(syscalls.PR_CAPBSET_DROP, number)


def dup_actions(fds: Sequence[int]) -> list[SpawnAction]:
    """These descriptors become 0, 1, 2 of the new process."""
    return [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)]


def spawn(argv: list[str], env: dict[str, str], actions: Sequence[SpawnAction]) -> int:
    """Found by the PATH that it will have. ValueError for a NUL byte or a name with "="."""
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
    """Where it may be. Asked first: a start that fails costs as much as one that does not."""
    if "\0" in program:
        raise ValueError("embedded null byte")  # which is in no path, and so nowhere to be found
    if "/" in program:
        return [program]
    places = [f"{place}/{program}" for place in os.get_exec_path(env)]
    return [path for path in places if os.path.exists(path)]
