"""Commands for the lifecycle of a session, and its audit log.

These are pause, resume, finish, archive, unarchive, compact, checkpoint, audit and retain.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ortet.cli.call import CliCall, as_text, verb
from ortet.cli.session_args import (
    find_session,
    open_session,
    read_session,
    read_text,
    row_data,
    session_argument,
)
from ortet.cli.terminal import output as render
from ortet.errors import Conflict, Invalid

why_option = click.option("--why", default="", metavar="TEXT", help="The reason, for the journal.")


@verb()
@session_argument
@why_option
def pause(call: CliCall, session: str | None, *, why: str) -> None:
    """Pause a session; release it if a dead process left it open.

    In a shared store, uncommitted changes of its private files are committed, so that it can
    continue on another host.

    \b
    Example:
      ortet pause fix-42 --why "waiting for review"
    """
    row = find_session(call, session)
    if row.status != "paused" or why or call.hub.store.is_shared:
        opened = open_session(call, row.id)
        opened.internals.navigation.commit_for_other_hosts()
        opened.pause(as_text(why))
    _print_status(call, row.id)


@verb()
@session_argument
@click.option("--reopen", is_flag=True, help="Also if the session was finished.")
def resume(call: CliCall, session: str | None, *, reopen: bool) -> None:
    """Make a session ready to continue.

    An archived session is brought back, and actions that a crash interrupted get an outcome.

    \b
    Example:
      ortet resume fix-42
      ortet resume fix-42 --reopen
    """
    row = find_session(call, session)
    if row.status == "closed" and not reopen:
        raise Conflict(
            "illegal_move",
            f"session {row.name!r} is closed: open it again with --reopen, begin another, or read "
            "this one with `ortet journal`",
            status=row.status,
        )
    if row.status == "archived":
        call.hub.unarchive(row.id)
    else:
        open_session(call, row.id, reopen=reopen).pause()
    _print_status(call, row.id)


@verb()
@session_argument
@why_option
def finish(call: CliCall, session: str | None, *, why: str) -> None:
    """Finish a session. It can still be read, and its name stays taken.

    `ortet resume --reopen` opens it again.

    \b
    Example:
      ortet session finish fix-42 --why "merged"
    """
    opened = open_session(call, session)
    opened.finish(as_text(why))
    _print_status(call, opened.id)


@verb()
@session_argument
def archive(call: CliCall, session: str | None) -> None:
    """Archive a session as one verified bundle in the store.

    It can still be read. `ortet unarchive` brings it back.

    \b
    Example:
      ortet archive fix-42
    """
    row = find_session(call, session)
    done = call.hub.archive(row.id)
    size = render.format_size(done.size)
    call.output.emit(done, [f"archived {row.name}: {size} as {done.key}"])


@verb()
@session_argument
def unarchive(call: CliCall, session: str | None) -> None:
    """Bring an archived session back, paused or closed as it was before.

    \b
    Example:
      ortet unarchive fix-42
    """
    row = find_session(call, session)
    if row.status != "archived":
        raise Conflict(
            "illegal_move",
            f"session {row.name!r} is {row.status}, not archived: go on with it",
            status=row.status,
        )
    _print_status(call, call.hub.unarchive(row.id).id)


@verb()
@session_argument
@click.option(
    "--keep-last",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="The number of newest messages that stay in context.",
)
@click.option("--summary", metavar="FILE", help="The summary; - reads standard input.")
def compact(call: CliCall, session: str | None, *, keep_last: int, summary: str | None) -> None:
    """Replace all but the newest messages in context by a summary.

    No message is deleted from the journal. Facts, decisions, effects and the plan stay. Without
    --summary, an extract is made.

    \b
    Example:
      ortet compact fix-42 --keep-last 10
      summarise < talk.txt | ortet compact fix-42 --summary -
    """
    text = None if summary is None else read_text(summary)
    opened = open_session(call, session)
    done = opened.compact(keep_last, None if text is None else lambda _: text)
    if done is None:
        call.output.emit({"session": opened.id, "compaction": None}, ["nothing to leave out"])
        return
    lines = [f"left out {render.plural(done.count, 'message')}, events {done.first} to {done.last}"]
    call.output.emit({"session": opened.id, "compaction": render.fields(done)}, lines)


@verb()
@session_argument
@click.option("-o", "--output", metavar="FILE", help="Write to this file.")
@click.option(
    "--from", "source", metavar="FILE", help="Begin a session from the record in this file."
)
@click.option("--name", default="", metavar="NAME", help="With --from: the name of the session.")
@click.option(
    "--agent",
    default="",
    metavar="NAME",
    help="With --from: the agent that the session belongs to.",
)
def checkpoint(
    call: CliCall,
    session: str | None,
    *,
    output: str | None,
    source: str | None,
    name: str,
    agent: str,
) -> None:
    """Print a session as one portable record, or begin one from a record.

    The record is an AgentCheckpoint in JSON; docs/agent-checkpoint.schema.json describes it.

    \b
    Example:
      ortet checkpoint fix-42 -o fix-42.json
      ortet checkpoint --from fix-42.json --name fix-42-again
    """
    if source is not None:
        if session is not None or output is not None:
            raise Invalid("bad_usage", "--from makes a session: leave SESSION and -o out")
        opened = call.open_hub(create=True).transfer.from_checkpoint(
            read_text(source), name=name, agent=agent
        )
        opened.pause()
        row = opened.internals.row
        call.output.emit(row_data(row), [f"session {row.name}, {row.id}"])
        return
    if name or agent:
        raise Invalid("bad_usage", "--name and --agent are for a session made by --from")
    view = read_session(call, session)
    text = view.checkpoint().to_json()
    if output is None:
        if not call.output.quiet:
            sys.stdout.write(text + "\n")
        return
    Path(output).write_text(text + "\n", encoding="utf-8")
    path = str(Path(output).absolute())
    call.output.emit({"session": view.id, "path": path}, [f"{view.name} -> {render.safe(output)}"])


@verb()
@session_argument
def audit(call: CliCall, session: str | None) -> None:
    """Check every link of a journal, then print who did what and why.

    The last line is the hash of the journal. If you store it elsewhere, it proves later that no
    earlier event was changed. The exit code is 8 if the journal was changed.

    \b
    Example:
      ortet audit fix-42
    """
    report = call.hub.audit(find_session(call, session).id)
    call.output.emit(report, _audit_lines(call, report))


def _audit_lines(call: CliCall, report: object) -> list[str]:
    from ortet.hub.governance.audit import AuditReport

    del call
    assert isinstance(report, AuditReport)
    rows = [
        (
            f"{line.seq:>5}",
            render.format_time(line.time),
            render.safe(line.actor),
            line.kind,
            render.title(line.what) + (f"  ({render.title(line.why)})" if line.why else ""),
        )
        for line in report.lines
    ]
    gone = f", {report.erased} erased" if report.erased else ""
    return [*render.table(rows), f"sound: {report.events} events{gone}, head {report.head}"]


@verb()
@click.option("--dry-run", is_flag=True, help="Only report what would change.")
def retain(call: CliCall, dry_run: bool) -> None:
    """Apply the retention policies of all agents: erase, archive and trim.

    `ortet retention` sets the policies. A session on hold is not changed, whatever its policy says.

    \b
    Example:
      ortet retain --dry-run
    """
    report = call.hub.governance.retain(dry_run=dry_run)
    verb_ = "would " if dry_run else ""
    lines = [f"{verb_}{one.what} {one.name}: {one.why}" for one in report.deeds]
    call.output.emit(report, lines or ["nothing to do"])


def _print_status(call: CliCall, id_: str) -> None:
    row = call.hub.get(id_).internals.row
    call.output.emit(row_data(row), [f"{row.name} is {row.status}"])
