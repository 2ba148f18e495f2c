"""Command bisect: find the commit that broke something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, group, verb
from ortet.cli.terminal import output
from ortet.errors import Conflict

if TYPE_CHECKING:
    from ortet.cli.bisect_runner import BisectSearch, BisectStep, BisectVerdict
    from ortet.history.bisect import BisectResult, BisectState

good_option = click.option(
    "--good", multiple=True, metavar="REF", help="A commit known to be good; may be repeated."
)
bad_option = click.option(
    "--bad", default="HEAD", show_default=True, metavar="REF", help="A commit known to be bad."
)


@group
def bisect() -> None:
    """Find the commit that broke a command.

    Each test halves the number of candidates. A candidate is tested in a private copy: your files
    are not changed.

    \b
    Example:
      ortet bisect run --good HEAD~20 -- pytest -q tests/test_login.py
    """


@verb()
@good_option
@bad_option
def start(call: CliCall, good: tuple[str, ...], bad: str) -> None:
    """Begin a search in which you answer each test yourself.

    \b
    Example:
      ortet bisect start --good v1 --bad HEAD
      ortet run -w proj/4 -- make test
      ortet bisect good
    """
    from ortet.cli import bisect_runner

    row = call.row()
    if bisect_runner.is_running(call.hub, row):
        raise Conflict(
            "bisect_running",
            "a bisect search is already running: continue it, or end it with `ortet bisect reset`",
        )
    _print_search(
        call, bisect_runner.continue_search(call.hub, row, _initial_state(call, good, bad))
    )


def _record_verdict(call: CliCall, verdict: BisectVerdict, ref: str | None) -> None:
    from ortet.cli import bisect_runner

    oid = None if ref is None else call.resolve(ref).hex()
    _print_search(call, bisect_runner.record_verdict(call.hub, call.row(), verdict, oid))


@verb()
@click.argument("ref", required=False)
def good(call: CliCall, ref: str | None) -> None:
    """Answer that the tested commit works.

    \b
    Example:
      ortet bisect good
    """
    _record_verdict(call, "good", ref)


@verb()
@click.argument("ref", required=False)
def bad(call: CliCall, ref: str | None) -> None:
    """Answer that the tested commit is broken.

    \b
    Example:
      ortet bisect bad
    """
    _record_verdict(call, "bad", ref)


@verb()
@click.argument("ref", required=False)
def skip(call: CliCall, ref: str | None) -> None:
    """Answer that the tested commit cannot be judged.

    \b
    Example:
      ortet bisect skip
    """
    _record_verdict(call, "skip", ref)


@verb()
def reset(call: CliCall) -> None:
    """Give up the search.

    \b
    Example:
      ortet bisect reset
    """
    from ortet.cli import bisect_runner

    bisect_runner.end_search(call.hub, call.row())
    call.output.emit({"running": False}, ["no search is under way"])


@verb(context_settings={"allow_interspersed_args": False})
@good_option
@bad_option
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="Time limit of a test. A test that exceeds it is bad.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    call: CliCall,
    command: tuple[str, ...],
    *,
    good: tuple[str, ...],
    bad: str,
    timeout: float | None,
) -> None:
    """Let a command answer: 0 is good, 125 skips, others are bad.

    Exit codes 126, 127 and above stop the search, because the command itself is broken. The bad
    commit is tested first. Without --good, the search that `bisect start` began continues.

    \b
    Example:
      ortet bisect run --good HEAD~20 -- make test
      ortet bisect run --good v1 --bad v2 "grep -q login app.py"
    """
    from ortet.cli import bisect_runner
    from ortet.history.bisect import BisectResult

    row = call.row()
    state = (
        _initial_state(call, good, bad) if good else bisect_runner.load_search(call.hub, row).state
    )
    words = command[0] if len(command) == 1 else list(command)
    steps: list[BisectStep] = []
    for found in bisect_runner.search_with_command(
        call.hub, row, state, command=words, timeout=timeout
    ):
        if isinstance(found, BisectResult):
            if not good:
                bisect_runner.end_search(call.hub, row)
            _print_result(call, found, steps)
        else:
            steps.append(found)
            call.output.note(_step_line(call, found))


def _initial_state(call: CliCall, good: tuple[str, ...], bad: str) -> BisectState:
    from ortet.history.bisect import BisectState

    return BisectState(bad=call.resolve(bad).hex(), good=[call.resolve(ref).hex() for ref in good])


def _print_search(call: CliCall, outcome: BisectSearch | BisectResult) -> None:
    from ortet.history.bisect import BisectResult

    if isinstance(outcome, BisectResult):
        _print_result(call, outcome, [])
        return
    info = call.hub.show(outcome.current)
    data = {
        "running": True,
        "oid": outcome.current,
        "workspace": outcome.copy,
        "state": outcome.state,
    }
    lines = [
        f"test {output.short_id(info.oid)} {output.title(info.message)}",
        f"  ortet run -w {outcome.copy} -- COMMAND",
        "  ortet bisect good | bad | skip",
    ]
    call.output.emit(data, lines)


def _print_result(call: CliCall, result: BisectResult, steps: list[BisectStep]) -> None:
    data = {
        "running": False,
        "first_bad": result.first_bad,
        "suspects": result.suspects,
        "steps": steps,
    }
    found = [call.hub.show(oid) for oid in result.suspects]
    lines = [f"{output.short_id(info.oid)} {output.title(info.message)}" for info in found]
    head = "the first bad commit is" if result.first_bad else "the first bad commit is one of"
    call.output.emit(data, [head, *(f"  {line}" for line in lines)])


def _step_line(call: CliCall, step: BisectStep) -> str:
    info = call.hub.show(step.oid)
    took = output.format_duration(step.seconds)
    return f"{output.short_id(step.oid)}  {step.verdict:<4}  {output.title(info.message)}  ({took})"


bisect.add_command(start)
bisect.add_command(good)
bisect.add_command(bad)
bisect.add_command(skip)
bisect.add_command(run)
bisect.add_command(reset)
