"""Sends long output through a pager, like git: only to a terminal, and quitting is not an error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO

PAGED_VERBS = frozenset(
    {
        *("log", "show", "diff", "reflog"),
        *("journal", "brief", "environment", "audit", "session ls", "session show"),
        *("recall", "context", "facts ls", "facts show", "facts history", "episodes"),
        *("memory export", "memory diff", "memory contradictions"),
        *("effects", "act ls", "act waiting", "artifact ls", "artifact show", "bill"),
        *("diff-runs", "swarm ls", "swarm show"),
    }
)
"""Commands whose output may be longer than a screen. Other commands can set `paged` themselves."""

PAGER_IN_USE_VARIABLE = "ORTET_PAGER_IN_USE"
"""Set for a process that runs a command for us: its output goes to our pager."""

_DEFAULT = "less -FRX"
_OFF = ("", "cat")
_SHELL = frozenset("|&;<>()$`\\\"'*?[]#~=%")  # characters that need a shell
_LESS_SETUP = ': "${LESS=FRX}" "${LV=-c}"; export LESS LV; '  # the same defaults as git


def pager_command() -> str:
    """Return the command line of the pager, or "" for none."""
    from ortet.config.environment import read_variable

    for name in ("ORTET_PAGER", "PAGER"):
        value = read_variable(name)
        if value is not None:
            return "" if value.strip() in _OFF else value
    return "" if read_variable("TERM") in (None, "dumb") else _DEFAULT


def start_pager(note: Callable[[str], None]) -> Pager | None:
    """Start the user's pager. Return None if none is wanted or it is not installed."""
    command = pager_command()
    if not command:
        return None
    if not _is_installed(command):
        if command != _DEFAULT:
            note(f"the pager {command!r} is not there: set ORTET_PAGER, or empty for none")
        return None
    return Pager(command)


def _is_installed(command: str) -> bool:
    """Return True if the command can be started, or if only a shell can decide that."""
    import shutil

    words = command.split()
    return bool(_SHELL & set(command)) or (bool(words) and shutil.which(words[0]) is not None)


class Pager:
    """A running pager. `stream` writes to it. `close` waits for it."""

    def __init__(self, command: str) -> None:
        import subprocess  # imported here: most commands do not need it

        out, into = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(["sh", "-c", _LESS_SETUP + command], stdin=out)
        except BaseException:
            os.close(into)
            raise
        finally:
            os.close(out)
        self.stream: TextIO = open(  # noqa: SIM115
            into, "w", encoding=sys.stdout.encoding, errors="backslashreplace"
        )
        self._saved_streams = sys.stdout, sys.stderr

    def redirect_output(self) -> None:
        """Send standard output to the pager, and standard error too if it is a terminal."""
        sys.stdout = self.stream
        if sys.stderr.isatty():
            sys.stderr = self.stream

    def close(self) -> None:
        """Wait until the user has closed the pager. Ignore SIGINT, which the pager handles."""
        sys.stdout, sys.stderr = self._saved_streams
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(OSError):  # the user quit before the end
                self.stream.close()
            self._process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


class AgentStreams(NamedTuple):
    """The streams and variables for a process that runs a command for us."""

    streams: tuple[int, int, int] = (0, 1, 2)
    variables: tuple[str, ...] = ()


@contextmanager
def streams_for_agent(pager: Pager | None) -> Iterator[AgentStreams]:
    """Yield our streams, with the pager instead of the terminal if there is one."""
    if pager is None:
        yield AgentStreams()
        return
    import shutil

    into, width = pager.stream.fileno(), shutil.get_terminal_size().columns
    try:
        streams = 0, into, into if sys.stderr.isatty() else 2
        yield AgentStreams(streams, (f"{PAGER_IN_USE_VARIABLE}=1", f"COLUMNS={width}"))
    finally:
        pager.close()
