"""Command environment: the environment of a session that is not restored with its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.session_args import open_session, read_session, session_argument
from ortet.cli.terminal import output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ortet.journal.environment import Environment


@verb()
@session_argument
@click.option("--record", is_flag=True, help="Record the present environment.")
@click.option("--compare", is_flag=True, help="Compare the present environment with a commit.")
@click.option("--to", "ref", metavar="REF", help="With --compare: the commit; by default the head.")
def environment(
    call: CliCall, session: str | None, *, record: bool, compare: bool, ref: str | None
) -> None:
    """Show the recorded environment of a session, or its differences.

    The environment has packages, variables, hosts and the repository.

    \b
    Example:
      ortet environment fix-42
      ortet environment fix-42 --record
      ortet environment fix-42 --compare --to v1
    """
    if record and (compare or ref):
        raise click.UsageError("--record looks at now: leave --compare and --to out")
    if compare or ref:
        compared = open_session(call, session).environment(compare=ref or True)
        lines = [output.safe(str(one)) for one in compared] or ["nothing differs"]
        call.output.emit([output.fields(one) for one in compared], lines)
        return
    current = (
        open_session(call, session).environment()
        if record
        else read_session(call, session).environment()
    )
    if current is None:
        call.output.emit(None, ["nobody has looked yet: --record does"])
    else:
        call.output.emit(_data(current), map(output.safe, _lines(current)))


def _data(environment: Environment) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(environment)
    return data


def _lines(environment: Environment) -> Iterator[str]:
    from ortet.journal.environment import environment_lines

    python, debian = environment.python, environment.debian
    if python is not None:
        yield f"python: {python.version or 'version not known'}, {len(python.packages)} packages"
        yield from (f"  {name}=={version}" for name, version in python.packages.items())
    if environment.npm:
        yield f"npm lock: {environment.npm[:12]}"
    if debian is not None:
        yield f"debian: {debian.count} packages ({debian.digest[:12]})"
    yield from (line for line, _ in environment_lines(environment, environment))
    yield from (f"resolver: {line}" for line in environment.resolver)
