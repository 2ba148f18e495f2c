"""Makes a process that stands still do one system call, with ptrace(2)."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct

_STEP, _GET, _SET, _DETACH = 9, 12, 13, 17
_SEIZE, _INTERRUPT, _GET_MASK, _SET_MASK = 0x4206, 0x4207, 0x420A, 0x420B
_WALL = 0x40000000
_REGISTERS = 27  # of x86-64, eight bytes each
_RAX, _RDX, _RSI, _RDI, _ORIG, _RIP, _RSP = 10, 12, 13, 14, 15, 16, 19
_FCNTL = 72
_SYSCALL = b"\x0f\x05"
_BELOW = 512  # bytes under the stack's end that nobody uses: more than the red zone
_STEPS = 100  # stops on the way that are of no concern
_FLOCK = struct.Struct("hhxxxxqqixxxx")


class Refusal(Exception):
    """It could not be done, and why."""


class Tracer:
    """Holds one process while it is open; afterwards that is as it was before."""

    def __init__(self, pid: int) -> None:
        if platform.machine() != "x86_64":
            raise Refusal(f"not known how on {platform.machine()}")
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._libc.ptrace.restype = ctypes.c_long

    def __enter__(self) -> Tracer:
        self._ask(_SEIZE)
        try:
            self._ask(_INTERRUPT)
            self._wait()
            self._before = self._registers()
            self._mask = ctypes.create_string_buffer(8)
            self._ask(_GET_MASK, 8, self._mask)
            # a signal that waits must not be handled in between
            self._ask(_SET_MASK, 8, ctypes.create_string_buffer(b"\xff" * 8, 8))
            self._gate = self._find_gate()
        except BaseException:
            self._ask(_DETACH)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._ask(_SET, 0, self._before)
        self._ask(_SET_MASK, 8, self._mask)
        self._ask(_DETACH)

    def lock(self, fd: int, *, write: bool, first: int, last: int | None) -> None:
        """Have it take a lock on one of its own descriptors, without waiting."""
        length = 0 if last is None else last - first + 1
        kind = fcntl.F_WRLCK if write else fcntl.F_RDLCK
        data = _FLOCK.pack(kind, os.SEEK_SET, first, length, 0)
        at = (self._before[_RSP] - _BELOW) & ~15
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            there = os.pread(memory, len(data), at)
            os.pwrite(memory, data, at)
            try:
                number = self._call(_FCNTL, fd, fcntl.F_SETLK, at)
            finally:
                os.pwrite(memory, there, at)
        finally:
            os.close(memory)
        if number < 0:
            raise Refusal(f"its descriptor {fd}: {os.strerror(-number)}")

    def _call(self, number: int, one: int, two: int, three: int) -> int:
        registers = type(self._before)(*self._before)
        registers[_RAX], registers[_RDI], registers[_RSI], registers[_RDX] = number, one, two, three
        registers[_RIP] = self._gate
        registers[_ORIG] = (1 << 64) - 1  # it is in no system call that could be restarted
        self._ask(_SET, 0, registers)
        for _ in range(_STEPS):
            self._ask(_STEP)
            self._wait()
            now = self._registers()
            if now[_RIP] == self._gate + len(_SYSCALL):
                return ctypes.c_long(now[_RAX]).value
        raise Refusal(f"process {self._pid} did not do as told")

    def _find_gate(self) -> int:
        """Where in its memory the instruction for a system call is: the kernel's own page has
        one."""
        with open(f"/proc/{self._pid}/maps", encoding="utf-8", errors="replace") as maps:
            places = [line.split()[0] for line in maps if line.rstrip().endswith("[vdso]")]
        for place in places:
            start, end = (int(part, 16) for part in place.split("-"))
            with open(f"/proc/{self._pid}/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                found = memory.read(end - start).find(_SYSCALL)
            if found >= 0:
                return start + found
        raise Refusal(f"process {self._pid} has no page of the kernel's")

    def _registers(self) -> ctypes.Array[ctypes.c_ulong]:
        registers = (ctypes.c_ulong * _REGISTERS)()
        self._ask(_GET, 0, registers)
        return registers

    def _wait(self) -> None:
        _, status = os.waitpid(self._pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise Refusal(f"process {self._pid} has ended")

    def _ask(self, what: int, address: int = 0, data: object = None) -> None:
        if self._libc.ptrace(what, self._pid, address, data) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{os.strerror(number)} (ptrace)")
