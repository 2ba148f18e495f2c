"""Commands turn and carry: sessions that no process keeps open between two messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.session_args import (
    read_session,
    read_text,
    row_data,
    session_argument,
    text_or_stdin,
)
from ortet.cli.terminal import output as render
from ortet.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from ortet.sessions.session import Session


@verb()
@click.argument("name")
@click.argument("text", required=False)
@click.option(
    "--agent",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The agent that the session belongs to.",
)
@click.option("--role", default="user", show_default=True, help="The role of the speaker.")
@click.option(
    "--reply", metavar="COMMAND", help="The command, run by sh, whose output is the answer."
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=8000,
    show_default=True,
    metavar="N",
    help="The approximate maximum number of tokens that the command gets.",
)
def turn(
    call: CliCall,
    name: str,
    text: str | None,
    *,
    agent: str,
    role: str,
    reply: str | None,
    tokens: int,
) -> None:
    """Record one turn of a conversation, with the answer of a command.

    The session is opened by name, or begun, and released at the end. Without TEXT, or for -,
    standard input is the message. The COMMAND gets the newest messages that fit, after a summary if
    there is one, as one JSON object on its standard input: session, goal, messages. If it fails,
    the recorded messages stay.

    \b
    Example:
      ortet turn chat "hello" --reply "python3 bot.py"
    """
    message = text_or_stdin(text)
    hub = call.open_hub(create=True)
    answer = None if reply is None else lambda session: _run_reply_command(session, reply, tokens)
    talk = hub.turn(name, message, role=role, agent=agent, reply=answer)
    lines = render.safe(talk[-1].content, keep="\n").splitlines() if reply is not None else []
    call.output.emit([render.fields(one) for one in talk], lines)


def _run_reply_command(session: Session, command: str, tokens: int) -> str:
    import subprocess

    context = session.context(tokens=tokens)
    request = {
        "session": session.id,
        "goal": session.goal,
        "messages": [{"role": one.role, "content": one.content} for one in context],
    }
    done = subprocess.run(
        ["sh", "-c", command],
        input=render.to_json(request).encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise Unavailable(
            "reply_failed",
            f"the command for the reply ended with {done.returncode}: what was said is kept; put "
            "it right, then answer with `ortet say --role assistant`",
            exit_code=done.returncode,
        )
    return done.stdout.decode("utf-8", "replace").rstrip("\n")


@verb()
@session_argument
@click.option("-o", "--output", metavar="FILE", help="Write to this file.")
@click.option(
    "--check",
    "source",
    metavar="FILE",
    help="Check whether a session can continue from this record.",
)
def carry(call: CliCall, session: str | None, *, output: str | None, source: str | None) -> None:
    """Print a session as a carry token, signed text for a client.

    With --check, exit code 6 means that the text was changed, and 5 that the session has continued
    since.

    \b
    Example:
      ortet carry chat -o ticket
      ortet carry --check ticket
    """
    if source is not None:
        if session is not None or output is not None:
            raise Invalid("bad_usage", "--check reads a record: leave SESSION and -o out")
        opened = call.hub.transfer.from_carry(read_text(source).strip())
        opened.pause()
        row = call.hub.get(opened.id).internals.row
        call.output.emit(row_data(row), [f"{row.name} can go on"])
        return
    view = read_session(call, session)
    text = view.carry()
    if output is None:
        call.output.emit({"session": view.id, "carry": text}, [text])
        return
    Path(output).write_text(text + "\n", encoding="utf-8")
    path = str(Path(output).absolute())
    call.output.emit({"session": view.id, "path": path}, [f"{view.name} -> {render.safe(output)}"])
