"""Command swarm: many attempts from one commit, each in its own fork; the best is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, group, verb
from ortet.cli.session_args import (
    find_session,
    open_session,
    parse_limits,
    read_session,
    session_option,
)
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from ortet.sessions.session import Session
    from ortet.sessions.swarm_api import Attempt, SwarmResult

_MAX_ROWS = 12
"""The maximum number of attempts shown: first the running ones, then the best."""

_BAR_WIDTH = 24


@group
def swarm() -> None:
    """Make many attempts at once and keep the best.

    \b
    Example:
      ortet tag golden
      ortet swarm run --from golden -n 16 --score './score.sh' -- ./try.sh
      ortet swarm show swarm-1
    """


@verb()
@session_option
@click.option(
    "--from", "at", metavar="REF", help="The commit to begin at; by default the present state."
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    metavar="N",
    help="The number of attempts.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="The number of attempts that run at once.",
)
@click.option(
    "--score",
    metavar="CMD",
    help="The command that scores a fork: by the number it prints last, else by its exit code, "
    "where 0 is best.",
)
@click.option(
    "--keep",
    default="1",
    show_default=True,
    metavar="K",
    help="1: adopt the best; more: leave the K best as forks; 0: none; merge or merge:K.",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="The time limit of each attempt.")
@click.option(
    "--budget",
    "limits",
    multiple=True,
    metavar="NAME=N",
    help="The budget of each attempt, such as usd=0.5.",
)
@click.option(
    "--stop-at", type=float, metavar="SCORE", help="End all attempts when one has this score."
)
@click.option("--harvest", is_flag=True, help="Also learn the facts of the other attempts.")
@click.option("--keep-losers", is_flag=True, help="Keep the other forks too.")
@click.option(
    "--name", metavar="NAME", help="The name of the swarm, to continue it after an interruption."
)
@click.option(
    "--on", metavar="CLUSTER", help="Run on the nodes of a cluster: ray, or ray://HOST:PORT."
)
@click.option(
    "--need",
    "needs",
    multiple=True,
    metavar="NAME=N",
    help="A resource that an attempt needs, such as cpu=2; may be repeated.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    call: CliCall,
    command: tuple[str, ...],
    *,
    session: str | None,
    at: str | None,
    count: int,
    parallel: int,
    score: str | None,
    keep: str,
    timeout: float | None,
    limits: tuple[str, ...],
    stop_at: float | None,
    harvest: bool,
    keep_losers: bool,
    name: str | None,
    on: str | None,
    needs: tuple[str, ...],
) -> None:
    """Run a command in N forks, score them, and adopt the best.

    The variables of each fork have ORTET_ATTEMPT, from 0, and ORTET_SESSION. One word runs in sh,
    several words are executed directly. A swarm that was killed continues when it is run again with
    the same --name. With --json: one line for each attempt that has ended, then one for all.

    \b
    Example:
      ortet swarm run -n 16 --parallel 4 --score 'pytest -q' -- ./try.sh
      ortet swarm run --name fix -n 8 -- 'python solve.py --seed $ORTET_ATTEMPT'
      ortet swarm run --name fix
    """
    if not command and name is None:
        raise Invalid("bad_usage", "give a command behind --, or the --name of a swarm to go on")
    options: dict[str, Any] = {"parallel": parallel, "timeout": timeout, "stop_when": stop_at}
    options.update(on=on, needs=parse_limits(needs, "--need") or None)
    if command:
        options.update(
            task=command[0] if len(command) == 1 else list(command),
            n=count,
            score=score,
            keep=int(keep) if keep.isdecimal() else keep,
            budget={name: limit or 0.0 for name, limit in parse_limits(limits, "--budget").items()},
            harvest=harvest,
            losers="keep" if keep_losers else "drop",
            at=at,
        )
    live = call.output.can_draw
    table = SwarmTable(sys.stderr, lambda one: _print_attempt(call, one, live=live), live=live)
    try:
        result = _find_or_begin_session(call, session).swarm(name=name, progress=table, **options)
    finally:
        table.close()
    call.output.emit(
        _data(result), [*(attempt_lines(result) if live else []), *_result_lines(result, keep)]
    )
    if not result.kept and keep != "0" and command:
        raise Conflict(
            "nothing_kept",
            f"no attempt has a score: `ortet swarm show {result.name}` says why of each",
        )


@verb()
@session_option
def ls(call: CliCall, session: str | None) -> None:
    """List the swarms of a session.

    \b
    Example:
      ortet swarm ls
    """
    swarms = call.hub.swarms.all(read_session(call, session))
    rows = [(one.name, one.state, str(len(one.attempts)), _result_text(one)) for one in swarms]
    call.output.emit([_data(one) for one in swarms], call.output.table(rows))


@verb()
@session_option
@click.argument("name", required=False)
def show(call: CliCall, name: str | None, session: str | None) -> None:
    """Show the attempts of a swarm. A * marks those that were kept.

    Without a name, it is the newest swarm.

    \b
    Example:
      ortet swarm show
      ortet swarm show swarm-1
    """
    if name is None:
        known = call.hub.swarms.all(read_session(call, session))
        if not known:
            raise NotFound("no_swarm", "there is no swarm here: `ortet swarm run` begins one")
        name = known[-1].name
    result = call.hub.swarms.get(read_session(call, session), name)
    call.output.emit(_data(result), attempt_lines(result))


def _find_or_begin_session(call: CliCall, word: str | None) -> Session:
    """Open the session that is meant. Without one, begin a session named like the workspace."""
    try:
        find_session(call, word)
    except NotFound:
        if word is not None:
            raise
        row = call.row()
        return call.hub.session(row.name, workspace=row.directory, environment="asked")
    return open_session(call, word)


def _print_attempt(call: CliCall, attempt: Attempt, *, live: bool) -> None:
    if call.output.json:
        sys.stdout.write(output.to_json(output.fields(attempt)) + "\n")
        sys.stdout.flush()
    elif not live:
        call.output.emit(None, [attempt_line(attempt)])


def _data(result: SwarmResult) -> dict[str, Any]:
    return output.fields(result)


def _result_lines(result: SwarmResult, keep: str) -> list[str]:
    head = f"swarm {result.name}: {_result_text(result)}"
    stay = ", ".join(one.session for one in result.winners) if keep not in ("0", "1") else ""
    return [head, f"they stay as {stay}"] if stay and not keep.startswith("merge") else [head]


def _result_text(result: SwarmResult) -> str:
    """Describe the result of a swarm in words."""
    counted = {state: result.count(state) for state in ("done", "failed", "stopped")}
    text = ", ".join(f"{n} {state}" for state, n in counted.items() if n)
    if result.kept:
        best = result.winners[0]
        text += f"; kept {', '.join(map(str, result.kept))}, best score {best.score:g}"
    return text or "nothing has ended yet"


# The progress of a running swarm


class SwarmTable:
    """Called with each new state of a swarm."""

    def __init__(self, stream: IO[str], on_ended: Callable[[Attempt], None], *, live: bool) -> None:
        self._stream = stream
        self._on_ended = on_ended
        self._live = live
        self._reported: set[int] = set()
        self._drawn_lines = 0

    def __call__(self, result: SwarmResult) -> None:
        for attempt in result.attempts:
            if attempt.state not in ("waiting", "running") and attempt.i not in self._reported:
                self._reported.add(attempt.i)
                self._on_ended(attempt)
        if self._live:
            self._draw(_table_lines(result))

    def close(self) -> None:
        """Remove the table from the terminal."""
        if self._live:
            self._draw([])

    def _draw(self, lines: list[str]) -> None:
        try:
            width = os.get_terminal_size(self._stream.fileno()).columns or 80
        except OSError:
            width = 80
        up = f"\x1b[{self._drawn_lines}F" if self._drawn_lines else ""
        body = "".join(f"{line[: width - 1]}\x1b[K\n" for line in lines)
        self._stream.write(f"{up}{body}\x1b[J")
        self._stream.flush()
        self._drawn_lines = len(lines)


def _table_lines(result: SwarmResult) -> list[str]:
    total = len(result.attempts)
    over = total - result.count("waiting") - result.count("running")
    bar = "#" * (_BAR_WIDTH * over // total) + "-" * (_BAR_WIDTH - _BAR_WIDTH * over // total)
    best = f"  best {result.best.score:g} (attempt {result.best.i})" if result.best else ""
    failed = f"  {result.count('failed')} failed" if result.count("failed") else ""
    head = f"swarm {result.name} [{bar}] {over}/{total}{best}{failed}"
    running = [one for one in result.attempts if one.state == "running"]
    return [head, *(attempt_line(one) for one in [*running, *result.ranked][:_MAX_ROWS])]


def attempt_line(attempt: Attempt) -> str:
    """Return one attempt as a line."""
    score = "" if attempt.score is None else f"{attempt.score:g}"
    took = f"{attempt.seconds:.1f} s" if attempt.seconds else ""
    mark = "*" if attempt.kept else " "
    error = f"  {attempt.reason}: {output.title(attempt.error)}" if attempt.reason else ""
    return f"{mark} {attempt.i:>4}  {attempt.state:<8}{score:>10}  {took:>8}{error}".rstrip()


def attempt_lines(result: SwarmResult) -> list[str]:
    """Return all attempts as lines."""
    return [attempt_line(one) for one in result.attempts]


swarm.add_command(run)
swarm.add_command(ls)
swarm.add_command(show)
