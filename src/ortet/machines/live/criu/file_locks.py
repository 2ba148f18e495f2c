"""Takes file locks again that CRIU loses during a restore.

A fcntl(2) lock ends when its process closes any descriptor of that file. CRIU takes the locks, maps
the files, and then closes the descriptors that it used for mapping. So the locks of a file that is
also mapped (SQLite's -shm, LMDB) are lost, and the process does not know. Therefore all processes
are stopped before CRIU lets them run, and each is made to take its locks again.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ortet.errors import Conflict
from ortet.machines.live.criu.protobuf import image_entries, parse_message

# Makes a stopped process execute one system call, with ptrace(2).

_PTRACE_SINGLESTEP, _PTRACE_GETREGS, _PTRACE_SETREGS, _PTRACE_DETACH = 9, 12, 13, 17
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_GETSIGMASK, _PTRACE_SETSIGMASK = (
    0x4206,
    0x4207,
    0x420A,
    0x420B,
)
_WALL = 0x40000000
_REGISTER_COUNT = 27  # registers of x86-64, eight bytes each
_RAX, _RDX, _RSI, _RDI, _ORIG_RAX, _RIP, _RSP = 10, 12, 13, 14, 15, 16, 19
_SYS_FCNTL = 72
_SYSCALL_INSTRUCTION = b"\x0f\x05"
_SCRATCH_OFFSET = 512  # below the stack, beyond the red zone: unused memory
_MAX_STEPS = 100  # stops for other reasons that are skipped
_FLOCK = struct.Struct("hhxxxxqqixxxx")


class TraceError(Exception):
    """The system call could not be executed; the message says why."""


class Tracer:
    """Holds one process while the context is open, and restores its state afterwards."""

    def __init__(self, pid: int) -> None:
        if platform.machine() != "x86_64":
            raise TraceError(f"not known how on {platform.machine()}")
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long

    def __enter__(self) -> Tracer:
        self._ptrace(_PTRACE_SEIZE)
        try:
            self._ptrace(_PTRACE_INTERRUPT)
            self._wait()
            self._saved_registers = self._read_registers()
            self._saved_signal_mask = ctypes.create_string_buffer(8)
            self._ptrace(_PTRACE_GETSIGMASK, 8, self._saved_signal_mask)
            # A pending signal must not be handled in between.
            self._ptrace(_PTRACE_SETSIGMASK, 8, ctypes.create_string_buffer(b"\xff" * 8, 8))
            self._syscall_address = self._find_syscall_address()
        except BaseException:
            self._ptrace(_PTRACE_DETACH)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._ptrace(_PTRACE_SETREGS, 0, self._saved_registers)
        self._ptrace(_PTRACE_SETSIGMASK, 8, self._saved_signal_mask)
        self._ptrace(_PTRACE_DETACH)

    def lock(self, fd: int, *, write: bool, first: int, last: int | None) -> None:
        """Make the process take a lock on one of its descriptors, without waiting."""
        length = 0 if last is None else last - first + 1
        kind = fcntl.F_WRLCK if write else fcntl.F_RDLCK
        data = _FLOCK.pack(kind, os.SEEK_SET, first, length, 0)
        address = (self._saved_registers[_RSP] - _SCRATCH_OFFSET) & ~15
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            there = os.pread(memory, len(data), address)
            os.pwrite(memory, data, address)
            try:
                number = self._call_syscall(_SYS_FCNTL, fd, fcntl.F_SETLK, address)
            finally:
                os.pwrite(memory, there, address)
        finally:
            os.close(memory)
        if number < 0:
            raise TraceError(f"its descriptor {fd}: {os.strerror(-number)}")

    def _call_syscall(self, number: int, first: int, second: int, third: int) -> int:
        registers = type(self._saved_registers)(*self._saved_registers)
        registers[_RAX], registers[_RDI], registers[_RSI], registers[_RDX] = (
            number,
            first,
            second,
            third,
        )
        registers[_RIP] = self._syscall_address
        registers[_ORIG_RAX] = (1 << 64) - 1  # not in a system call that could be restarted
        self._ptrace(_PTRACE_SETREGS, 0, registers)
        for _ in range(_MAX_STEPS):
            self._ptrace(_PTRACE_SINGLESTEP)
            self._wait()
            now = self._read_registers()
            if now[_RIP] == self._syscall_address + len(_SYSCALL_INSTRUCTION):
                return ctypes.c_long(now[_RAX]).value
        raise TraceError(f"process {self._pid} did not do as told")

    def _find_syscall_address(self) -> int:
        """Return the address of a system call instruction in the process: the vDSO has one."""
        with open(f"/proc/{self._pid}/maps", encoding="utf-8", errors="replace") as maps:
            places = [line.split()[0] for line in maps if line.rstrip().endswith("[vdso]")]
        for place in places:
            start, end = (int(part, 16) for part in place.split("-"))
            with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                offset = memory.read(end - start).find(_SYSCALL_INSTRUCTION)
            if offset >= 0:
                return start + offset
        raise TraceError(f"process {self._pid} has no page of the kernel's")

    def _read_registers(self) -> ctypes.Array[ctypes.c_ulong]:
        registers = (ctypes.c_ulong * _REGISTER_COUNT)()
        self._ptrace(_PTRACE_GETREGS, 0, registers)
        return registers

    def _wait(self) -> None:
        _, status = os.waitpid(self._pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise TraceError(f"process {self._pid} has ended")

    def _ptrace(self, request: int, address: int = 0, data: object = None) -> None:
        if self._libc.ptrace(request, self._pid, address, data) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)} (ptrace)")


_LOCKS_IMAGE = "filelocks.img"
_POSIX = 1
_STOPPED = 3  # state of a stopped process in CRIU's images
_TASK, _STATE = 3, 1  # of a core image; of its task entry
_END_OF_FILE = "EOF"


class PosixLock(NamedTuple):
    """A fcntl(2) lock. `last` is its last byte, or None for the end of the file."""

    fd: int
    write: bool
    first: int
    last: int | None


class LockRestorer:
    """The locks of one dump.

    Call `stop_processes` before the processes run, and `reacquire` after CRIU has ended.
    """

    def __init__(self, images: Path) -> None:
        self._images = images
        self._dumped_locks = _read_dumped_locks(images)
        self._stopped_pids: list[int] = []
        self._missing_locks: dict[int, list[PosixLock]] = {}

    @property
    def is_needed(self) -> bool:
        """True if the dump has any fcntl(2) locks."""
        return bool(self._dumped_locks)

    def stop_processes(self, init_pid: int) -> None:
        """Stop the processes of a machine if any lock is missing.

        A process that waits for such a lock must not get it now. A signal sent while CRIU holds a
        process stops it before its first instruction.
        """
        inside = dict(_machine_processes(init_pid))
        for number, locks in self._dumped_locks.items():
            pid = inside.get(number, 0)
            has = set(_locks_of(pid))
            missing = [lock for lock in locks if lock not in has]
            if missing:
                self._missing_locks[pid] = missing
        if self._missing_locks:
            # Processes that were stopped at the dump stay stopped.
            self._stopped_pids = [
                p for n, p in inside.items() if p != init_pid and not self._was_stopped(n)
            ]
            for pid in self._stopped_pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def reacquire(self) -> None:
        """Make each process take its missing locks, and let all processes continue.

        Raises Conflict("cannot_restore") if a lock cannot be taken.
        """
        try:
            for pid, locks in self._missing_locks.items():
                with Tracer(pid) as tracer:
                    for lock in locks:
                        tracer.lock(lock.fd, write=lock.write, first=lock.first, last=lock.last)
        except (OSError, TraceError) as error:
            raise Conflict(
                "cannot_restore",
                "a process holds a lock on a file that it has mapped, which CRIU loses, and it "
                f"could not be taken again ({error}): restore the files alone, only={{'files'}}",
            ) from error
        finally:
            self._missing_locks = {}
            # Children first: a shell must not see its children stopped.
            for pid in sorted(self._stopped_pids, reverse=True):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _was_stopped(self, inner_pid: int) -> bool:
        for core in image_entries(self._images / f"core-{inner_pid}.img"):
            for task in parse_message(core).get(_TASK, ()):
                return isinstance(task, bytes) and parse_message(task)[_STATE][0] == _STOPPED
        return False


def _read_dumped_locks(images: Path) -> dict[int, list[PosixLock]]:
    """Return the locks at the time of the dump, by pid inside the machine."""
    wanted: dict[int, list[PosixLock]] = {}
    for entry in image_entries(images / _LOCKS_IMAGE):
        fields = parse_message(entry)
        flag, kind, pid, fd, first, length = (int(fields.get(n, [0])[0]) for n in range(1, 7))
        if flag & _POSIX:
            last = first + length - 1 if length else None
            wanted.setdefault(pid, []).append(PosixLock(fd, bool(kind), first, last))
    return wanted


def _machine_processes(init_pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid inside, pid on the host) of the processes of a machine."""
    space = os.readlink(f"/proc/{init_pid}/ns/pid")
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == space:
                for line in Path(f"/proc/{name}/status").read_text().splitlines():
                    if line.startswith("NSpid:"):
                        yield int(line.split()[-1]), int(name)


def _locks_of(pid: int) -> Iterator[PosixLock]:
    with suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fdinfo"):
            for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
                fields = line.split()
                if fields[0] == "lock:" and fields[2] == "POSIX":
                    first, last = fields[-2:]
                    write = fields[4] == "WRITE"
                    yield PosixLock(
                        int(fd), write, int(first), None if last == _END_OF_FILE else int(last)
                    )
