"""A pid namespace in which a process is dumped and restored by CRIU itself; pid 1 of it.

criuhost.py CRIU: reads one JSON list a line, `[verb, args…]`, answers each with one line. Run it
with `unshare --pid --mount --fork --kill-child --mount-proc`: all ends with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

PID = 300
SUBJECT = """
import hashlib, os, signal, sys
memory = bytearray(os.urandom(int(sys.argv[1])))
def say(text):
    with open(sys.argv[2], "w") as file:
        file.write(text)
say("ready")
while True:
    number = signal.sigwait([signal.SIGUSR1, signal.SIGUSR2])
    if number == signal.SIGUSR1:
        at = len(memory) // 2
        memory[at] ^= 1
    say(hashlib.sha256(memory).hexdigest())
"""


class Namespace:
    def __init__(self, criu: str) -> None:
        self._criu = criu
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)

    def start(self, size: int, answers: str) -> str:
        """A process with so much random memory, whose pid nobody else in a namespace will have."""
        os.mkfifo(answers)
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(PID - 1))
        command = [sys.executable, "-I", "-S", "-c", "import signal\nsignal.pthread_sigmask("
                   "signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])\n" + SUBJECT]  # fmt: skip
        subject = subprocess.Popen(
            [*command, str(size), answers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        assert subject.pid == PID
        return Path(answers).read_text()

    def ask(self, answers: str, change: bool) -> str:
        """The hash of its memory, after changing one byte if so wished."""
        os.kill(PID, signal.SIGUSR1 if change else signal.SIGUSR2)
        return Path(answers).read_text()

    def dump(self, directory: str) -> str:
        Path(directory).mkdir()
        return self._run("dump", directory, "-t", str(PID), "--leave-running")

    def restore(self, directory: str) -> str:
        return self._run("restore", directory, "--restore-detached")

    def _run(self, verb: str, directory: str, *more: str) -> str:
        done = subprocess.run(
            [
                self._criu,
                verb,
                "-D",
                directory,
                "-o",
                f"{verb}.log",
                "--manage-cgroups=ignore",
                *more,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            return (Path(directory) / f"{verb}.log").read_text()[-2000:]
        return ""


def main() -> None:
    namespace = Namespace(sys.argv[1])
    for line in sys.stdin:
        verb, *args = json.loads(line)
        sys.stdout.write(json.dumps(getattr(namespace, verb)(*args)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
