"""Forks of a Python kernel, beside fork(2) alone in the same interpreter: one of ours, one bare."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ortet
from measure import Sample, milliseconds
from ortet.machines.kernels.kernel import Kernel
from session_plan import Plan

ROWS = ("kernel-fork", "kernel-forks", "kernel-private")
MIB = 1 << 20
SIZE = 80
_WARM = f"""
import os, time
resident = int(open("/proc/self/statm").read().split()[1]) * 4096
weights = bytearray(b"x" * (({SIZE} << 20) - resident))

def bare():
    '''From the call of fork(2) until the child has answered.'''
    reader, writer = os.pipe()
    began = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.write(writer, b"x")
        os._exit(0)
    os.read(reader, 1)
    took = time.perf_counter() - began
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)
    return took * 1000
"""


def all_rows(plan: Plan) -> Iterator[Sample]:
    work = plan.place / "kernel"
    work.mkdir()
    (work / "file").write_text("in every fork")
    with ortet.open(plan.place / "kernel-store") as hub:
        kernel = hub.workspace(work, engine="overlay").kernel()
        error = kernel.run(_WARM).error
        assert error is None, error
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(plan.counts.forks):
            made: list[Kernel] = []
            ours.append(milliseconds(lambda made=made: made.extend(kernel.fork(1))))  # type: ignore[misc]
            made[0].close()
            bare.append(float(kernel.run("bare()").value))
        note = f"{_resident(kernel) // MIB} MiB resident"
        yield Sample("kernel-fork", "ortet", ours, f"answers in an overlay of its own; {note}")
        yield Sample("kernel-fork", "fork(2) alone", bare, "answers on a pipe")
        yield from _many(kernel, 100)


def _many(kernel: Kernel, count: int) -> Iterator[Sample]:
    forks: list[Kernel] = []
    spent = milliseconds(partial(lambda: forks.extend(kernel.fork(count))))
    yield Sample("kernel-forks", "ortet", [spent / 1000], f"{count} at once")
    for fork in forks:
        fork.run("1 + 1")
    sizes = [_private(fork) / MIB for fork in forks]
    yield Sample("kernel-private", "ortet", sizes, "each, after it ran something")
    for fork in forks:
        fork.close()


def _host_pid(kernel: Kernel) -> int:
    lines = Path(f"/proc/self/fdinfo/{kernel.link.pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))


def _resident(kernel: Kernel) -> int:
    return int(Path(f"/proc/{_host_pid(kernel)}/statm").read_text().split()[1]) * 4096


def _private(kernel: Kernel) -> int:
    lines = Path(f"/proc/{_host_pid(kernel)}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
