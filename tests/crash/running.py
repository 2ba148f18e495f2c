"""Starts jobs of `tests.crash.job` in processes of their own, kills them and collects their lines.

ended = run("commit", base, fault="commit.after-flush:kill", engine="folder")
assert ended.killed
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.fixtures import forked, tally

_PROGRAM = "from tests.crash.job import main; main()"


class Ended:
    """What became of a process: its exit code, and the lines it could still say."""

    def __init__(self, code: int, said: list[str]) -> None:
        self.code = code
        self.said: list[list[Any]] = [json.loads(line) for line in said]

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    def of(self, word: str) -> list[list[Any]]:
        return [line[1:] for line in self.said if line[0] == word]

    def points(self) -> list[str]:
        """The fault points in the order in which they were reached, with repetitions."""
        return [name for (name,) in self.of("point")]


class Running:
    """A process that does one job. See `start` for the arguments."""

    def __init__(self, job: dict[str, Any], *, after: int | None, delay: float) -> None:
        self._fault: str = job.get("fault") or ""
        self._after = after
        self._delay = delay
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._read, write = os.pipe()
        try:
            self._process = forked.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps({**job, "fd": write})],
                profile="crash",
                cwd=forked.ROOT,
                env={k: v for k, v in os.environ.items() if k != "ORTET_FAULT"},
                pass_fds=[write],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
            )
        finally:
            os.close(write)

    def end(self) -> Ended:
        """Kill the process behind the line that was asked for, and wait for its end."""
        with self._errors:
            try:
                said = self._listen()
            except BaseException:
                self._process.kill()
                raise
            finally:
                os.close(self._read)
                code = self._process.wait()
            if code == -signal.SIGKILL and self._fault:
                tally.note(tally.FAILPOINTS, [self._fault.partition(":")[0]])
            self._errors.seek(0)
            assert code in (0, -signal.SIGKILL), self._errors.read().decode()[-6000:]
        return Ended(code, said)

    def _listen(self) -> list[str]:
        said = b""
        after = self._after
        while True:
            if after is not None and said.count(b"\n") >= after:
                after = None
                if self._delay:  # a moment somewhere inside what it does next
                    select.select([], [], [], self._delay)
                self._process.kill()
            data = os.read(self._read, 65536)
            if not data:
                return said.decode().splitlines()
            said += data


def start(
    verb: str,
    base: Path,
    *,
    fault: str = "",
    points: bool = False,
    after: int | None = None,
    delay: float = 0.0,
    **args: Any,
) -> Running:
    """Start a job.

    Args:
        verb: A key of `tests.crash.job.JOBS`.
        base: The directory the job works in.
        fault: The fault to arm, as in ORTET_FAULT.
        points: Tell every fault point that is reached: `Ended.points`.
        after: Kill the process behind that many lines.
        delay: Seconds between the last of those lines and the kill.
        **args: What the verb takes besides.
    """
    job = {"verb": verb, "base": str(base), "fault": fault, "points": points, "args": args}
    return Running(job, after=after, delay=delay)


def run(verb: str, base: Path, **options: Any) -> Ended:
    """Do a job to its end, or to its kill; the options are those of `start`."""
    return start(verb, base, **options).end()
