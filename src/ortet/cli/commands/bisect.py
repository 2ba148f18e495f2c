"""Command bisect: find the commit that broke something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from ortet._util.codec import decode, encode
from ortet.cli.call import CliCall, group, verb
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid, NotFound
from ortet.history.bisect import Bisect, BisectResult, BisectState
from ortet.ids import from_hex

if TYPE_CHECKING:
    from ortet.hub.hub import Hub
    from ortet.machines.base import Command, Result
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

BISECT_ROW_KIND = "bisect"
EXIT_SKIP = 125
EXIT_CANNOT_RUN = (126, 127)
EXIT_SIGNAL_BASE = 128

BisectVerdict = Literal["good", "bad", "skip"]

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
    row = call.row()
    if is_running(call.hub, row):
        raise Conflict(
            "bisect_running",
            "a bisect search is already running: continue it, or end it with `ortet bisect reset`",
        )
    _print_search(call, continue_search(call.hub, row, _initial_state(call, good, bad)))


def _record_verdict(call: CliCall, verdict: BisectVerdict, ref: str | None) -> None:
    oid = None if ref is None else call.resolve(ref).hex()
    _print_search(call, record_verdict(call.hub, call.row(), verdict, oid))


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
    """End the search without a result.

    \b
    Example:
      ortet bisect reset
    """
    end_search(call.hub, call.row())
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
    row = call.row()
    state = _initial_state(call, good, bad) if good else load_search(call.hub, row).state
    words = command[0] if len(command) == 1 else list(command)
    steps: list[BisectStep] = []
    for step in search_with_command(call.hub, row, state, command=words, timeout=timeout):
        if isinstance(step, BisectResult):
            if not good:
                end_search(call.hub, row)
            _print_result(call, step, steps)
        else:
            steps.append(step)
            call.output.note(_step_line(call, step))


def _initial_state(call: CliCall, good: tuple[str, ...], bad: str) -> BisectState:
    return BisectState(bad=call.resolve(bad).hex(), good=[call.resolve(ref).hex() for ref in good])


def _print_search(call: CliCall, outcome: BisectSearch | BisectResult) -> None:
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
    suspects = [call.hub.show(oid) for oid in result.suspects]
    lines = [f"{output.short_id(info.oid)} {output.title(info.message)}" for info in suspects]
    head = "the first bad commit is" if result.first_bad else "the first bad commit is one of"
    call.output.emit(data, [head, *(f"  {line}" for line in lines)])


def _step_line(call: CliCall, step: BisectStep) -> str:
    info = call.hub.show(step.oid)
    took = output.format_duration(step.seconds)
    return f"{output.short_id(step.oid)}  {step.verdict:<4}  {output.title(info.message)}  ({took})"


# The search: each candidate commit is tested in a private copy


class BisectSearch(msgspec.Struct, frozen=True):
    """The stored search: its state, the commit to test now, and the private workspace with it."""

    state: BisectState
    current: str = ""
    copy: str = ""


class BisectStep(msgspec.Struct, frozen=True):
    """The result of one test."""

    oid: str
    verdict: BisectVerdict
    exit_code: int
    seconds: float


def open_bisect(hub: Hub, state: BisectState) -> Bisect:
    """Return a Bisect over the commits of a hub."""
    return Bisect(lambda oid: hub.history.info(from_hex(oid)).parents, state)


def load_search(hub: Hub, row: WorkspaceRow) -> BisectSearch:
    """Return the search of a workspace. Raises NotFound("no_bisect") if there is none."""
    stored = hub.catalog.row(BISECT_ROW_KIND, row.name)
    if stored is None:
        raise NotFound(
            "no_bisect", "no bisect search is running: `ortet bisect start --good REF` begins one"
        )
    return decode(BisectSearch, stored.value)


def is_running(hub: Hub, row: WorkspaceRow) -> bool:
    """Return True if a search is stored for this workspace."""
    return hub.catalog.row(BISECT_ROW_KIND, row.name) is not None


def continue_search(hub: Hub, row: WorkspaceRow, state: BisectState) -> BisectSearch | BisectResult:
    """Open the next candidate in a private copy, or end the search and return its result."""
    bisection = open_bisect(hub, state)
    oid = bisection.next()
    if oid is None:
        end_search(hub, row)
        answer = bisection.result()
        assert answer is not None
        return answer
    copy = hub.workspaces.fork(row, None, from_hex(oid), 1)[0]
    search = BisectSearch(state=state, current=oid, copy=copy.name)
    hub.catalog.put_row(BISECT_ROW_KIND, row.name, encode(search))
    return search


def record_verdict(
    hub: Hub, row: WorkspaceRow, verdict: BisectVerdict, oid: str | None
) -> BisectSearch | BisectResult:
    """Record a verdict on the current or a named commit, and continue."""
    search = load_search(hub, row)
    bisection = open_bisect(hub, search.state)
    {"good": bisection.good, "bad": bisection.bad, "skip": bisection.skip}[verdict](
        oid or search.current
    )
    drop_copy(hub, search.copy)
    return continue_search(hub, row, bisection.state)


def end_search(hub: Hub, row: WorkspaceRow) -> None:
    """Delete the search and its copy. No error if there is none."""
    if is_running(hub, row):
        drop_copy(hub, load_search(hub, row).copy)
        hub.catalog.drop_row(BISECT_ROW_KIND, row.name)


def drop_copy(hub: Hub, copy: str) -> None:
    """Delete a private copy and its branch. The user may have dropped the copy already."""
    if copy and hub.workspaces.table.get(copy):
        hub.drop(copy, discard=True)
    if copy and hub.refs.get(copy):
        hub.refs.delete(copy, actor=hub.store.author, detail="bisect")


@contextmanager
def private_checkout(hub: Hub, row: WorkspaceRow, oid: str) -> Iterator[Workspace]:
    """Check out a commit in a private workspace that is deleted afterwards."""
    copy = hub.workspaces.fork(row, None, from_hex(oid), 1)[0]
    try:
        yield copy
    finally:
        drop_copy(hub, copy.name)


def search_with_command(
    hub: Hub,
    row: WorkspaceRow,
    state: BisectState,
    *,
    command: Command,
    timeout: float | None,
) -> Iterator[BisectStep | BisectResult]:
    """Run the command on each candidate. The last item yielded is the result."""
    bisection = open_bisect(hub, state)

    def test(oid: str) -> BisectStep:
        with private_checkout(hub, row, oid) as copy:
            result = copy.run(command, timeout=timeout)
        return BisectStep(oid, _verdict(result, oid), result.exit_code, result.duration)

    if test(state.bad).verdict == "good":  # otherwise the search would find a wrong commit
        raise Invalid(
            "not_bad",
            f"{state.bad[:12]} is not bad, the command succeeds there: give --bad another commit",
        )
    while (oid := bisection.next()) is not None:
        step = test(oid)
        verdict = step.verdict
        {"good": bisection.good, "bad": bisection.bad, "skip": bisection.skip}[verdict](oid)
        yield step
    answer = bisection.result()
    assert answer is not None
    yield answer


def _verdict(result: Result, oid: str) -> BisectVerdict:
    """Map an exit code to a verdict: 0 is good, 125 is skip, 1 to 124 is bad.

    A higher code means that the command itself failed, and raises Invalid("bad_command").
    """
    code = result.exit_code
    if code == 0:
        return "good"
    if code == EXIT_SKIP:
        return "skip"
    if code in EXIT_CANNOT_RUN or (code >= EXIT_SIGNAL_BASE and not result.timed_out):
        raise Invalid(
            "bad_command",
            f"on {oid[:12]} the command ended with {code} ({result.stderr.strip()[-200:]}): let it "
            "end with 0 for good, 125 for cannot say, another number up to 124 for bad",
            oid=oid,
            exit_code=code,
        )
    return "bad"


bisect.add_command(start)
bisect.add_command(good)
bisect.add_command(bad)
bisect.add_command(skip)
bisect.add_command(run)
bisect.add_command(reset)
