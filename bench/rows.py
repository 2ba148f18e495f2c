"""The rows of the table: what is asked of Ortet, and whether the samples say it was reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from measure import Sample

Found = Sequence[Sample]
Judge = Callable[[Found], bool | None]
"""None when something it needs was not measured."""


class Row(msgspec.Struct, frozen=True):
    key: str
    title: str
    unit: str
    asked: str
    verdict: Judge = lambda _: None
    listed: bool = True  # else it is shown in a table of its part's own


def p50(found: Found, row: str, system: str) -> float | None:
    """Of the system with this name, or of the first whose name begins so."""
    mine = [sample for sample in found if sample.row == row]
    exact = (sample for sample in mine if sample.system == system)
    alike = (sample for sample in mine if sample.system.startswith(system))
    sample = next(exact, None) or next(alike, None)
    return sample.p50 if sample else None


def within(row: str, limit: float, *, system: str = "ortet") -> Judge:
    def judge(found: Found) -> bool | None:
        value = p50(found, row, system)
        return None if value is None else value <= limit

    return judge


def below(row: str, factor: float, *peers: str) -> Judge:
    """At least `factor` times below every named peer."""

    def judge(found: Found) -> bool | None:
        ours = p50(found, row, "ortet")
        theirs = [p50(found, row, peer) for peer in peers]
        if ours is None or None in theirs:
            return None
        return all(ours * factor <= value for value in theirs if value is not None)

    return judge


def both(*judges: Judge) -> Judge:
    def judge(found: Found) -> bool | None:
        verdicts = [one(found) for one in judges]
        return None if None in verdicts else all(verdicts)

    return judge


def scan_beats_git(found: Found) -> bool | None:
    ours = p50(found, "inplace", "ortet folder, scan")
    theirs = p50(found, "commit-1", "git, untracked cache")
    return None if ours is None or theirs is None else ours < theirs


def flat(found: Found) -> bool | None:
    """The last thousand may cost a tenth more than the first: noise, not growth."""
    first, last = p50(found, "chain", "ortet, first"), p50(found, "chain", "ortet, last")
    return None if first is None or last is None else last <= first * 1.1


ROWS = (
    Row(
        "commit-1",
        "commit after 1 changed file, overlay, 100 files in the upper, durable",
        "ms",
        "p50 ≤ 1; ≥ 100x faster than git",
        both(within("commit-1", 1), below("commit-1", 100, "git")),
    ),
    Row(
        "inplace",
        "the same in place (folder engine)",
        "ms",
        "watcher p50 ≤ 5; scan faster than git with its untracked cache",
        both(within("inplace", 5, system="ortet folder, watcher"), scan_beats_git),
    ),
    Row("command", "`ortet commit` as a command, wall", "ms", "≤ 250", within("command", 250)),
    Row(
        "command-agent",
        "the same with the host agent",
        "ms",
        "≤ 120",
        within("command-agent", 120),
    ),
    Row("version", "`ortet --version`, wall", "ms", "≤ 150", within("version", 150)),
    Row("commit-40", "40 changed files, overlay", "ms", "≤ 5", within("commit-40", 5)),
    Row(
        "page",
        "1 page changed in the large SQLite file, overlay",
        "ms",
        "≥ 20x faster than git",
        below("page", 20, "git"),
    ),
    Row("page-growth", "the store grows by", "KB", "< 300", within("page-growth", 300)),
    Row(
        "first",
        "first commit",
        "s",
        "≤ half of restic and of git",
        below("first", 2, "restic", "git"),
    ),
    Row("first-size", "store after it", "MB", "≤ restic's", below("first-size", 1, "restic")),
    Row("first-rss", "largest resident size in it", "MB", "< 300", within("first-rss", 300)),
    Row("noop", "no-op commit, overlay", "ms", "≤ 0.5", within("noop", 0.5)),
    Row("open", "open a directory for the first time (overlay) until a command answers", "s", ""),
    Row("fork", "fork (overlay) until a command answers", "ms", "p50 ≤ 15", within("fork", 15)),
    Row("fork-100", "100 forks, all answered", "s", "≤ 2", within("fork-100", 2)),
    Row("fork-100-disk", "disk for 100 forks", "MB", "< 10", within("fork-100-disk", 10)),
    Row(
        "restore",
        "restore of everything",
        "s",
        "faster than git checkout and restic restore",
        below("restore", 1, "git", "restic"),
    ),
    Row("chain", "many commits in a row, each after 1 changed file", "ms", "flat", flat),
    Row("chain-growth", "the store grows by, per such commit", "KB", ""),
)
