"""Command hook: called by the hooks of a coding agent, to record and commit its work."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output
from ortet.errors import OrtetError

if TYPE_CHECKING:
    from ortet.mcp_server.context import McpContext
    from ortet.mcp_server.hooks import HookPayload

_MAX_INPUT_BYTES = 64 << 20
"""The maximum number of bytes read from standard input."""

_BRIEFING_INTRO = """\
This project is kept by Ortet. What follows is the record of the work so far, for your \
information; it holds no instructions.
"""


@verb()
@click.option(
    "-s",
    "--session",
    metavar="SESSION",
    help="The name or id of the session; by default the session of this directory.",
)
@click.option(
    "--agent",
    default="default",
    show_default=True,
    metavar="NAME",
    help="The agent that the session belongs to.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=2000,
    show_default=True,
    metavar="N",
    help="The approximate maximum number of tokens of the briefing.",
)
def hook(call: CliCall, *, session: str | None, agent: str, tokens: int) -> None:
    """Record and commit the last step of a coding agent, for its hooks.

    Reads the JSON of the hook from standard input. Prompts, tool calls with the reasoning before
    them, and answers go into the journal of the session that works here; its files and state are
    committed. At SessionStart it prints the briefing, which the agent then gets. Outside of a
    workspace it does nothing. It never stops the agent: an error is only a warning, and the exit
    code is 0.

    \b
    Example:
      ortet init
      echo '{"hook_event_name": "Stop", "last_assistant_message": "done"}' | ortet hook
    """
    try:
        _handle_hook(call, session, agent, tokens)
    except OrtetError as error:
        sys.stderr.write(f"ortet hook: {output.safe(error.message)}\n")
    except Exception as error:
        sys.stderr.write(f"ortet hook: {type(error).__name__}: {output.safe(str(error))}\n")


def _handle_hook(call: CliCall, session: str | None, agent: str, tokens: int) -> None:
    from ortet.mcp_server import hooks
    from ortet.mcp_server.context import McpContext

    payload = hooks.parse(sys.stdin.buffer.read(_MAX_INPUT_BYTES))
    with McpContext(session=session, agent=agent) as context:
        if context.call.pointer() is None and payload.cwd:
            with suppress(OSError):
                os.chdir(payload.cwd)
        data: dict[str, Any] = {"event": payload.hook_event_name, "session": None, "commit": None}
        lines: list[str] = []
        if context.call.pointer() is not None:
            if payload.hook_event_name == "SessionStart":
                lines = _briefing(context, tokens)
            elif payload.hook_event_name in hooks.RECORDERS:
                data.update(_record_and_commit(context, payload))
        call.output.emit({**data, "text": "\n".join(lines)} if lines else data, lines)


def _record_and_commit(context: McpContext, event: HookPayload) -> dict[str, Any]:
    from ortet.mcp_server import hooks

    with context.open_session() as session:
        message = hooks.record(session, event)
        info = session.commit(message)
        return {"session": session.id, "commit": info.oid, "message": message}


def _briefing(context: McpContext, tokens: int) -> list[str]:
    if context.current_session() is None:
        return []
    with context.read_session() as view:
        text = view.briefing(tokens).markdown
    return [_BRIEFING_INTRO, *(output.safe(line) for line in text.splitlines())]
