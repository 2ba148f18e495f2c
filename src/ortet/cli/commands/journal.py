"""Commands journal and brief: the events of a session, and its briefing."""

from __future__ import annotations

import sys

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.follow import Follower
from ortet.cli.session_args import (
    event_data,
    event_line,
    find_session,
    read_session,
    session_argument,
)
from ortet.cli.terminal import output


@verb()
@session_argument
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Show only the last N."
)
@click.option("-f", "--follow", is_flag=True, help="Show new events until interrupted.")
@click.option(
    "--kind", multiple=True, metavar="KIND", help="Only events of this kind; may be repeated."
)
def journal(
    call: CliCall, session: str | None, *, limit: int | None, follow: bool, kind: tuple[str, ...]
) -> None:
    """List the events of a session, and follow new ones.

    Events that other processes leave in the inbox (a comment, an approval) are shown when they
    arrive, without a number, and again when the writer has added them to the journal. With --json
    --follow, each event is one object on a line. Ctrl-C ends it with 130.

    \b
    Example:
      ortet journal fix-42 -n 20
      ortet journal fix-42 --follow --kind message
    """
    follower = Follower(call.hub, find_session(call, session).id)
    found = follower.first(limit, kind)
    if not follow:
        call.output.emit([event_data(event) for event in found], map(event_line, found))
        return
    call.output.paged = False  # the output has no end
    while True:
        for event in found:
            call.output.emit(event_data(event), [] if call.output.json else [event_line(event)])
        sys.stdout.flush()
        found = follower.wait(kind)


@verb()
@session_argument
@click.option("--tokens", type=click.IntRange(min=1), default=2000, show_default=True, metavar="N")
@click.option(
    "--write", "directory", metavar="DIR", help="Write handover files into this directory instead."
)
def brief(call: CliCall, session: str | None, *, tokens: int, directory: str | None) -> None:
    """Print a briefing for whoever continues a session.

    With --write: feature_list.json, progress.md and BRIEFING.md, for the next worker.

    \b
    Example:
      ortet brief fix-42 --tokens 1000
      ortet brief fix-42 --write handover
    """
    view = read_session(call, session)
    if directory is not None:
        made = view.handover(directory)
        names = sorted([*made.written, *made.unchanged])
        lines = [f"{'wrote' if name in made.written else 'kept'} {name}" for name in names]
        call.output.emit({"session": view.id, **output.fields(made)}, lines)
        return
    briefing = view.briefing(tokens)
    data = {"session": view.id, **output.fields(briefing)}
    call.output.emit(data, (output.safe(line) for line in briefing.markdown.splitlines()))
