"""Commands replay, whatif, diff-runs: repeat a run, change one event of it, compare two runs."""

from __future__ import annotations

import os
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, as_text, verb
from ortet.cli.session_args import event_data, find_session, parse_value, read_session, row_data
from ortet.cli.terminal import output
from ortet.errors import Diverged, Invalid, NotFound

if TYPE_CHECKING:
    from ortet.sessions.history.replay import ReplayReport
    from ortet.sessions.table import SessionRow

_WIDTH = 80


@verb()
@click.argument("session")
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1)
def replay(call: CliCall, session: str, command: tuple[str, ...]) -> None:
    """Show the steps of a run, or run its program against them.

    With a COMMAND, the program runs. When it opens the session by name, each action returns the
    recorded result: no action is performed, and nothing is written. Pure actions run. The exit code
    is 5, with both steps side by side, if the program takes another step than recorded or ends too
    early. It is 0 if the program ends where it waited for an approval.

    \b
    Example:
      ortet replay fix-42
      ortet replay fix-42 -- python3 agent.py
    """
    row = find_session(call, session)
    if command:
        _run(call, row, command)
        return
    from ortet.integrations._shared.actions import steps_of

    steps = [output.fields(one) for one in steps_of(call.hub.get(row.id).events())]
    call.output.emit(steps, (_step_line(step) for step in steps))


def _step_line(step: dict[str, Any]) -> str:
    kind = "act" if step["kind"] == "begun" else step["kind"]
    line = f"{step['seq']:>5}  {kind:<8}  {_gist(step['kind'], step['data'])}"
    if step["kind"] != "begun":
        return line
    got = step["error"] if step["error"] else step["outcome"]
    shown = "" if got is None else f": {got}"
    return f"{line}\n{'':>17}{step['state'] or 'not ended'}{output.title(shown)}"


def _gist(kind: str, data: dict[str, Any]) -> str:
    from ortet.journal.replay.run_diff import short_text
    from ortet.sessions.actions.actions import format_call

    if kind == "begun":
        value = {"args": data.get("args", []), "kwargs": data.get("kwargs", {})}
        return output.title(format_call(str(data.get("name")), value))
    return output.title(short_text(data))


def _run(call: CliCall, row: SessionRow, command: tuple[str, ...]) -> None:
    import subprocess
    import tempfile

    from ortet.sessions.history.replay import read as read_report
    from ortet.store.context import REPLAY_REPORT_VARIABLE, REPLAY_VARIABLE

    with tempfile.TemporaryDirectory(prefix="ortet-replay-") as directory:
        report = Path(directory) / "report"
        variables = {
            "ORTET_URL": call.hub.url,
            REPLAY_VARIABLE: row.id,
            REPLAY_REPORT_VARIABLE: str(report),
        }
        silent = call.output.json or call.output.quiet
        try:
            done = subprocess.run(
                command,
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL if silent else None,
                check=False,
            )
        except FileNotFoundError:
            raise NotFound("no_command", f"there is no command {command[0]!r}") from None
        played = read_report(report)
    if played is None:
        raise Invalid(
            "not_replayed",
            f"the command (exit code {done.returncode}) did not open session {row.name!r} of agent "
            f"{row.agent!r}, or did not let go of it: use `with ortet.open() as hub` and "
            "hub.session(name) in it",
            exit_code=done.returncode,
        )
    if played.got is not None or played.expected is not None:
        raise _diverged_error(row, played, done.returncode)
    data = {"session": row.id, "same": True, "upto": played.upto, "exit_code": done.returncode}
    line = f"{row.name}: all {played.upto} events re-enacted, nothing done"
    if played.waits is None:
        call.output.emit(data, [line])
        call.output.exit_code = done.returncode
    else:  # the recorded run waited for an approval: ignore the exit code
        what, id_ = played.waits["what"], played.waits["id"]
        call.output.emit(
            {**data, "waits": played.waits}, [f"{line}: {what} waits for approval {id_}"]
        )


