"""The rows of the session part: what is asked, and whether the samples say it was reached."""

from __future__ import annotations

from rows import Found, Judge, Row, below, both, p50, within

SAVER = "LangGraph SqliteSaver"
DELTA = "LangGraph delta channel"
AGENTS = "OpenAI Agents SQLiteSession"


def times(row: str, factor: float, *, system: str = "ortet", peer: str) -> Judge:
    """At most so many times the peer's."""

    def judge(found: Found) -> bool | None:
        ours, theirs = p50(found, row, system), p50(found, row, peer)
        return None if ours is None or theirs is None else ours <= factor * theirs

    return judge


def at_least(row: str, limit: float, *, system: str) -> Judge:
    def judge(found: Found) -> bool | None:
        value = p50(found, row, system)
        return None if value is None else value >= limit

    return judge


def flat(found: Found) -> bool | None:
    """The last turns may cost a fifth more than the first: noise, not growth."""
    first = p50(found, "turn-flat", "ortet, first")
    last = p50(found, "turn-flat", "ortet, last")
    return None if first is None or last is None else last <= first * 1.2


ROWS = (
    Row(
        "append",
        "durable append, every event, synchronous=FULL",
        "ms",
        "p50 ≤ 1.5x of a bare apsw insert",
        times("append", 1.5, peer="bare"),
    ),
    Row("append-normal", "the same with synchronous=NORMAL", "ms", ""),
    Row(
        "group",
        "append with group commit, one session",
        "events/s",
        "≥ 20 000",
        at_least("group", 20_000, system="ortet, 1 thread"),
    ),
    Row(
        "turn-half",
        "a turn of two messages saved durably, the first half of all turns (500)",
        "ms",
        "≥ 20x faster than SqliteSaver",
        below("turn-half", 20, SAVER),
    ),
    Row(
        "turn-size-half",
        "on disk after half of the turns (500)",
        "KB",
        "≥ 200x smaller than SqliteSaver; smaller than the others",
        both(below("turn-size-half", 200, SAVER), below("turn-size-half", 1, DELTA, AGENTS)),
    ),
    Row("turn", "a turn, of all turns (1 000)", "ms", ""),
    Row(
        "turn-size",
        "on disk after all turns (1 000)",
        "KB",
        "smaller than the others",
        below("turn-size", 1, SAVER, DELTA, AGENTS),
    ),
    Row(
        "turn-trim",
        "on disk after a trim, over the bytes said",
        "x",
        "≤ 2",
        within("turn-trim", 2),
    ),
    Row("turn-flat", "the first turns and the last", "ms", "flat", flat),
    Row(
        "mind-fork",
        "fork of a session, mind only, nothing uncommitted",
        "ms",
        "p50 ≤ 1.5x of a bare apsw insert",
        times("mind-fork", 1.5, peer="bare"),
    ),
    Row("mind-swarm", "fork(1000), mind only", "s", "< 1", within("mind-swarm", 1)),
    Row(
        "swarm-task",
        "a swarm of 64 trivial tasks from one commit: each, beyond its own work",
        "ms",
        "≤ 20",
        within("swarm-task", 20, system="ortet, a function"),
    ),
    Row(
        "kernel-fork",
        "fork of a Python kernel of 80 MiB, until the copy answers in its own overlay",
        "ms",
        "p50 ≤ 4",
        within("kernel-fork", 4),
    ),
    Row("kernel-forks", "100 forks of it at once", "s", "< 1", within("kernel-forks", 1)),
    Row(
        "kernel-private",
        "memory of each alone",
        "MiB",
        "< 3",
        within("kernel-private", 3),
    ),
    Row("mind-bytes", "each fork on disk", "bytes", "< 4096", within("mind-bytes", 4096)),
    Row(
        "mind-open",
        "opening a session of 10 000 events to its last message",
        "ms",
        "≤ 20",
        within("mind-open", 20, system="ortet, new hub"),
    ),
    Row("step", "a recorded step", "ms", "faster than DBOS", below("step", 1, "DBOS")),
    Row("step-size", "on disk after 1 000 of them", "KB", ""),
)
