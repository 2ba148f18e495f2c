"""Command completion: print the script for a shell. Hidden command values: list session values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.completion.engine import SHELLS, script
from ortet.cli.session_args import find_session, id_suffix, session_option
from ortet.cli.terminal import output

if TYPE_CHECKING:
    from ortet.sessions.reader import SessionReader


@verb()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(call: CliCall, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Example:
      eval "$(ortet completion bash)"        in ~/.bashrc
      eval "$(ortet completion zsh)"         in ~/.zshrc, behind compinit
      ortet completion fish | source         in ~/.config/fish/config.fish
    """
    text = script(shell)
    call.output.emit({"shell": shell, "script": text}, text.splitlines())


@verb(hidden=True)
@click.argument("kind")
@session_option
def values(call: CliCall, kind: str, *, session: str | None) -> None:
    """Print completion candidates of a session by kind. The host agent answers sooner."""
    view = call.hub.get(find_session(call, session).id)
    candidates = dict(_VALUES[kind](view))
    call.output.emit(
        candidates, [f"{value}\t{output.title(text)}" for value, text in candidates.items()]
    )


def _facts(view: SessionReader) -> Iterator[tuple[str, str]]:
    yield from ((id_suffix(fact.id), fact.text) for fact in reversed(view.facts()))


def _artifacts(view: SessionReader) -> Iterator[tuple[str, str]]:
    yield from ((one.name, one.kind) for one in view.artifacts())


def _effects(view: SessionReader) -> Iterator[tuple[str, str]]:
    yield from ((id_suffix(one.id), f"{one.name}, {one.state}") for one in reversed(view.effects()))


def _approvals(view: SessionReader) -> Iterator[tuple[str, str]]:
    waiting = (one for one in view.actions.approvals() if one.state == "asked")
    yield from ((id_suffix(one.id), one.what) for one in waiting)


_VALUES = {
    "fact": _facts,
    "artifact": _artifacts,
    "effect": _effects,
    "approval": _approvals,
}
