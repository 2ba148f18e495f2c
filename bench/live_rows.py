"""The rows of the live part: what is asked, and whether the samples say it was reached."""

from __future__ import annotations

from rows import Row, both, within
from session_rows import times

RAW, FORK = "raw CRIU", "fork(2)"

ROWS = (
    Row(
        "live-fork",
        "fork of a small machine (shell + python), until the copy answers",
        "ms",
        "≤ 1.5x of raw CRIU dump + copy + restore; p50 ≤ 60",
        both(times("live-fork", 1.5, peer=RAW), within("live-fork", 60)),
    ),
    Row(
        "live-tcp",
        "fork of 4 processes with an open TCP pair, until the copy's connection answers",
        "ms",
        "p50 ≤ 100",
        within("live-tcp", 100),
    ),
    Row("live-frozen", "parent frozen, small machine", "ms", "≤ 25", within("live-frozen", 25)),
    Row(
        "live-commit",
        "commit of a small live machine, which goes on",
        "ms",
        "≤ 1.5x of raw CRIU dump + storing",
        times("live-commit", 1.5, peer=RAW),
    ),
    Row(
        "live-commit-512",
        "the same with 512 MiB of memory, all new",
        "ms",
        "≤ 1.3x of raw CRIU dump + storing",
        times("live-commit-512", 1.3, peer=RAW),
    ),
    Row(
        "live-again-512",
        "a second commit of it, idle",
        "ms",
        "",
    ),
    Row(
        "live-idle-512",
        "new bytes of that, of its memory",
        "%",
        "< 2",
        within("live-idle-512", 2),
    ),
    Row(
        "live-fork-512",
        "fork of it, until the copy answers",
        "ms",
        "≤ 1.3x of raw CRIU dump + copy + restore",
        times("live-fork-512", 1.3, peer=RAW),
    ),
    Row("live-huge", "4 GiB machine: commit, and restore until it answers", "s", "works"),
    Row("live-huge-rss", "largest resident size of the hub while it does", "MB", ""),
)
