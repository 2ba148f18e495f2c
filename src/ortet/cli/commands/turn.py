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
@click.option("--agent", default="default", show_default=True, metavar="NAME", help="Whose it is.")
@click.option("--role", default="user", show_default=True, help="Who speaks.")
@click.option("--reply", metavar="COMMAND", help="Its output is the answer; sh runs it.")
@click.option("--tokens", type=click.IntRange(min=1), default=8000, show_default=True, metavar="N")
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
    """Serve one turn of a conversation: say, answer, commit, let go.

    The session is opened by name, or begun. Without TEXT, or for -, standard input is the message.
    The COMMAND gets the newest messages that fit, behind a summary if there is one, as one JSON
    object on its standard input: session, goal, messages. When it fails, what was said stays said.

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
    asked = {
        "session": session.id,
        "goal": session.goal,
        "messages": [{"role": one.role, "content": one.content} for one in context],
    }
    done = subprocess.run(
        ["sh", "-c", command],
        input=render.to_json(asked).encode(),
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
@click.option("-o", "--output", metavar="FILE", help="Write it there.")
@click.option("--check", "source", metavar="FILE", help="Say whether a record can be gone on with.")
def carry(call: CliCall, session: str | None, *, output: str | None, source: str | None) -> None:
    """Print a session as signed text that a client keeps.

    With --check, exit code 6 says that the text was changed, 5 that the session has gone on since.

    \b
    Example:
      ortet carry chat -o ticket
      ortet carry --check ticket
    """
    if source is not None:
        if session is not None or output is not None:
            raise Invalid("bad_usage", "--check reads a record: leave SESSION and -o out")
        opened = call.hub.from_carry(read_text(source).strip())
        opened.pause()
        row = call.hub.get(opened.id).row
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
