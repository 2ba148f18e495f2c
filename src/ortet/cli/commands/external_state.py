"""Commands collab, window, token, vault: external state that a session records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, as_text, group, verb
from ortet.cli.session_args import event_data, open_session, read_session, session_option
from ortet.cli.terminal import output
from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.journal.state.records import Collaboration, RateLimitWindow


@group
def collab() -> None:
    """Record and list collaborations: branches, pull requests, drafts.

    \b
    Example:
      ortet collab set pr-7 -s fix-42 --kind pull_request --link https://host/pr/7 --status done
      ortet collab ls -s fix-42
    """


@verb("ls")
@session_option
def collab_ls(call: CliCall, session: str | None) -> None:
    """List collaborations with their status: draft, done or withdrawn.

    \b
    Example:
      ortet collab ls -s fix-42
    """
    rows = read_session(call, session).external.collaborations()
    call.output.emit(
        [output.fields(one) for one in rows], output.table(map(_collaboration_cells, rows))
    )


def _collaboration_cells(collaboration: Collaboration) -> tuple[str, ...]:
    return (
        output.safe(collaboration.name),
        collaboration.status,
        output.safe(collaboration.kind),
        output.format_time(collaboration.time),
        output.safe(collaboration.link),
        output.title(collaboration.text),
    )


@verb("set")
@click.argument("name")
@click.option("--kind", metavar="KIND", help="The kind, such as branch, pull_request or comment.")
@click.option("--link", metavar="URL", help="The address where others find it.")
@click.option("--status", metavar="STATUS", help="The status: draft, done or withdrawn.")
@click.option("--text", metavar="TEXT", help="The text; - reads standard input.")
@click.option("--effect", metavar="ID", help="The id of the action that made it.")
@session_option
def collab_set(
    call: CliCall,
    name: str,
    *,
    kind: str | None,
    link: str | None,
    status: str | None,
    text: str | None,
    effect: str | None,
    session: str | None,
) -> None:
    """Record a collaboration, or change its record.

    \b
    Example:
      ortet collab set review-3 -s fix-42 --kind comment --text "the lock is never"
      ortet collab set review-3 -s fix-42 --status done
    """
    content = sys.stdin.read() if text == "-" else text
    values = [None if word is None else as_text(word) for word in (kind, link, content)]
    record = open_session(call, session).external.collaborate(
        as_text(name), kind=values[0], link=values[1], text=values[2], status=status, effect=effect
    )
    call.output.emit(output.fields(record), [f"{output.safe(record.name)}: {record.status}"])


@group
def window() -> None:
    """Record and list the rate limits of services.

    \b
    Example:
      ortet window set github -s fix-42 --remaining 12 --limit 5000 --reset 1793000000
      ortet window ls -s fix-42
    """


@verb("ls")
@session_option
def window_ls(call: CliCall, session: str | None) -> None:
    """List the known rate limits, of all sessions of the same agent.

    \b
    Example:
      ortet window ls -s fix-42
    """
    windows = read_session(call, session).external.windows()
    call.output.emit(
        [output.fields(one) for one in windows], output.table(map(_window_cells, windows))
    )


def _window_cells(rate_window: RateLimitWindow) -> tuple[str, ...]:
    remaining = "full" if rate_window.full else f"{rate_window.remaining:g} left"
    of = f"of {rate_window.limit:g}" if rate_window.limit is not None else ""
    until = "" if rate_window.full else f"until {output.format_time(rate_window.reset)}"
    return (output.safe(rate_window.service), remaining, of, until)


@verb("set")
@click.argument("service")
@click.option(
    "--remaining", type=float, required=True, metavar="N", help="The number of calls that are left."
)
@click.option(
    "--reset",
    type=float,
    required=True,
    metavar="TIME",
    help="The time of the reset, in seconds since 1970.",
)
@click.option("--limit", type=float, metavar="N", help="The number of calls of a whole window.")
@session_option
def window_set(
    call: CliCall,
    service: str,
    *,
    remaining: float,
    reset: float,
    limit: float | None,
    session: str | None,
) -> None:
    """Record the rate limit of a service.

    \b
    Example:
      ortet window set github -s fix-42 --remaining 12 --reset 1793000000
    """
    opened = open_session(call, session)
    event = opened.external.window(as_text(service), remaining=remaining, reset=reset, limit=limit)
    call.output.emit(event_data(event))


@group
def token() -> None:
    """Record which secret of the vault is for which service, and print it.

    \b
    Example:
      ortet token set github github-ci -s fix-42
      GH_TOKEN=$(ortet token get github -s fix-42)
    """


@verb("ls")
@session_option
def token_ls(call: CliCall, session: str | None) -> None:
    """List services and the names of their secrets in the vault.

    \b
    Example:
      ortet token ls -s fix-42
    """
    tokens = read_session(call, session).external.tokens()
    lines = output.table((output.safe(one.service), one.vault) for one in tokens)
    call.output.emit([output.fields(one) for one in tokens], lines)


@verb("set")
@click.argument("service")
@click.argument("name")
@session_option
def token_set(call: CliCall, service: str, name: str, *, session: str | None) -> None:
    """Record that the token for SERVICE is NAME in the vault.

    \b
    Example:
      ortet token set github github-ci -s fix-42
    """
    call.output.emit(event_data(open_session(call, session).external.token(as_text(service), name)))


@verb("get")
@click.argument("service")
@session_option
def token_get(call: CliCall, service: str, *, session: str | None) -> None:
    """Print the token for a service from the vault.

    \b
    Example:
      ortet token get github -s fix-42
    """
    value = str(read_session(call, session).external.token(as_text(service)))
    call.output.emit({"service": service, "token": value}, [value])


@group
def vault() -> None:
    """Store secrets encrypted and outside of every commit.

    The key is $ORTET_VAULT_KEY (64 hexadecimal digits), or a key that is made in your settings
    directory.

    \b
    Example:
      ortet vault put github-ci < token.txt
      ortet vault ls
    """


@verb("put")
@click.argument("name")
@click.argument("more", nargs=-1, metavar="< FILE")
def vault_put(call: CliCall, name: str, more: tuple[str, ...]) -> None:
    """Store standard input as a secret, without the newline at its end.

    \b
    Example:
      ortet vault put github-ci < token.txt
    """
    value = read_secret(more)
    call.open_hub(create=True).vault.put(name, value)
    call.output.emit({"name": name}, [f"kept {name}"])


def read_secret(arguments: tuple[str, ...]) -> str:
    """Return a secret from a prompt or from standard input.

    `arguments` are refused: other users can see the arguments of a process.
    """
    if arguments:  # do not print the secret
        raise Invalid(
            "bad_usage",
            "arguments can be seen by others: give the secret on standard input, and change this "
            "one",
        )
    if sys.stdin.isatty():
        return str(click.prompt("secret", hide_input=True, err=True))
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError:
        raise Invalid("bad_value", "standard input is not UTF-8 text: give text") from None


@verb("ls")
def vault_ls(call: CliCall) -> None:
    """List the names of secrets.

    \b
    Example:
      ortet vault ls
    """
    names = call.hub.vault.names()
    call.output.emit(names, names)


@verb("rm")
@click.argument("name")
def vault_rm(call: CliCall, name: str) -> None:
    """Delete a secret.

    \b
    Example:
      ortet vault rm github-ci
    """
    call.hub.vault.forget(name)
    call.output.emit({"removed": name}, [f"removed {name}"])


@verb("rotate")
def vault_rotate(call: CliCall) -> None:
    """Encrypt every secret again with another key.

    With $ORTET_VAULT_KEY, set it to NEW,OLD first, and to NEW afterwards.

    \b
    Example:
      ortet vault rotate
    """
    count = call.hub.vault.rotate()
    call.output.emit({"sealed": count}, [f"sealed {output.plural(count, 'secret')} anew"])


for _group, _commands in (
    (collab, (collab_ls, collab_set)),
    (window, (window_ls, window_set)),
    (token, (token_ls, token_set, token_get)),
    (vault, (vault_put, vault_ls, vault_rm, vault_rotate)),
):
    for _command in _commands:
        _group.add_command(_command)
