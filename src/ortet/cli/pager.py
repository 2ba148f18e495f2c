"""Long answers go through a pager, as git's do: only to a terminal, and quitting it is no error."""

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
"""Verbs whose answer may be longer than a screen. Others may say so of themselves."""

PAGER_IN_USE_VARIABLE = "ORTET_PAGER_IN_USE"
"""Set for whoever does a verb in our place: what it writes goes into a pager of ours."""

_DEFAULT = "less -FRX"
_OFF = ("", "cat")
_SHELL = frozenset("|&;<>()$`\\\"'*?[]#~=%")  # what only a shell can read
_LESS_SETUP = (
    ': "${LESS=FRX}" "${LV=-c}"; export LESS LV; '  # as git has it, for a pager of the user's
)


def pager_command() -> str:
    """The pager's command line; "" for none."""
    from ortet.config.environment import read_variable

    for name in ("ORTET_PAGER", "PAGER"):
        said = read_variable(name)
        if said is not None:
            return "" if said.strip() in _OFF else said
    return "" if read_variable("TERM") in (None, "dumb") else _DEFAULT


def start_pager(note: Callable[[str], None]) -> Pager | None:
    """The pager that the user wants; None for none, and for one that is not there."""
    command = pager_command()
    if not command:
        return None
    if not _is_installed(command):
        if command != _DEFAULT:
            note(f"the pager {command!r} is not there: set ORTET_PAGER, or empty for none")
        return None
    return Pager(command)


def _is_installed(command: str) -> bool:
    """Whether a command can be started at all; what only a shell can tell, it is left to."""
    import shutil

    words = command.split()
    return bool(_SHELL & set(command)) or (bool(words) and shutil.which(words[0]) is not None)


class Pager:
    """A pager that runs until `close`. `stream` leads into it."""

    def __init__(self, command: str) -> None:
        import subprocess  # here: most verbs do without it

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
        """What we say from now on goes into it; remarks too, where they would be on its screen."""
        sys.stdout = self.stream
        if sys.stderr.isatty():
            sys.stderr = self.stream

    def close(self) -> None:
        """Until the user has read it. An interrupt is the pager's: it knows what to do with it."""
        sys.stdout, sys.stderr = self._saved_streams
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with suppress(OSError):  # it was quit before the end
                self.stream.close()
            self._process.wait()
        finally:
            signal.signal(signal.SIGINT, before)


class AgentStreams(NamedTuple):
    """What whoever does a verb in our place is given."""

    streams: tuple[int, int, int] = (0, 1, 2)
    variables: tuple[str, ...] = ()


@contextmanager
def streams_for_agent(pager: Pager | None) -> Iterator[AgentStreams]:
    """Our streams, where what is said goes into the pager, if there is one."""
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
