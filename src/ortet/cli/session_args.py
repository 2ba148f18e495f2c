"""Finds the session that a command means, and formats sessions and events."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ortet.cli.call import as_text
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid, NotFound

if TYPE_CHECKING:
    from ortet.cli.call import CliCall
    from ortet.journal.events import Event
    from ortet.journal.state.records import Effect
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.session import Session
    from ortet.sessions.table import SessionRow

_MIN_ID_DIGITS = 4
_SHOWN_ID_DIGITS = 8
"""How many of the last digits of an id are shown. The first digits are a time and change slowly."""

session_argument = click.argument("session", metavar="[SESSION]", required=False)
session_option = click.option(
    "-s",
    "--session",
    "session",
    metavar="SESSION",
    help="The name or id of the session; by default the session of this directory.",
)

scope_option = click.option(
    "--scope", metavar="SCOPE", help="session, agent, user:NAME or project:NAME."
)
agent_option = click.option("--agent", metavar="NAME", help="Search all sessions of this agent.")
all_option = click.option("--all", "everything", is_flag=True, help="Search all sessions.")

_SESSION_META_KEY = "ortet.session"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _store_option(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    ctx.meta[_SESSION_META_KEY] = value


def _merge_option(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    other: str | None = ctx.meta.get(_SESSION_META_KEY)
    if None not in (value, other) and value != other:
        raise Invalid("two_sessions", f"{value} or {other}? give one session")
    return other if value is None else value


def session_argument_or_option(command: _Command) -> _Command:
    """Add SESSION as an argument and as the option -s. Other commands have only -s."""
    option = click.option(
        *("-s", "--session", "kept"),
        metavar="SESSION",
        help="The session, as SESSION above.",
        is_eager=True,
        expose_value=False,
        callback=_store_option,
    )
    argument = click.argument(
        "session", metavar="[SESSION]", required=False, callback=_merge_option
    )
    return argument(option(command))


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def find_session(call: CliCall, word: str | None) -> SessionRow:
    """Find a session by name, agent/name, id or first digits of an id.

    Without a word, find the session that works in this directory.
    """
    row = _match_session(call, word)
    call.session_id = row.id
    return row


def _match_session(call: CliCall, word: str | None) -> SessionRow:
    rows = call.hub.sessions()
    if word is None:
        return _session_of_directory(call, rows)
    agent, _, rest = word.partition("/")
    ways = (
        [row for row in rows if row.id == word],
        [row for row in rows if row.name == word],
        [row for row in rows if row.agent == agent and row.name == rest],
        [row for row in rows if len(word) >= _MIN_ID_DIGITS and row.id.startswith(word)],
    )
    for matching in ways:
        if len(matching) == 1:
            return matching[0]
        if matching:
            names = ", ".join(f"{row.agent}/{row.name}" for row in matching[:5])
            raise Conflict("ambiguous", f"{word!r} may be {names}: say which of them")
    raise NotFound("no_session", f"there is no session {word!r}: `ortet session ls` lists them")


def find_or_all(
    call: CliCall, session: str | None, *, agent: str | None, everything: bool
) -> SessionRow | None:
    """Return the session that is meant, or None for all sessions.

    None is also returned if no session was named and none works in this directory.
    """
    if session is not None and (agent is not None or everything):
        raise Invalid("bad_usage", "-s excludes --agent and --all: leave one of them out")
    if agent is not None or everything:
        return None
    try:
        return find_session(call, session)
    except NotFound as error:
        if session is not None or error.kind != "no_session":
            raise
        return None


def _session_of_directory(call: CliCall, rows: list[SessionRow]) -> SessionRow:
    branch = call.branch()
    for row in rows:
        if branch is not None and row.branch == branch:
            return row
    raise NotFound(
        "no_session", "no session works in this directory: name one (`ortet session ls` lists them)"
    )


def session_of_workspace(call: CliCall, name: str | None) -> SessionRow | None:
    """Return the session that works in the named workspace, or in that of this directory."""
    branch = call.row(name).name
    return next((row for row in call.hub.sessions() if row.branch == branch), None)


def read_session(call: CliCall, word: str | None) -> SessionReader:
    """Open a session for reading."""
    return call.hub.get(find_session(call, word).id)


def unsettled_effects(call: CliCall, view: SessionReader) -> list[Effect]:
    """Return effects with an unknown outcome.

    If a process has the session open, effects in progress are not included.
    """
    states = ("unsettled",) if call.hub.is_open(view.id) else ("begun", "unsettled")
    return [effect for effect in view.effects() if effect.state in states]


def open_session(call: CliCall, word: str | None, *, reopen: bool = False) -> Session:
    """Open a session for writing. It is released when the command ends."""
    row = find_session(call, word)
    # A command is short: probe the environment only on request.
    return call.hub.session(row.name, agent=row.agent, environment="asked", reopen=reopen)


def match_id(ids: Iterable[str], word: str) -> str:
    """Return the id that `word` means: a whole id, or at least four of its first or last digits.

    Return "" if there is none. Raises Conflict("ambiguous") if there are several.
    """
    known = set(ids)
    if word in known:
        return word
    matching = {id_ for id_ in known if id_.startswith(word) or id_.endswith(word)}
    if len(word) < _MIN_ID_DIGITS or not matching:
        return ""
    if len(matching) > 1:
        shown = ", ".join(sorted(map(id_suffix, matching))[:5])
        raise Conflict("ambiguous", f"{word!r} may be {shown}: give more digits")
    return matching.pop()


def id_suffix(id_: str) -> str:
    """Return the last digits of an id, as shown to users."""
    return id_[-_SHOWN_ID_DIGITS:]


def confirm(call: CliCall, yes: bool, what: str) -> None:
    """Continue only with --yes or a confirmation at the terminal.

    Raises Invalid("not_confirmed") if nobody can be asked.
    """
    if yes:
        return
    if call.output.json or call.output.quiet or not sys.stdin.isatty():
        raise Invalid("not_confirmed", f"this will {what} for good: repeat it with --yes")
    if not click.confirm(f"this will {what} for good. Go on?", err=True):
        raise click.Abort


def parse_limits(words: Iterable[str], option: str) -> dict[str, float | None]:
    """Parse limits such as usd=5. usd=none removes a limit."""
    limits: dict[str, float | None] = {}
    for word in words:
        name, _, limit = word.partition("=")
        try:
            limits[name] = None if limit == "none" else float(limit)
        except ValueError:
            raise Invalid(
                "bad_budget", f"{option} {word!r}: write a name and a number, as in usd=5"
            ) from None
    return limits


def row_data(row: SessionRow) -> dict[str, Any]:
    """Return a session row for JSON."""
    return {
        "id": row.id,
        "name": row.name,
        "agent": row.agent,
        "status": row.status,
        "created": row.created,
        "branch": row.branch,
        "path": row.path or None,
        "parent": row.parent or None,
    }


def event_data(event: Event) -> dict[str, Any]:
    """Return an event for JSON."""
    return {**output.fields(event), "hash": event.hash.hex(), "refs": _refs(event)}


def _refs(event: Event) -> list[str]:
    return [bytes(oid).hex() for oid, _ in event.refs]


def event_line(event: Event) -> str:
    """Return an event as one line of text."""
    from ortet.hub.governance.audit import audit_line

    line = audit_line(event)
    why = f"  ({output.title(line.why)})" if line.why else ""
    actor = output.safe(line.actor)
    seq = "-" if event.waiting else line.seq
    head = f"{seq:>5}  {output.format_time(line.time)}  {actor}  {line.kind}"
    return f"{head}  {output.title(line.what)}{why}".rstrip()


def read_text(path: str) -> str:
    """Return the text of a file, or of standard input for -."""
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return raw.decode()
    except FileNotFoundError:
        raise NotFound("no_file", f"there is no file {path}: write it first") from None
    except UnicodeDecodeError:
        raise Invalid("not_text", f"{path} is not UTF-8 text: give a file that is") from None


def text_or_stdin(text: str | None) -> str:
    """Return the text of an argument, or of standard input if it is missing or -."""
    content = read_text("-") if text in (None, "-") else as_text(text)
    if not content:
        raise Invalid("bad_usage", "the text is empty: give TEXT, or write it to standard input")
    return content


def parse_value(text: str) -> Any:
    """Parse JSON. Return the text itself if it is not JSON."""
    import json

    with suppress(ValueError):
        return json.loads(text)
    return text
