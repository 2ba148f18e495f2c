"""Measures the granularity of ctime: the margin within which a file counts as racy.

This is a module of its own because it tests the file system, while all other modules only use the
result.
"""

from __future__ import annotations

import os
from pathlib import Path

TICK_NS = 20_000_000
"""The coarse clock of a kernel ticks every 1 to 10 ms; twice the longest tick is safe."""
COARSE_NS = 2_000_000_000
"""The granularity of file systems with whole seconds, and of those that cannot be tested."""

_TRIES = 8


def ctime_granularity_ns(root: Path) -> int:
    """Return the ctime granularity below `root` in nanoseconds.

    Returns 0 if the kernel gives each change after a stat a new ctime. The test uses a file without
    a name, so the directory and its times do not change.
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
