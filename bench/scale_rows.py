"""The rows of the scale part: what is asked, and whether the samples say it was reached."""

from __future__ import annotations

from rows import Found, Judge, Row, below, p50
from session_rows import times

OURS, SAVER = "ortet", "LangGraph PostgresSaver"
STEP, BARE = "DBOS", "bare insert"
REMOTE, LOCAL = "ortet, durable=remote", "ortet, durable=local"
THREADS, SPREAD = "ortet, one process", "ortet, 4 processes"
EMPTY, FILLED = "ortet, empty store", "ortet, full store"
SIZES = (1, 8, 32)
"""Connections that rows are named by; a quick run has fewer under the same names."""

GRAPH = ("scale-turn", "scale-whole", "scale-size", "scale-get", "scale-update")
VERBS = ("scale-say", "scale-say-size", "scale-commit", "scale-fork", "scale-recall")
OPENED = ("scale-open", "scale-open-append", "scale-open-fork")
BYTES = (
    "scale-fill",
    "scale-event-bytes",
    "scale-session-bytes",
    "scale-commit-bytes",
    "scale-commit-objects",
    "scale-commit-rows",
)


def append(size: int) -> str:
    return f"scale-append-{size}"


def rate(size: int) -> str:
    return f"scale-rate-{size}"


def cpu(size: int) -> str:
    return f"scale-cpu-{size}"


def server_cpu(size: int) -> str:
    return f"scale-server-{size}"


def _grows(size: int) -> Judge:
    """More than with one connection, and no fewer than with the number before: a twentieth less
    is noise."""

    def judge(found: Found) -> bool | None:
        verdicts = []
        for system in (THREADS, SPREAD):
            one = p50(found, rate(SIZES[0]), THREADS)
            here = p50(found, rate(size), system)
            before = p50(found, rate(SIZES[SIZES.index(size) - 1]), system) or one
            if one is None or here is None or before is None:
                return None
            verdicts.append(here > one and here >= 0.95 * before)
        return all(verdicts)

    return judge


def _asked(size: int) -> tuple[str, Judge]:
    if size == SIZES[0]:
        return "", lambda _: None
    before = SIZES[SIZES.index(size) - 1]
    also = "" if before == SIZES[0] else f", no fewer than with {before}"
    return f"more than with {SIZES[0]}{also}", _grows(size)


ROWS = (
    Row(
        "scale-turn",
        "LangGraph: a turn of an agent, behind 500 turns",
        "ms",
        "≥ 3x less time than PostgresSaver",
        below("scale-turn", 3, SAVER),
    ),
    Row("scale-whole", "all 500 turns together", "s", ""),
    Row(
        "scale-size",
        "in PostgreSQL and S3 after 500 turns",
        "KB",
        "≥ 10x less than PostgresSaver",
        below("scale-size", 10, SAVER),
    ),
    Row("scale-get", "get of the latest checkpoint, behind 500 turns", "ms", ""),
    Row("scale-update", "fork from the middle of them (update_state)", "ms", ""),
    Row("scale-say", "a message said; a step recorded; a row inserted: durable", "ms", ""),
    Row("scale-say-size", "in the database after 500 of them", "KB", ""),
    Row("scale-commit", "commit behind a message", "ms", ""),
    Row("scale-fork", "fork behind 500 of them, mind only", "ms", ""),
    Row("scale-recall", "recall among 500 messages", "ms", ""),
    *(
        Row(append(size), f"a durable append, {size} connections at once", "ms", "")
        for size in SIZES
    ),
    *(
        Row(rate(size), f"appends with {size} connections", "a second", *_asked(size))
        for size in SIZES
    ),
    *(Row(cpu(size), f"CPU of the clients for each, {size} at once", "us", "") for size in SIZES),
    *(
        Row(server_cpu(size), f"CPU of PostgreSQL for each, {size} at once", "us", "")
        for size in SIZES
    ),
    Row(
        "scale-open",
        "opening a session of 100 events; full: among 20 000 sessions, 2 million events",
        "ms",
        "≤ 2x of an empty store",
        times("scale-open", 2, system=FILLED, peer=EMPTY),
    ),
    Row(
        "scale-open-append",
        "the same: append to it",
        "ms",
        "≤ 2x of an empty store",
        times("scale-open-append", 2, system=FILLED, peer=EMPTY),
    ),
    Row(
        "scale-open-fork",
        "the same: fork of it, mind only",
        "ms",
        "≤ 2x of an empty store",
        times("scale-open-fork", 2, system=FILLED, peer=EMPTY),
    ),
    Row("scale-fill", "loading the full store by COPY", "s", ""),
    Row("scale-event-bytes", "PostgreSQL, for each event of 400 bytes", "bytes", ""),
    Row("scale-session-bytes", "PostgreSQL, for each session beside its events", "bytes", ""),
    Row("scale-commit-bytes", "S3, for each commit of one message", "bytes", ""),
    Row("scale-commit-objects", "S3, objects for each such commit", "objects", ""),
    Row("scale-commit-rows", "PostgreSQL, for each such commit", "bytes", ""),
)