def _diverged_error(row: SessionRow, report: ReplayReport, exit_code: int) -> Diverged:
    expected, actual = report.expected, report.got
    left = _step_details(expected) if expected else ["nothing more was recorded"]
    right = _step_details(actual) if actual else [f"the program ended, exit code {exit_code}"]
    half = (_WIDTH - 3) // 2
    seq = expected["seq"] if expected else report.upto + 1
    lines = [f"the replay of {row.name} left the record at event {seq}"]
    lines.append(f"{'then':{half}}   now")
    for left_line, right_line in zip_longest(_wrap(left, half), _wrap(right, half), fillvalue=""):
        mark = " " if left_line == right_line else "|"
        lines.append(f"{left_line:{half}} {mark} {right_line}".rstrip())
    lines.append("change the program back, or go on from there: hub.session(…, replay='live')")
    return Diverged(
        "diverged", "\n".join(lines), seq=seq, expected=expected, got=actual, exit_code=exit_code
    )


def _step_details(step: dict[str, Any]) -> list[str]:
    """Return a step as lines, one value on each line."""
    data = step["data"]
    if step["kind"] == "begun":
        args = [repr(arg) for arg in data.get("args", ())]
        args += [f"{key}={value!r}" for key, value in data.get("kwargs", {}).items()]
        return [f"act {data.get('name')}", *(f"  {arg}" for arg in args)]
    return [step["kind"], *(f"  {key}: {value}" for key, value in data.items() if key != "id")]


def _wrap(lines: list[str], width: int) -> list[str]:
    import textwrap

    safe = (output.safe(line) for line in lines)
    return [part for line in safe for part in textwrap.wrap(line, width) or [""]]


@verb()
@click.argument("session")
@click.argument("at", metavar="EVENT", type=click.IntRange(min=1))
@click.option("--message", metavar="TEXT", help="The new message; - reads standard input.")
@click.option("--result", metavar="JSON", help="The new result; text that is not JSON is a string.")
@click.option("--error", metavar="TEXT", help="The new error of the action.")
@click.option("--no-files", is_flag=True, help="Fork the state without files.")
def whatif(
    call: CliCall,
    session: str,
    at: int,
    *,
    message: str | None,
    result: str | None,
    error: str | None,
    no_files: bool,
) -> None:
    """Fork a session with one message or result changed.

    EVENT is its number in the journal. The session itself is not changed. The fork is paused, and
    can be opened by name. Its files are those of the last commit before the event.

    \b
    Example:
      ortet journal fix-42
      ortet whatif fix-42 7 --result '{"hits": []}'
      ortet whatif fix-42 2 --message "the logout test fails"
    """
    change: dict[str, Any] = {}
    if message is not None:
        change["message"] = sys.stdin.read() if message == "-" else as_text(message)
    if result is not None:
        change["result"] = parse_value(result)
    if error is not None:
        change["error"] = as_text(error)
    if len(change) != 1:
        raise Invalid("bad_usage", "no change is given: give one of --message, --result, --error")
    row = find_session(call, session)
    fork = call.hub.whatif(row.id, at, machine=not no_files, **change)
    fork.pause()
    fork_row = call.hub.get(fork.id).internals.row
    call.output.emit(
        {**row_data(fork_row), "from": row.id, "at": at},
        [
            f"session {fork_row.name}: {row.name} up to event {at}, which is changed",
            f"go on with it by name; `ortet diff-runs {row.name} {fork_row.name}` compares them",
        ],
    )


@verb("diff-runs")
@click.argument("left")
@click.argument("right")
@click.option(
    "--around",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="The number of steps to show before and after the difference.",
)
def diff_runs(call: CliCall, left: str, right: str, *, around: int) -> None:
    """Show where two sessions differ, then both side by side.

    Times and ids are not compared. The exit code is 0 even if the sessions differ.

    \b
    Example:
      ortet diff-runs fix-42 fix-42/1
    """
    from ortet.journal.replay.run_diff import render as side_by_side

    first, second = read_session(call, left), read_session(call, right)
    comparison = call.hub.diff_runs(first, second)
    data = {
        "left": first.id,
        "right": second.id,
        "same": comparison.first is None,
        "seq": comparison.seq or None,
        "pairs": [
            {
                "same": pair.same,
                "left": event_data(pair.left) if pair.left else None,
                "right": event_data(pair.right) if pair.right else None,
            }
            for pair in comparison.pairs
        ],
    }
    text = side_by_side(comparison, width=_columns(), context_lines=around)
    call.output.emit(data, map(output.safe, text.splitlines()))


def _columns() -> int:
    import shutil

    return shutil.get_terminal_size((_WIDTH, 24)).columns
