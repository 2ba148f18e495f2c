"""pause, resume, close, archive, audit, retain: the life of a session, and who answers for it."""

from __future__ import annotations

import click

from ortet.errors import Conflict
from ortet.surface import render
from ortet.surface.call import Call, as_text, verb
from ortet.surface.sessions import find, row_data, session_argument, write

why_option = click.option("--why", default="", metavar="TEXT", help="The reason, for the journal.")


@verb()
@session_argument
@why_option
def pause(call: Call, session: str | None, *, why: str) -> None:
    """Let go of a session that a dead process left active.

    \b
    Example:
      ortet pause fix-42 --why "waiting for review"
    """
    row = find(call, session)
    if row.status != "paused" or why:
        write(call, row.id).pause(as_text(why))
    _tell(call, row.id)


@verb()
@session_argument
def resume(call: Call, session: str | None) -> None:
    """Make a session ready to go on: an archived one is brought back, what a crash cut is closed.

    \b
    Example:
      ortet resume fix-42
    """
    row = find(call, session)
    if row.status == "closed":
        raise Conflict(
            "illegal_move",
            f"session {row.name!r} is closed: begin another, or read this one with `ortet journal`",
            status=row.status,
        )
    if row.status == "archived":
        call.hub.unarchive(row.id)
    else:
        write(call, row.id).pause()
    _tell(call, row.id)


@verb()
@session_argument
@why_option
def close(call: Call, session: str | None, *, why: str) -> None:
    """End a session: it can be read and archived, and its name stays taken.

    \b
    Example:
      ortet close fix-42 --why "merged"
    """
    opened = write(call, session)
    opened.close(as_text(why))
    _tell(call, opened.id)


@verb()
@session_argument
def archive(call: Call, session: str | None) -> None:
    """Put a session away: one verified bundle in the store; `ortet resume` brings it back.

    \b
    Example:
      ortet archive fix-42
    """
    row = find(call, session)
    done = call.hub.archive(row.id)
    size = render.size(done.size)
    call.emit(done, [f"archived {row.name}: {size} as {done.key}"])


@verb()
@session_argument
def audit(call: Call, session: str | None) -> None:
    """Check every link of a session's journal, then print who did what, when and why.

    The last line is the hash to keep elsewhere: with it, nobody can change what was before. The
    exit code is 8 when something is not as it was recorded.

    \b
    Example:
      ortet audit fix-42
    """
    report = call.hub.audit(find(call, session).id)
    call.emit(report, _audit_lines(call, report))


def _audit_lines(call: Call, report: object) -> list[str]:
    from ortet.session.audit import AuditReport

    del call
    assert isinstance(report, AuditReport)
    rows = [
        (
            f"{line.seq:>5}",
            render.when(line.time),
            render.safe(line.actor),
            line.kind,
            render.title(line.what) + (f"  ({render.title(line.why)})" if line.why else ""),
        )
        for line in report.lines
    ]
    gone = f", {report.erased} erased" if report.erased else ""
    return [*render.table(rows), f"sound: {report.events} events{gone}, head {report.head}"]


@verb()
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
def retain(call: Call, dry_run: bool) -> None:
    """Apply the retention policies of all agents: erase, archive and trim what has had its time.

    A session on hold is left alone, whatever its policy says.

    \b
    Example:
      ortet retain --dry-run
    """
    report = call.hub.retain(dry_run=dry_run)
    verb_ = "would " if dry_run else ""
    lines = [f"{verb_}{one.what} {one.name}: {one.why}" for one in report.deeds]
    call.emit(report, lines or ["nothing to do"])


def _tell(call: Call, id_: str) -> None:
    row = call.hub.get(id_).row
    call.emit(row_data(row), [f"{row.name} is {row.status}"])
