"""Named failpoints: `failpoint("seal.after-sync")` does nothing unless a test armed that name.

Only `ortet.config` reads settings from the environment, except ORTET_FAULT, which is read here.
The variable is read once, at the first failpoint. A test uses it to arm a fault in a process that
it starts.

- `NAME:kill` ends the process with SIGKILL.
- `NAME:nospace` raises the OSError of a full disk.
- A third part, `:N`, selects the N-th hit instead of the first.
"""

from __future__ import annotations

import errno
import os
import signal
from functools import cache

from ortet.errors import Invalid

FAULT_VARIABLE = "ORTET_FAULT"


class _Fault:
    """An armed failpoint that counts down to the hit that triggers."""

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
    """Parse `NAME:kill` or `NAME:nospace`, optionally followed by `:N`."""
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
    """Trigger the fault armed for `name`, if any."""
    fault = _armed()
    if fault is not None and fault.name == name:
        fault.hit()
