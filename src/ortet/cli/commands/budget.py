"""Commands budget and bill: spending limits, and what was spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.session_args import open_session, parse_limits, read_session, session_argument
from ortet.cli.terminal import output
from ortet.cli.times import parse_time
from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader


@verb()
@session_argument
@click.option(
    "--set",
    "hard",
    multiple=True,
    metavar="NAME=LIMIT",
    help="Set a hard limit, such as usd=5, or usd=none.",
)
@click.option(
    "--soft", multiple=True, metavar="NAME=LIMIT", help="Set a limit that only causes a warning."
)
@click.option(
    "--raise", "more", multiple=True, metavar="NAME=AMOUNT", help="Raise a limit by this amount."
)
def budget(
    call: CliCall,
    session: str | None,
    *,
    hard: tuple[str, ...],
    soft: tuple[str, ...],
    more: tuple[str, ...],
) -> None:
    """Show or change the spending limits of a session and its forks.

    A counter is tokens, usd, seconds (which are counted automatically) or any other name. A session
    that reached a limit is paused: raise the limit to continue.

    \b
    Example:
      ortet budget fix-42
      ortet budget fix-42 --set usd=5 --soft usd=4
      ortet budget fix-42 --raise usd=2.50
    """
    view = read_session(call, session)
    limits = {**parse_limits(hard, "--set"), **_raised(view, parse_limits(more, "--raise"))}
    warn = parse_limits(soft, "--soft")
    if limits or warn:
        opened = open_session(call, view.id)
        opened.budget(soft=warn, **limits)
        view = opened
    data = _budget_data(view)
    names = sorted({*data["limits"], *data["soft"], *data["spent"]})
    rows: list[tuple[str, ...]] = [("counter", "limit", "soft", "spent", "left")]
    for name in names:
        amounts = [_amount(data[key].get(name)) for key in ("limits", "soft", "spent", "left")]
        rows.append((output.safe(name), *amounts))
    call.output.emit(data, call.output.table(rows) if names else ["no limit, and nothing spent"])


def _raised(view: SessionReader, more: dict[str, float | None]) -> dict[str, float]:
    limits, raised = view.accounting.limits(), {}
    for name, amount in more.items():
        if name not in limits or amount is None:
            raise Invalid(
                "no_limit", f"{name!r} has no limit that could be raised: give one with --set"
            )
        raised[name] = limits[name] + amount
    return raised


def _budget_data(view: SessionReader) -> dict[str, Any]:
    from ortet.sessions.actions.budget import levels

    return {
        "session": view.id,
        "limits": view.accounting.limits(),
        "soft": levels(view.internals.store.catalog, view.internals.row)[0].account.soft,
        "spent": view.accounting.spent(),
        "left": view.accounting.budget_left(),
    }


@verb()
@click.option("--since", metavar="WHEN", help="A date, a time, or an age such as 90m, 24h or 7d.")
@click.option(
    "--by",
    type=click.Choice(["agent", "session", "model", "day"]),
    default="session",
    show_default=True,
    help="Group the amounts by this.",
)
def bill(call: CliCall, since: str | None, by: Any) -> None:
    """Show the amounts that were spent, by agent, session, model or day.

    The bill is exact to the second, and includes sessions that were erased or removed. Days are
    days of UTC.

    \b
    Example:
      ortet bill --since 2026-01-31 --by model
      ortet bill --since 7d --by day
    """
    lines = call.hub.bill(since=parse_time(call, "--since", since), by=by)
    names = sorted({name for line in lines for name in line.amounts})
    rows: list[tuple[str, ...]] = [(by, "spends", *names)] if lines else []
    rows += [
        (
            output.safe(line.name) or "(none)",
            str(line.spends),
            *(_amount(line.amounts.get(name)) for name in names),
        )
        for line in lines
    ]
    call.output.emit(lines, call.output.table(rows) or ["nothing was spent"])


def _amount(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6f}".rstrip("0").rstrip(".")
