"""bisect: which commit broke it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ortet.cli import output
from ortet.cli.call import Call, group, verb
from ortet.errors import Conflict

if TYPE_CHECKING:
    from ortet.cli.bisect_runner import Search, Step, Verdict
    from ortet.history.bisect import Answer, BisectState

good_option = click.option(
    "--good", multiple=True, metavar="REF", help="A commit known to be good; may be repeated."
)
bad_option = click.option(
    "--bad", default="HEAD", show_default=True, metavar="REF", help="A commit known to be bad."
)


@group
def bisect() -> None:
    """Find the commit that broke a command.

    Halves what is left with every test. Each candidate is tested in a private copy: your files are
    not touched.

    \b
    Example:
      ortet bisect run --good HEAD~20 -- pytest -q tests/test_login.py
    """


@verb()
@good_option
@bad_option
def start(call: Call, good: tuple[str, ...], bad: str) -> None:
    """Begin a search that you answer yourself.

    \b
    Example:
      ortet bisect start --good v1 --bad HEAD
      ortet run -w proj/4 -- make test
      ortet bisect good
    """
    from ortet.cli import bisect_runner

    row = call.row()
    if bisect_runner.running(call.hub, row):
        raise Conflict("bisect_running", "a search is under way: go on, or `ortet bisect reset`")
    _tell(call, bisect_runner.go_on(call.hub, row, _state(call, good, bad)))


def _judge(call: Call, verdict: Verdict, ref: str | None) -> None:
    from ortet.cli import bisect_runner

    oid = None if ref is None else call.resolve(ref).hex()
    _tell(call, bisect_runner.judge(call.hub, call.row(), verdict, oid))


@verb()
@click.argument("ref", required=False)
def good(call: Call, ref: str | None) -> None:
    """The commit under test works.

    \b
    Example:
      ortet bisect good
    """
    _judge(call, "good", ref)


@verb()
@click.argument("ref", required=False)
def bad(call: Call, ref: str | None) -> None:
    """The commit under test is broken.

    \b
    Example:
      ortet bisect bad
    """
    _judge(call, "bad", ref)


@verb()
@click.argument("ref", required=False)
def skip(call: Call, ref: str | None) -> None:
    """The commit under test cannot be judged.

    \b
    Example:
      ortet bisect skip
    """
    _judge(call, "skip", ref)


@verb()
def reset(call: Call) -> None:
    """Give up the search.

    \b
    Example:
      ortet bisect reset
    """
    from ortet.cli import bisect_runner

    bisect_runner.end(call.hub, call.row())
    call.emit({"running": False}, ["no search is under way"])


@verb(context_settings={"allow_interspersed_args": False})
@good_option
@bad_option
@click.option("--timeout", type=float, metavar="SECONDS", help="Longer than this is bad.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    call: Call,
    command: tuple[str, ...],
    *,
    good: tuple[str, ...],
    bad: str,
    timeout: float | None,
) -> None:
    """Let a command answer: 0 is good, 125 skips, up to 124 is bad.

    126, 127 and above stop the search: the command itself is broken. The bad commit is tested
    first. Without --good it goes on with the search that `bisect start` began.

    \b
    Example:
      ortet bisect run --good HEAD~20 -- make test
      ortet bisect run --good v1 --bad v2 "grep -q login app.py"
    """
    from ortet.cli import bisect_runner
    from ortet.history.bisect import Answer

    row = call.row()
    state = _state(call, good, bad) if good else bisect_runner.load(call.hub, row).state
    words = command[0] if len(command) == 1 else list(command)
    steps: list[Step] = []
    for found in bisect_runner.try_all(call.hub, row, state, command=words, timeout=timeout):
        if isinstance(found, Answer):
            if not good:
                bisect_runner.end(call.hub, row)
            _answer(call, found, steps)
        else:
            steps.append(found)
            call.note(_step_line(call, found))


def _state(call: Call, good: tuple[str, ...], bad: str) -> BisectState:
    from ortet.history.bisect import BisectState

    return BisectState(bad=call.resolve(bad).hex(), good=[call.resolve(ref).hex() for ref in good])


def _tell(call: Call, found: Search | Answer) -> None:
    from ortet.history.bisect import Answer

    if isinstance(found, Answer):
        _answer(call, found, [])
        return
    info = call.hub.show(found.current)
    data = {"running": True, "oid": found.current, "workspace": found.copy, "state": found.state}
    lines = [
        f"test {output.short(info.oid)} {output.title(info.message)}",
        f"  ortet run -w {found.copy} -- COMMAND",
        "  ortet bisect good | bad | skip",
    ]
    call.emit(data, lines)


def _answer(call: Call, answer: Answer, steps: list[Step]) -> None:
    data = {
        "running": False,
        "first_bad": answer.first_bad,
        "suspects": answer.suspects,
        "steps": steps,
    }
    found = [call.hub.show(oid) for oid in answer.suspects]
    lines = [f"{output.short(info.oid)} {output.title(info.message)}" for info in found]
    head = "the first bad commit is" if answer.first_bad else "the first bad commit is one of"
    call.emit(data, [head, *(f"  {line}" for line in lines)])


def _step_line(call: Call, step: Step) -> str:
    info = call.hub.show(step.oid)
    took = output.seconds(step.seconds)
    return f"{output.short(step.oid)}  {step.verdict:<4}  {output.title(info.message)}  ({took})"


bisect.add_command(start)
bisect.add_command(good)
bisect.add_command(bad)
bisect.add_command(skip)
bisect.add_command(run)
bisect.add_command(reset)
