"""Lists the turns of a transcript and rewinds conversation and files together."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec

from ortet.errors import Invalid, NotFound
from ortet.history.records import Commit
from ortet.ids import Oid, from_hex, to_hex
from ortet.integrations.claude.transcript import (
    LoadedTranscript,
    TranscriptEntry,
    calls_in,
    is_prompt,
    prompt_of,
    read_transcript,
    results_in,
)
from ortet.journal.conversation.text import one_line
from ortet.machines.base import Report
from ortet.sessions.history.shared_directory import (
    commits_around,
    commits_of,
    restore_with_files,
    rewind_with_files,
)
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.workspaces.workspace import Workspace

_COMMIT = re.compile(r"[0-9a-f]{64}")
_PREVIEW_CHARS = 200
FIRST_TURN_MESSAGE = "before the first turn"
"""Message of the commit before the first turn, with the files of the directory's last commit."""
RESUME_MESSAGE = "before the next turn"
"""Message of a commit made when a transcript is loaded to resume it."""


class Turn(msgspec.Struct, frozen=True):
    """A request of a person.

    `uuid` is the id of its message. `commit` has conversation and files as they were before the
    request, or is "" if unknown.
    """

    uuid: str
    text: str
    commit: str = ""


class Rewound(msgspec.Struct, frozen=True):
    """Result of a rewind.

    `entries` is the number of lines that remain. Pass the commit `was` to `rewind` to undo the
    rewind. `exact` is True if the files are exactly those at the message. Otherwise the files are
    from the nearest commit, and a tool ran in between.
    """

    session_id: str
    entries: int
    was: str
    files: Report
    exact: bool = True


class _RewindPoint(NamedTuple):
    seq: int
    commit: Oid | None
    exact: bool


def turns_of(view: SessionReader) -> list[Turn]:
    transcript = read_transcript(view)
    turns, commits = [], list(commits_of(view))
    for seq, entry in transcript.lines if transcript else ():
        if is_prompt(entry):
            counts = _made_before(entry)
            before = commits_around(view, seq - 1, among=commits, counts=counts).before
            text = one_line(prompt_of(entry), _PREVIEW_CHARS)
            commit = to_hex(before[0]) if before else ""
            turns.append(Turn(str(entry.get("uuid", "")), text, commit))
    return turns


def rewind_transcript(session: Session, files: Workspace | None, to: str | int) -> Rewound:
    """Rewind to after the message of a uuid, to before the last n turns, or to a commit."""
    transcript = read_transcript(session)
    if transcript is None:
        raise NotFound("no_session", f"{session.name!r} is no transcript: nothing can be rewound")
    if isinstance(to, str) and _COMMIT.fullmatch(to):
        was, report = restore_with_files(session, files, from_hex(to))
        exact = True
    else:
        point = _point(session, transcript, _seq(transcript, to))
        was, report = rewind_with_files(session, files, point.seq, point.commit)
        exact = point.exact
    left = read_transcript(session)
    entries = len(left.lines) if left else 0
    return Rewound(transcript.key["session_id"], entries, was.oid, report, exact)


def seq_of(transcript: LoadedTranscript, uuid: str) -> int:
    """Return the event number of a message."""
    for seq, entry in transcript.lines:
        if entry.get("uuid") == uuid:
            return seq
    raise NotFound(
        "no_message", f"no message of this transcript has the uuid {uuid!r}: turns() lists some"
    )


def _seq(transcript: LoadedTranscript, to: str | int) -> int:
    if isinstance(to, str):
        return seq_of(transcript, to)
    if isinstance(to, bool) or not isinstance(to, int) or to < 1:
        raise Invalid("bad_rewind", f"to={to!r}: give a message's uuid, or how many turns to undo")
    prompts = [at for at, (_, entry) in enumerate(transcript.lines) if is_prompt(entry)]
    if len(prompts) < to:
        raise NotFound(
            "no_turn", f"turns that can be undone: {len(prompts)}; give a number up to that"
        )
    at = prompts[-to]
    while at and transcript.lines[at - 1][1].get("type") == "queue-operation":
        # queued input that led to the prompt
        at -= 1
    return transcript.lines[at][0] - 1


def _time(entry: TranscriptEntry) -> float | None:
    """Return the line's own timestamp in nanoseconds since 1970, or None."""
    try:
        return datetime.fromisoformat(str(entry.get("timestamp"))).timestamp() * 1e9
    except (ValueError, OverflowError):
        return None


def _made_before(entry: TranscriptEntry) -> Callable[[Commit], bool]:
    """Return a filter for commits that show the files as they were before a line.

    A commit that was made on resume and is newer than the line may come from another reader while
    the turn was running.
    """
    when = _time(entry)
    return lambda commit: commit.message != RESUME_MESSAGE or when is None or commit.time <= when


def _point(session: Session, transcript: LoadedTranscript, seq: int) -> _RewindPoint:
    """Choose the commit whose files belong to event `seq`.

    Only tools change files. So a commit is exact if no tool was active between the commit and the
    event.
    """
    following = next((entry for at, entry in transcript.lines if at > seq), {})
    before, after = commits_around(session, seq, counts=_made_before(following))
    if before is not None and not _has_tool_activity(transcript, before[1], seq, results_in):
        return _RewindPoint(seq, before[0], exact=_is_tool_idle(session, transcript, before))
    high = after[1] if after else session.internals.state.core.events
    if not _has_tool_activity(transcript, seq, high, results_in):
        exact = not _has_tool_activity(transcript, seq, high, calls_in)
        settled = after is None or _is_tool_idle(session, transcript, after)
        return _RewindPoint(seq, after[0] if after else None, exact=exact and settled)
    return _RewindPoint(seq, before[0] if before else None, exact=False)


def _has_tool_activity(
    transcript: LoadedTranscript,
    low: int,
    high: int,
    tool_ids: Callable[[TranscriptEntry], set[str]],
) -> bool:
    return any(low < at <= high and tool_ids(entry) for at, entry in transcript.lines)


def _is_tool_idle(session: Session, transcript: LoadedTranscript, commit: tuple[Oid, int]) -> bool:
    """Return True if no tool was running when the commit was made.

    A tool call counts if the commit knows it, or if it started before the commit and was recorded
    after it.
    """
    oid, end = commit
    calling: set[str] = set()
    called: TranscriptEntry = {}
    for at, entry in transcript.lines:
        if at > end and (called or not calls_in(entry)):
            continue
        if at > end:
            called = entry
        else:
            calling = set() if is_prompt(entry) else (calling | calls_in(entry)) - results_in(entry)
    when, commit_record = _time(called), session.internals.store.history.read(oid)
    in_time = (
        when is None or commit_record.time <= when or commit_record.message == FIRST_TURN_MESSAGE
    )
    return not calling and in_time
