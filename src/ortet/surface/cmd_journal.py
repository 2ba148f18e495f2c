"""journal, brief, effects, act: what a session did."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ortet.surface import render
from ortet.surface.call import Call, common, verb
from ortet.surface.sessions import (
    event_data,
    event_line,
    find,
    read,
    session_argument,
    session_option,
    value_of,
    write,
)

if TYPE_CHECKING:
    from ortet.journal.events import Event
    from ortet.journal.things import Effect

_PATIENCE = 1.0
"""Seconds after which a follower looks by itself: a signal is only a hint."""


@verb()
@session_argument
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="Only the last N.")
@click.option("-f", "--follow", is_flag=True, help="Go on as events come, until interrupted.")
@click.option("--kind", multiple=True, metavar="KIND", help="Only these; may be repeated.")
def journal(
    call: Call, session: str | None, *, limit: int | None, follow: bool, kind: tuple[str, ...]
) -> None:
    """List the events of a session; with --json --follow, one object a line.

    \b
    Example:
      ortet journal fix-42 -n 20
      ortet journal fix-42 --follow --kind message
    """
    row = find(call, session)
    topic = f"session:{row.id}"
    token = call.hub.signal.token(topic)
    found = [event for event in call.hub.get(row.id).events() if not kind or event.kind in kind]
    found = found[-limit:] if limit else found
    if not follow:
        call.emit([event_data(event) for event in found], map(event_line, found))
        return
    last = 0
    while True:
        for event in found:
            _show(call, event)
        last = max([last, *(event.seq for event in found)])
        sys.stdout.flush()
        call.hub.signal.wait(topic, token, _PATIENCE)
        token = call.hub.signal.token(topic)
        news = call.hub.get(row.id).events(last)
        found = [event for event in news if not kind or event.kind in kind]


def _show(call: Call, event: Event) -> None:
    call.emit(event_data(event), [] if call.json else [event_line(event)])


@verb()
@session_argument
@click.option("--tokens", type=click.IntRange(min=1), default=2000, show_default=True, metavar="N")
def brief(call: Call, session: str | None, *, tokens: int) -> None:
    """Print what whoever goes on has to know: goal, plan, what was learned, what is open.

    \b
    Example:
      ortet brief fix-42 --tokens 1000
    """
    view = read(call, session)
    briefing = view.briefing(tokens)
    data = {"session": view.id, **render.fields(briefing)}
    call.emit(data, (render.safe(line) for line in briefing.markdown.splitlines()))


@verb()
@session_argument
@click.option("--unsettled", is_flag=True, help="Only those whose outcome is not known.")
def effects(call: Call, session: str | None, *, unsettled: bool) -> None:
    """List what a session and its forks did to the world, restored away or not.

    \b
    Example:
      ortet effects fix-42 --unsettled
    """
    _list(call, session, unsettled=unsettled)


@click.group(invoke_without_command=True)
@common
@click.pass_context
def act(ctx: click.Context) -> None:
    """List actions, and say what became of one that a crash cut short.

    \b
    Example:
      ortet act ls -s fix-42
      ortet act settle 0198c -s fix-42 --outcome '{"paid": true}'
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@verb("ls")
@session_option
def act_ls(call: Call, session: str | None) -> None:
    """List the actions of a session.

    \b
    Example:
      ortet act ls -s fix-42
    """
    _list(call, session, unsettled=False)


@verb()
@click.argument("effect")
@click.option("--outcome", metavar="JSON", help="What it returned; text that is no JSON is a str.")
@click.option("--failed", is_flag=True, help="It was not done.")
@session_option
def settle(
    call: Call, effect: str, *, outcome: str | None, failed: bool, session: str | None
) -> None:
    """Say what became of an action whose outcome is not known.

    EFFECT is its id, or as many of its last digits as tell it apart.

    \b
    Example:
      ortet act settle 4f3a -s fix-42 --outcome '{"paid": true}'
      ortet act settle 4f3a -s fix-42 --failed
    """
    view = read(call, session)
    known = [one.id for one in view.effects() if one.id.endswith(effect)]
    id_ = known[0] if len(known) == 1 else effect
    opened = write(call, session)
    event = opened.settle(id_, None if outcome is None else value_of(outcome), failed=failed)
    call.emit(event_data(event), [f"settled {id_}: {'failed' if failed else 'done'}"])


act.add_command(act_ls)
act.add_command(settle)


def _list(call: Call, session: str | None, *, unsettled: bool) -> None:
    found = read(call, session).effects()
    if unsettled:
        found = [effect for effect in found if effect.state in ("begun", "unsettled")]
    call.emit([render.fields(effect) for effect in found], render.table(map(_cells, found)))


def _cells(effect: Effect) -> tuple[str, ...]:
    return (
        effect.id,
        effect.state,
        effect.replay,
        render.when(effect.time),
        render.safe(effect.name),
        render.title(effect.why),
    )
