"""Decides whether the host agent runs a command, and sends the command to it.

The console script uses this module before click is imported. It imports almost nothing, because
its import time is part of the time of each command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ortet.cli.daemon import client

DAEMON_VERBS = ("commit", "status")
"""Commands that scan all files of a directory. The host agent is faster: it watches the directory.

Other commands read the store, which costs the same here, or run programs, which must be children of
their caller.
"""

_POINTER = ".ortet"
_DAEMON_LOST_MESSAGE = (
    "error: the host agent ended in the middle of this, and may or may not have done it: repeat "
    "the command (a commit of nothing new records nothing)\n"
)
EXIT_DAEMON_LOST = 7
EXIT_INTERRUPTED = 130


class ParsedCommand(NamedTuple):
    """The parts of a command line that decide where the command runs."""

    verb: str
    directory: str
    name: str  # of the workspace; "" for the one of the directory


def run_by_agent(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int | None:
    """Run the command in the host agent and return its exit code. None if it must run here."""
    command = parse_words(words)
    if command is None or command.verb not in DAEMON_VERBS or not _may_use_agent(environ):
        return None
    located = locate_store(command, environ)
    if located is None:
        return None
    store, name = located
    try:
        return client.run_command(store, name, words)
    except client.NoDaemon:
        _start_agent(store)
        return None
    except client.DaemonLost:
        sys.stderr.write(_DAEMON_LOST_MESSAGE)
        return EXIT_DAEMON_LOST
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _start_agent(store: str) -> None:
    """Start an agent for the next command. Waiting for it would take longer than this command."""
    try:
        if os.stat(store).st_uid == os.geteuid():
            client.spawn_daemon(store)
    except OSError:
        return


def _may_use_agent(environ: Mapping[str, str]) -> bool:
    """Return True if the host agent may run the command.

    It may not in a replay, if a standard stream is closed, or if the user turned the agent off.
    """
    replayed = "ORTET_REPLAY" in environ
    streams = None not in (sys.stdin, sys.stdout, sys.stderr)
    return sys.platform == "linux" and not is_agent_off(environ) and not replayed and streams


def is_agent_off(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if the user turned the host agent off."""
    return environ.get("ORTET_AGENT", "").lower() in ("off", "0", "no", "false")


def parse_words(words: Sequence[str]) -> ParsedCommand | None:
    """Parse a simple command line.

    Return None for others: click then parses them or reports the error.
    """
    directory = verb = name = ""
    rest = iter(words)
    for word in rest:
        if word in ("--json", "-q", "--quiet", "--allow-secrets"):
            continue
        if word == "-C" and not verb:
            directory = os.path.join(directory, next(rest, ""))
        elif word in ("-w", "--workspace") and verb:
            name = next(rest, "")
        elif word in ("-m", "--message", "--durable") and verb:
            next(rest, "")
        elif not word.startswith("-") and not verb:
            verb = word
        else:
            return None
    return ParsedCommand(verb, directory, name) if verb else None


def locate_store(command: ParsedCommand, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the store's directory and the workspace's name. None if this is not a simple case."""
    url = environ.get("ORTET_URL", "")
    pointer = (
        read_nearest_pointer(command.directory) if not url or not command.name else ("", "", "")
    )
    if pointer is None:
        return None
    directory, named_store, workspace = pointer
    store = url or os.path.join(directory, named_store)
    name = command.name or workspace
    plain = os.path.isabs(store) and "://" not in store and "\n" not in name
    return (store, name) if plain else None


def read_nearest_pointer(directory: str) -> tuple[str, str, str] | None:
    """Return the content of the nearest `.ortet` file: its directory, the store, the workspace."""
    try:
        place = os.path.realpath(directory) if directory else os.getcwd()
    except OSError:
        return None
    while True:
        try:
            with open(os.path.join(place, _POINTER), "rb") as file:
                line = os.fsdecode(file.read(1 << 14)).removesuffix("\n")
            break
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if place == os.path.dirname(place):
                return None
            place = os.path.dirname(place)
        except OSError:
            return None
    store, mark, workspace = line.rpartition("#")
    if not mark or not store or "\n" in line or "%" in workspace:
        return None
    return place, store, workspace
