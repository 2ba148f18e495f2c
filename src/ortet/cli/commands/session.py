"""Commands session new/ls/show/finish/rm, say, plan, decide: sessions and their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, as_text, group, verb
from ortet.cli.commands.lifecycle import finish
from ortet.cli.session_args import (
    confirm,
    find_session,
    open_session,
    parse_limits,
    read_session,
    row_data,
    session_argument,
    session_option,
    text_or_stdin,
    unsettled_effects,
    yes_option,
)
from ortet.cli.terminal import output
from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.sessions.table import SessionRow

_STATES = ("open", "active", "paused", "closed", "archived")


@group
def session() -> None:
    """Begin, list, show, finish and remove the sessions of agents.

    \b
    Example:
      ortet session new fix-42 --goal "make the suite green"
      ortet session ls
      ortet session show fix-42
    """


@verb()
@click.argument("name")
@click.option("--goal", default="", metavar="TEXT", help="The goal of the session.")
@click.option(
    "--agent",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The agent that the session belongs to.",
)
@click.option(
    "-w",
    "--workspace",
    "directory",
    metavar="DIR",
    help="The directory whose files its commits contain.",
)
@click.option(
    "--budget", multiple=True, metavar="NAME=LIMIT", help="A limit such as usd=5; may be repeated."
)
@click.option(
    "--profile", metavar="NAME", help="The profile: chatbot, assistant, worker or enterprise."
)
@click.option("--parent", metavar="SESSION", help="The parent session, whose budget it uses.")
@click.option(
    "--scope",
    multiple=True,
    metavar="SCOPE",
    help="A scope of shared memory, user:X or project:X; may be repeated.",
)
@click.option("--reopen", is_flag=True, help="Open the session also if it was finished.")
def new(
    call: CliCall,
    name: str,
    *,
    goal: str,
    agent: str,
    directory: str | None,
    budget: tuple[str, ...],
    profile: str | None,
    parent: str | None,
    scope: tuple[str, ...],
    reopen: bool,
) -> None:
    """Begin a session, or open the session of this name.

    \b
    Example:
      ortet session new fix-42 --goal "make the suite green" -w . --budget usd=5
    """
    hub = call.open_hub(create=True)
    opened = hub.session(
        name,
        agent=agent,
        goal=as_text(goal),
        workspace=directory,
        budget=parse_limits(budget, "--budget") or None,
        profile=profile,
        parent=find_session(call, parent).id if parent else None,
        scopes=list(scope) or None,
        reopen=reopen,
    )
    empty = opened.head is None and not opened.messages()
    opened.pause()
    row = next(row for row in hub.sessions() if row.id == opened.id)
    call.output.emit(row_data(row), [f"session {row.name}, {row.id}"])
    if empty and row.branch != name and _is_foreign_branch(hub, name):
        which = repr(name) if agent == "default" else f"{name!r}, agent={agent!r}"
        call.output.note(
            f"branch {name} came from another store with the mind of its session; this one is new "
            "and empty. To go on with that mind, in Python: with ortet.open() as hub, "
            f"hub.session({which}) as s: s.restore({name!r})"
        )


def _is_foreign_branch(hub: Hub, branch: str) -> bool:
    """Return True if a branch has a journal but belongs to no session here.

    Such a branch was cloned, pulled or imported.
    """
    from ortet.history.refs import is_ref_name

    head = hub.refs.get(branch) if is_ref_name(branch) else None
    if head is None or hub.catalog.row("session-branch", branch) is not None:
        return False
    return bool(hub.history.state(head.oid).journal)


@verb()
@click.option("--agent", metavar="NAME", help="Only sessions of this agent.")
@click.option(
    "--status", type=click.Choice(_STATES), metavar="STATUS", help="Only sessions with this status."
)
def ls(call: CliCall, agent: str | None, status: str | None) -> None:
    """List sessions, oldest first.

    \b
    Example:
      ortet session ls --status paused
    """
    rows = [
        row
        for row in call.hub.sessions()
        if agent in (None, row.agent) and status in (None, row.status)
    ]
    call.output.emit([row_data(row) for row in rows], output.table(map(_cells, rows)))


def _cells(row: SessionRow) -> tuple[str, ...]:
    return (
        row.name,
        row.status,
        output.format_time(row.created),
        row.agent,
        output.short_id(row.id),
        output.safe(row.path),
    )


@verb()
@session_argument
def show(call: CliCall, session: str | None) -> None:
    """Show the state of a session: goal, plan, facts, amounts spent.

    \b
    Example:
      ortet session show fix-42
    """
    from ortet.hub.governance.legal_holds import hold_of

    view = read_session(call, session)
    head, held = view.head, hold_of(call.hub.store, view.id)
    data = {
        **row_data(view.internals.row),
        "goal": view.goal,
        "plan": view.steps,
        "step": view.step,
        "messages": len(view.messages()),
        "facts": [fact.text for fact in view.facts()],
        "decisions": [decision.text for decision in view.conversation.decisions()],
        "questions": [question.text for question in view.conversation.questions()],
        "spent": view.accounting.spent(),
        "left": view.accounting.budget_left(),
        "artifacts": len({one.name for one in view.artifacts()}),
        "unsettled": [one.id for one in unsettled_effects(call, view)],
        "waiting": [one.id for one in view.actions.approvals() if one.state == "asked"],
        "hold": held.why if held else None,
        "events": view.internals.event_log.tip().seq,
        "head": head.oid if head else None,
    }
    lines = [
        f"{view.name}, {view.status}, of {view.agent}",
        *([f"goal    {output.safe(view.goal)}"] if view.goal else []),
        *_plan_lines(view.steps, view.step),
        f"holds   {output.plural(data['messages'], 'message')}, "
        f"{output.plural(len(view.facts()), 'fact')}, "
        f"{output.plural(len(view.conversation.decisions()), 'decision')}, {data['events']} events",
        *([f"left    {_amounts(data['left'])}"] if data["left"] else []),
        *(
            [f"open    {len(data['unsettled'])} unsettled, see `ortet effects`"]
            if data["unsettled"]
            else []
        ),
        *(
            [f"waits   {len(data['waiting'])} to be approved, see `ortet act waiting`"]
            if data["waiting"]
            else []
        ),
        *([f"hold    {output.title(held.why) or 'yes'}"] if held else []),
        f"commit  {output.short_id(head.oid) if head else 'none yet'}",
    ]
    call.output.emit(data, lines)


def _amounts(amounts: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {output.safe(name)}" for name, amount in sorted(amounts.items()))


@verb()
@click.argument("name", metavar="SESSION")
@yes_option
def rm(call: CliCall, name: str, *, yes: bool) -> None:
    """Remove a session with its events. No process may have it open.

    Commits stay in the reflog until it expires and a sweep frees them. To erase content at once and
    with a receipt, use `ortet erase` first.

    \b
    Example:
      ortet session rm fix-42 --yes
    """
    row = find_session(call, name)
    confirm(call, yes, f"remove session {row.name} with its journal")
    call.hub.remove(row.id)
    call.output.emit({"removed": row.id, "name": row.name}, [f"removed {row.name}"])


for _command in (new, ls, show, finish, rm):
    session.add_command(_command)


@verb()
@click.argument("text", required=False)
@click.option("--role", default="user", show_default=True, help="The role of the speaker.")
@session_option
def say(call: CliCall, text: str | None, *, role: str, session: str | None) -> None:
    """Add a message to a session.

    Without TEXT, or for -, it is read from standard input. If another process works on the session,
    use `ortet comment`.

    \b
    Example:
      ortet say -s fix-42 "the login test fails"
      ortet say -s fix-42 --role assistant < answer.txt
    """
    message = text_or_stdin(text)
    opened = open_session(call, session)
    event = opened.say(role, message)
    call.output.emit({"seq": event.seq, "hash": event.hash.hex(), "session": opened.id})


@verb()
@click.argument("steps", nargs=-1)
@click.option("--advance", is_flag=True, help="Make the next step the current one.")
@session_option
def plan(call: CliCall, steps: tuple[str, ...], *, advance: bool, session: str | None) -> None:
    """Show the plan, replace it, or advance to the next step.

    \b
    Example:
      ortet plan -s fix-42 reproduce fix verify
      ortet plan -s fix-42 --advance
    """
    if steps and advance:
        raise Invalid("bad_usage", "a new plan begins at its first step: leave --advance out")
    if steps or advance:
        opened = open_session(call, session)
        if steps:
            opened.plan([as_text(step) for step in steps])
        else:
            opened.advance()
        current = opened.steps, opened.step
    else:
        view = read_session(call, session)
        current = view.steps, view.step
    call.output.emit({"plan": current[0], "step": current[1]}, _plan_lines(*current))


def _plan_lines(steps: list[str], step: int) -> list[str]:
    marks = ["done" if n < step else "now" if n == step else "" for n in range(len(steps))]
    return [
        f"{mark:<6}  {output.title(text)}".rstrip() for mark, text in zip(marks, steps, strict=True)
    ]


@verb()
@click.argument("text")
@click.option("--why", default="", metavar="TEXT", help="The reason.")
@click.option(
    "--instead-of", multiple=True, metavar="TEXT", help="A rejected option; may be repeated."
)
@session_option
def decide(
    call: CliCall, text: str, *, why: str, instead_of: tuple[str, ...], session: str | None
) -> None:
    """Record a decision with its reason and the rejected options.

    \b
    Example:
      ortet decide -s fix-42 "patch the lexer" --why "smallest change" --instead-of "rewrite it"
    """
    opened = open_session(call, session)
    roads = [as_text(road) for road in instead_of]
    id_ = opened.decide(as_text(text), why=as_text(why), instead_of=roads)
    call.output.emit({"id": id_}, [f"decided: {output.title(text)}"])
