"""Makes a stopped process execute one system call, with ptrace(2)."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct

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
        at = (self._saved_registers[_RSP] - _SCRATCH_OFFSET) & ~15
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            there = os.pread(memory, len(data), at)
            os.pwrite(memory, data, at)
            try:
                number = self._call_syscall(_SYS_FCNTL, fd, fcntl.F_SETLK, at)
            finally:
                os.pwrite(memory, there, at)
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
                found = memory.read(end - start).find(_SYSCALL_INSTRUCTION)
            if found >= 0:
                return start + found
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
