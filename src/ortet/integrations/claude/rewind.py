"""Turns of a transcript, and the way back to one: conversation and files together."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec

from ortet.errors import Invalid, NotFound
from ortet.history.records import Commit
from ortet.ids import Oid, from_hex, to_hex
from ortet.integrations.claude.entries import Entry, calls_in, is_prompt, prompt_of, results_in
from ortet.integrations.claude.listing import Told, read
from ortet.journal.conversation.text import one_line
from ortet.machines.base import Report
from ortet.sessions.history.shared_directory import (
    commits_around,
    commits_of,
    restore_with,
    rewind_with,
)
from ortet.sessions.reader import View
from ortet.sessions.session import Session
from ortet.workspaces.workspace import Workspace

_COMMIT = re.compile(r"[0-9a-f]{64}")
_SHOWN = 200
FIRST = "before the first turn"
"""The message of a commit with the files as the directory's last commit has them."""
RESUMED = "before the next turn"
"""The message of a commit that is made when a transcript is read, to go on with it."""


class Turn(msgspec.Struct, frozen=True):
    """What a person asked for. `uuid` is its message's, `commit` holds conversation and files as
    they were before it, "" where that is not known."""

    uuid: str
    text: str
    commit: str = ""


class Rewound(msgspec.Struct, frozen=True):
    """Where a transcript went back to. `entries` are left of it; `was` is the commit to give to
    `rewind` to go forth again. `exact`: the files are those of that very message; else they are of
    the commit nearest to it, and a tool was at work in between."""

    session_id: str
    entries: int
    was: str
    files: Report
    exact: bool = True


class _Point(NamedTuple):
    seq: int
    of: Oid | None
    exact: bool


def turns_of(view: View) -> list[Turn]:
    told = read(view)
    found, commits = [], list(commits_of(view))
    for seq, entry in told.lines if told else ():
        if is_prompt(entry):
            counts = _not_after(entry)
            before = commits_around(view, seq - 1, among=commits, counts=counts).before
            text = one_line(prompt_of(entry), _SHOWN)
            commit = to_hex(before[0]) if before else ""
            found.append(Turn(str(entry.get("uuid", "")), text, commit))
    return found


def rewind(session: Session, files: Workspace | None, to: str | int) -> Rewound:
    """Of a transcript: to behind the message of this uuid, to before the last n turns, or to a
    commit of it."""
    told = read(session)
    if told is None:
        raise NotFound("no_session", f"{session.name!r} is no transcript: nothing can be rewound")
    if isinstance(to, str) and _COMMIT.fullmatch(to):
        was, report = restore_with(session, files, from_hex(to))
        exact = True
    else:
        point = _point(session, told, _seq(told, to))
        was, report = rewind_with(session, files, point.seq, point.of)
        exact = point.exact
    left = read(session)
    entries = len(left.lines) if left else 0
    return Rewound(told.key["session_id"], entries, was.oid, report, exact)


def seq_of(told: Told, uuid: str) -> int:
    """The event of a message."""
    for seq, entry in told.lines:
        if entry.get("uuid") == uuid:
            return seq
    raise NotFound(
        "no_message", f"no message of this transcript has the uuid {uuid!r}: turns() lists some"
    )


def _seq(told: Told, to: str | int) -> int:
    if isinstance(to, str):
        return seq_of(told, to)
    if isinstance(to, bool) or not isinstance(to, int) or to < 1:
        raise Invalid("bad_rewind", f"to={to!r}: give a message's uuid, or how many turns to undo")
    prompts = [at for at, (_, entry) in enumerate(told.lines) if is_prompt(entry)]
    if len(prompts) < to:
        raise NotFound(
            "no_turn", f"turns that can be undone: {len(prompts)}; give a number up to that"
        )
    at = prompts[-to]
    while at and told.lines[at - 1][1].get("type") == "queue-operation":  # how it came in
        at -= 1
    return told.lines[at][0] - 1


def _time(entry: Entry) -> float | None:
    """When a line was written, in ns since 1970, as it says."""
    try:
        return datetime.fromisoformat(str(entry.get("timestamp"))).timestamp() * 1e9
    except (ValueError, OverflowError):
        return None


def _not_after(entry: Entry) -> Callable[[Commit], bool]:
    """Which commits show the files of before a line. One that was made when the transcript was read
    for a resume, and does not know that line, may be of a reader's, while the turn went on."""
    when = _time(entry)
    return lambda commit: commit.message != RESUMED or when is None or commit.time <= when


def _point(session: Session, told: Told, seq: int) -> _Point:
    """Only tools change files, so that a commit is as good as another when no tool did anything
    between it and the message."""
    following = next((entry for at, entry in told.lines if at > seq), {})
    before, after = commits_around(session, seq, counts=_not_after(following))
    if before is not None and not _worked(told, before[1], seq, results_in):
        return _Point(seq, before[0], exact=_is_settled(session, told, before))
    high = after[1] if after else session.mind.core.events
    if not _worked(told, seq, high, results_in):
        exact = not _worked(told, seq, high, calls_in)
        settled = after is None or _is_settled(session, told, after)
        return _Point(seq, after[0] if after else None, exact=exact and settled)
    return _Point(seq, before[0] if before else None, exact=False)


def _worked(told: Told, low: int, high: int, what: Callable[[Entry], set[str]]) -> bool:
    return any(low < at <= high and what(entry) for at, entry in told.lines)


def _is_settled(session: Session, told: Told, commit: tuple[Oid, int]) -> bool:
    """Whether no tool was at work when a commit was made: none that it knows of, and none that was
    called before the commit could be made, and is told of after it."""
    oid, end = commit
    calling: set[str] = set()
    called: Entry = {}
    for at, entry in told.lines:
        if at > end and (called or not calls_in(entry)):
            continue
        if at > end:
            called = entry
        else:
            calling = set() if is_prompt(entry) else (calling | calls_in(entry)) - results_in(entry)
    when, made = _time(called), session.hub.history.read(oid)
    in_time = when is None or made.time <= when or made.message == FIRST
    return not calling and in_time
