"""Named fault points: `reach("seal.after-sync")` does nothing unless a test armed that very name.

The library does not read the environment, with this one exception: ORTET_FAULT, looked at once, at
the first point reached. It is how a test arms a fault in a process it is about to kill. `name:kill`
ends the process with SIGKILL, `name:nospace` raises the OSError of a full disk; a third part N
picks the N-th time (else the first).
"""

from __future__ import annotations

import errno
import os
import signal
from functools import cache

from ortet.errors import Invalid

FAULT_VARIABLE = "ORTET_FAULT"


class _Fault:
    """One armed point, counting down to the hit that counts."""

    def __init__(self, name: str, action: str, nth: int) -> None:
        self.name = name
        self._action = action
        self._remaining_hits = nth

    def hit(self) -> None:
        self._remaining_hits -= 1
        if self._remaining_hits != 0:
            return
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def parse(text: str) -> _Fault:
    """NAME:kill or NAME:nospace, then optionally :N."""
    parts = text.split(":")
    count = parts[2] if len(parts) == 3 else "1"
    if len(parts) not in (2, 3) or parts[1] not in ("kill", "nospace") or not count.isdigit():
        raise Invalid(
            "bad_fault",
            f"{FAULT_VARIABLE}={text!r}: write NAME:kill or NAME:nospace, then :N if needed",
        )
    return _Fault(parts[0], parts[1], int(count))


@cache
def _armed() -> _Fault | None:
    text = os.environ.get(FAULT_VARIABLE)
    return parse(text) if text else None


def failpoint(name: str) -> None:
    """Say that execution has come to the point `name`."""
    fault = _armed()
    if fault is not None and fault.name == name:
        fault.hit()
