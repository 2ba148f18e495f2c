"""Commands erase, hold, release, retention, dataset: how long data is kept, and for whom."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ortet.cli.call import CliCall, as_text, verb
from ortet.cli.session_args import confirm, find_session, id_suffix, yes_option
from ortet.cli.terminal import output
from ortet.errors import Invalid, NotFound

_EXIT_RETRY_LATER = 7  # the exit code of an error that a later retry may cure


@verb()
@click.argument("session", metavar="[SESSION]", required=False)
@click.option("--user", metavar="NAME", help="Only messages and actions of this user.")
@click.option(
    "--event",
    "seqs",
    type=int,
    multiple=True,
    metavar="N",
    help="Only the events with these numbers.",
)
@click.option("--receipt", "file", metavar="FILE", help="Write the signed receipt to this file.")
@yes_option
def erase(
    call: CliCall,
    session: str | None,
    *,
    user: str | None,
    seqs: tuple[int, ...],
    file: str | None,
    yes: bool,
) -> None:
    """Erase the messages and actions of a session or a user, with a receipt.

    Content is erased in rows, objects, commits and archives; `ortet verify` and `ortet audit` still
    pass. No process may have the session open. Amounts spent stay on the bill. Exit code 7 means
    that another process still holds a copy: repeat the command when it has ended.

    \b
    Example:
      ortet erase fix-42 --yes --receipt receipt.json
      ortet erase --user ann@example.org --yes
      ortet erase fix-42 --event 7 --event 8 --yes
    """
    if session is None and user is None:
        raise Invalid("nothing_meant", "say what to erase: a SESSION, or --user NAME, or both")
    row = find_session(call, session) if session is not None else None
    where = f"session {row.name}" if row else "all sessions"
    what = f"what {user} did in {where}" if user else f"what is recorded in {where}"
    if seqs:
        what = f"{output.plural(len(seqs), 'event')} of {where}"
    confirm(call, yes, f"erase {what}")
    known = call.hub.get(row.id).events() if row and seqs else ()
    already = bool(seqs) and all(event.erased for event in known if event.seq in seqs)
    receipt = call.hub.erase(row.id if row else None, seqs=list(seqs) or None, user=user)
    if file is not None:
        Path(file).write_text(output.to_json(receipt) + "\n", encoding="utf-8")
    done = "already erased:" if already else "erased"
    lines = [
        f"{done} {output.plural(len(receipt.events), 'event')}, receipt {id_suffix(receipt.id)}"
    ]
    if not receipt.complete:
        call.output.exit_code = _EXIT_RETRY_LATER
        lines.append("another process still holds a copy: repeat this when it has ended")
    call.output.emit(
        {**output.fields(receipt), "complete": receipt.complete, "already": already}, lines
    )


@verb()
@click.argument("session", metavar="[SESSION]", required=False)
@click.option("--why", default="", metavar="TEXT", help="The reason.")
def hold(call: CliCall, session: str | None, *, why: str) -> None:
    """Put a session on hold, or list the sessions on hold.

    Nothing of a session on hold is deleted. A hold wins over every retention policy, erasure,
    archive and removal.

    \b
    Example:
      ortet hold fix-42 --why "incident 17"
      ortet hold
    """
    from ortet.hub.governance.legal_holds import hold_of

    if session is not None:
        row = find_session(call, session)
        placed = call.hub.governance.hold(row.id, as_text(why))
        call.output.emit({**output.fields(placed), "name": row.name}, [f"{row.name} is on hold"])
        return
    holds = [
        (row, held) for row in call.hub.sessions() if (held := hold_of(call.hub.store, row.id))
    ]
    rows = [
        (row.name, output.format_time(held.time), output.safe(held.by), output.title(held.why))
        for row, held in holds
    ]
    data = [{**output.fields(held), "name": row.name} for row, held in holds]
    call.output.emit(data, call.output.table(rows) or ["nothing is on hold"])


@verb()
@click.argument("session")
def release(call: CliCall, session: str) -> None:
    """End the hold of a session.

    \b
    Example:
      ortet release fix-42
    """
    from ortet.hub.governance.legal_holds import hold_of

    row = find_session(call, session)
    held = hold_of(call.hub.store, row.id)
    if held is None:
        raise NotFound("no_hold", f"{row.name} is not on hold: `ortet hold` lists what is")
    call.hub.governance.release(row.id)
    call.output.emit({**output.fields(held), "name": row.name}, [f"{row.name} is released"])


@verb()
@click.option(
    "--agent", metavar="NAME", help="The agent; by default all agents with a policy are shown."
)
@click.option(
    "--keep-messages", "keep", metavar="DAYS", help="Time for which messages are kept, or forever."
)
@click.option(
    "--archive-after",
    "idle",
    metavar="DAYS",
    help="Archive sessions that are idle for this time, or never.",
)
def retention(call: CliCall, *, agent: str | None, keep: str | None, idle: str | None) -> None:
    """Show or set the retention policy of agents.

    The policy says how long messages are kept, and when idle sessions are archived. `ortet retain`
    applies it. Fields that are not given stay unchanged.

    \b
    Example:
      ortet retention --agent default --keep-messages 30 --archive-after 90
      ortet retention --keep-messages forever
      ortet retain --dry-run
    """
    from ortet.hub.governance.retention import policies, policy_of

    hub = call.hub
    if keep is None and idle is None:
        known = policies(hub.store) if agent is None else {agent: policy_of(hub.store, agent)}
    else:
        agent = agent or "default"
        current = policy_of(hub.store, agent)
        known = {
            agent: hub.governance.retention(
                agent,
                keep_messages=current.keep_messages if keep is None else _days(keep),
                archive_after=current.archive_after if idle is None else _days(idle),
            )
        }
    data = [{"agent": name, **output.fields(policy)} for name, policy in known.items()]
    rows = [
        (name, f"messages {_keep_text(policy.keep_messages)}", _archive_text(policy.archive_after))
        for name, policy in known.items()
    ]
    call.output.emit(data, call.output.table(rows) or ["no policy: everything is kept forever"])


def _days(text: str) -> float | None:
    if text in ("forever", "never"):
        return None
    try:
        return float(text)
    except ValueError:
        raise Invalid(
            "bad_age", f"{text!r} days: give a number from 0, or forever, or never"
        ) from None


def _keep_text(days: float | None) -> str:
    return "forever" if days is None else f"{days:g} days"


def _archive_text(days: float | None) -> str:
    return "never archived" if days is None else f"archived after {days:g} idle days"


@verb()
@click.argument("file")
@click.argument("sessions", metavar="[SESSION]...", nargs=-1)
def dataset(call: CliCall, file: str, sessions: tuple[str, ...]) -> None:
    """Write sessions, or all sessions, as JSONL for evaluation.

    For -, the output goes to standard output.

    \b
    Example:
      ortet dataset runs.jsonl
      ortet dataset some.jsonl fix-42 fix-43
    """
    ids = [find_session(call, word).id for word in sessions] or None
    if file == "-":
        from ortet.hub.governance.datasets import jsonl_lines

        wanted = ids or [row.id for row in call.hub.sessions()]
        sys.stdout.writelines(jsonl_lines(call.hub.get(one) for one in wanted))
        return
    count = call.hub.governance.export_jsonl(file, sessions=ids)
    path = str(Path(file).absolute())
    call.output.emit(
        {"path": path, "sessions": count}, [f"{output.plural(count, 'session')} -> {file}"]
    )
