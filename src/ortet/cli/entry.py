"""The console script. It sends a command to the host agent, or runs it in this process.

A command that the agent can run faster goes there, and almost nothing is imported. All other
commands, and all commands without an agent, run here. This is a module of its own, because
`cli.main` imports click.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main() -> NoReturn:
    """Run one command and exit."""
    words = sys.argv[1:]
    code = (
        run_completion(words)
        if words[:1] in (["_complete"], ["completion"])
        else _run_by_agent(words)
    )
    if code is None:
        from ortet.cli.main import main as here

        here()
    os._exit(code)  # nothing is open that must be closed


def run_completion(words: Sequence[str]) -> int | None:
    """Answer a shell at its start or at a Tab. Return None if click must parse the words."""
    from ortet.cli.completion import engine

    verb, *rest = words
    if verb == "_complete":
        engine.main(rest)
    elif len(rest) == 1 and rest[0] in engine.SHELLS:
        sys.stdout.write(engine.script(rest[0]))
        sys.stdout.flush()
    else:
        return None
    return 0


def _run_by_agent(words: Sequence[str]) -> int | None:
    """Import the client of the agent only if a completion did not answer."""
    from ortet.cli.daemon.fast_path import run_by_agent

    return run_by_agent(words)
