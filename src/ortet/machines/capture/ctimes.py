"""How close two changes may lie and still leave one ctime: the margin of the racy-clean rule."""

from __future__ import annotations

import os
from pathlib import Path

TICK_NS = 20_000_000
"""The coarse clock of a kernel moves every 1 to 10 ms; twice that is safe."""
COARSE_NS = 2_000_000_000
"""File systems that count in seconds, and those that do not let us try."""

_TRIES = 8


def ctime_granularity_ns(root: Path) -> int:
    """Nanoseconds; 0 where the kernel gives each change after a stat a ctime of its own.

    Tried on a file without a name, so that nothing appears in the directory and its times stay.
    """
    try:
        fd = os.open(root, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        return COARSE_NS
    try:
        times = set()
        for number in range(_TRIES):
            os.pwrite(fd, b"%d" % number, 0)
            times.add(os.fstat(fd).st_ctime_ns)
    except OSError:
        return COARSE_NS
    finally:
        os.close(fd)
    if len(times) == _TRIES:
        return 0
    return COARSE_NS if all(time % 1_000_000_000 == 0 for time in times) else TICK_NS
